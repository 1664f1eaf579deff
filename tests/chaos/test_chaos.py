"""The short form of `make chaos`: the real worker twice on a real Kafka, struck under load, against the pure fold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.__main__ import report
from tests.chaos.run import Plan, Run
from tests.e2e.brokers import Kafka
from tests.e2e.judging import RIGHT

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("seed", [4])
async def test_nothing_lost_nothing_doubled(kafka_broker: Kafka, app_id: str, tmp_path: Path, seed: int) -> None:
    """Two SIGTERMs, two SIGKILLs and a zombie over 20,000 events."""
    plan = Plan(seed, events=20_000, sessions=150, kills=4, zombies=1, zombie_s=8.0)
    run = Run(plan, kafka_broker, app_id, tmp_path)
    verdict = await run()
    assert (verdict, run.outcome.wrong) == (RIGHT, []), json.dumps(report(run, verdict))
    assert run.outcome.fenced == 1
