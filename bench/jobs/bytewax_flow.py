"""The job in Bytewax: keyed state in memory, its snapshots in the recovery store, findings flushed batch by batch.

It keeps its own input offsets beside the snapshots, and no changelog. An epoch of one second (default ten), because
everyone here commits at least once a second.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

from bench.jobs.job import Job
from bench.jobs.marks import Marks, Task, mark
from compaction_monitor.state.session import Session

EPOCH = timedelta(seconds=1)


def keyed(message: Any) -> tuple[str, Any]:
    return message.key.decode(), message


def fold(job: Job, marks: Marks, session: Session | None, message: Any) -> tuple[Session | None, list[Any]]:
    marks.before()
    after, found = job.fold(session, message.value, message.headers, message.key, message.timestamp[1])
    marks.after()
    return after, [KafkaSinkMessage(finding.key, finding.value, headers=list(finding.headers)) for finding in found]


def main() -> None:
    task = Task.given()
    recovery = Path(task.folder)
    init_db_dir(recovery, 1)
    flow = Dataflow("monitor")
    source = KafkaSource([task.broker], [task.topic], tail=False)
    stream = op.map("key", op.input("inputs", flow, source), keyed)
    rounds = op.stateful_flat_map("fold", stream, functools.partial(fold, Job(), Marks(task.records)))
    findings = op.map("value", rounds, lambda pair: pair[1])
    op.output("findings", findings, KafkaSink([task.broker], task.findings))
    cluster_main(flow, [], 0, epoch_interval=EPOCH, recovery_config=RecoveryConfig(recovery), worker_count_per_proc=1)
    mark("committed")


if __name__ == "__main__":
    main()
