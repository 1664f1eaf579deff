"""What several tests of the simulation look at, worked out once."""

from __future__ import annotations

from typing import Any

import pytest

from compaction_monitor.cli.simulate import measured
from compaction_monitor.simulate import inversion, inversion_report, saturation, saturation_report

SEEDS = 20


@pytest.fixture(scope="session")
def documents() -> dict[str, dict[str, Any]]:
    """Both runs over the twenty seeds of the documentation."""
    return {
        "inversion": inversion_report.report(measured(inversion.measure, SEEDS)),
        "saturation": saturation_report.report(measured(saturation.measure, SEEDS)),
    }
