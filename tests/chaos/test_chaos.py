"""The short form of `make chaos`: the real worker on a real Kafka, struck under load in every way, against the pure fold.

Cases whose verdict is another are in tests/e2e: a recreated input, unequal partition counts, a changelog that lost data
(test_worker.py, exit 78), records deleted before they were read (test_log_cleanup.py), a transaction that nobody ends
(test_open_transaction.py).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.absent import skip_or_fail
from tests.chaos.parts import ProxiedKafka
from tests.chaos.plan import Plan, is_right, report
from tests.chaos.run import Run
from tests.e2e.brokers import KafkaUnavailableError

pytestmark = [pytest.mark.chaos, pytest.mark.kafka]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ProxiedKafka]:
    """One of the test's own, which it may restart."""
    made = ProxiedKafka(tmp_path / "kafka")
    made.folder.mkdir()
    try:
        made.start()
    except KafkaUnavailableError as unavailable:
        skip_or_fail(str(unavailable))
    yield made
    made.stop()


@pytest.mark.timeout(600)  # a minute and a half where nothing else runs
@pytest.mark.parametrize("seed", [4])
async def test_nothing_lost_nothing_doubled(
    broker: ProxiedKafka, app_id: str, tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kind of fault once, over 10,000 events."""
    if os.geteuid() != 0:
        skip_or_fail("a full disk needs root (it mounts a tmpfs)")
    caplog.set_level(logging.CRITICAL, "compaction_events")  # of orders that fail on purpose; for this test only
    plan = Plan(
        seed, events=10_000, sessions=100, kills=2, zombies=1, broker_restarts=1, scalings=1, full_disks=1, lost_stores=1,
        slow_brokers=1, clock_jumps=1, zombie_s=8.0,
    )  # fmt: skip
    run = Run(plan, broker, app_id, tmp_path)
    verdict = await run()
    assert is_right(verdict, run.outcome), json.dumps(report(plan, run.outcome, verdict))
    assert sum(run.outcome.struck.values()) == len(plan.faults())
    assert run.outcome.compacted, "the changelogs were to be compacted meanwhile"
