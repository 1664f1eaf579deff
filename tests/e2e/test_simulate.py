"""The reference agents as agents: through a broker to a real worker, alone, and with a controller that obeys."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from compaction_monitor.cli.acting import SEED
from compaction_monitor.shell.embedded import EmbeddedBroker
from compaction_monitor.simulate import inversion, sessions
from compaction_monitor.simulate.loop import Watched


def played(scenario: str, broker: EmbeddedBroker, folder: Path) -> dict[str, Any]:
    options = ["--scenario", scenario, "--broker", broker.address, "--json"]
    command = [sys.executable, "-m", "compaction_monitor", "demo", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def raised(document: dict[str, Any], session_id: str) -> list[str]:
    """The alerts of a session, in the order in which they were first raised."""
    found = [f for f in document["findings"] if f["session_id"] == session_id and f["type"] == "alert.raised"]
    return list(dict.fromkeys(finding["name"] for finding in found))


def orders(document: dict[str, Any], session_id: str) -> list[str]:
    return [f["action"] for f in document["findings"] if f["session_id"] == session_id and f["type"] == "remediation.requested"]


def in_process(watch: Watched) -> list[str]:
    return list(watch.firsts())


def test_an_inversion_alone_and_with_the_loop(embedded_broker: EmbeddedBroker, tmp_path: Path) -> None:
    document = played("inversion", embedded_broker, tmp_path)
    alone, helped = (session["rounds"] for session in document["sessions"])
    assert len(alone) == 40
    assert raised(document, "inversion-alone") == in_process(inversion.watched(SEED, loop=False)[1])
    assert {"halt_and_rehydrate", "resume", "cap_depth"} <= set(orders(document, "inversion-with-the-loop"))
    assert sum(entry["cause"] == "rehydration" for entry in helped) >= 2
    assert alone[-1]["raw_ratio"] < 0.15 < 0.25 < helped[-1]["raw_ratio"]
    assert helped[-1]["spans"] > 2 * alone[-1]["spans"]


def test_a_saturation_alone_and_with_the_loop(embedded_broker: EmbeddedBroker, tmp_path: Path) -> None:
    document = played("saturation", embedded_broker, tmp_path)
    assert raised(document, "saturation-alone") == in_process(sessions.whole(SEED, loop=False)[1])
    assert raised(document, "saturation-with-the-loop") == ["saturated"]
    assert "rebalance" in orders(document, "saturation-with-the-loop")
    outcomes = [session["outcome"] for session in document["sessions"]]
    assert outcomes[1].startswith("19 of 19 constraints held")
