"""A ceiling: the pure functions that every Python contender calls, over records in memory; nothing read, stored or sent."""

from __future__ import annotations

import uvloop

from bench.jobs.job import Job
from bench.jobs.marks import Marks, Task, mark
from compaction_monitor.state.session import Session
from tests.e2e.workers import read_all


def main() -> None:
    task = Task.given()
    job, marks = Job(), Marks(task.records)
    sessions: dict[bytes | None, Session | None] = {}
    records = uvloop.run(read_all(task.broker, task.topic, task.partitions))
    marks.before()
    for record in records:
        session = sessions.get(record.key)
        sessions[record.key], _ = job.fold(session, record.value, record.headers, record.key, record.timestamp)
    marks.after(len(records))
    mark("committed")


if __name__ == "__main__":
    main()
