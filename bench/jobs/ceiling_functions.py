"""A ceiling: the pure functions that every Python contender calls, over records in memory; nothing read, stored or sent."""

from __future__ import annotations

import uvloop
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import ConsumerRecord

from bench.jobs.job import Job
from bench.jobs.marks import Marks, Task, mark
from compaction_monitor.state.session import Session


async def read(task: Task) -> list[ConsumerRecord]:
    """The whole input."""
    consumer = AIOKafkaConsumer(task.topic, bootstrap_servers=task.broker, auto_offset_reset="earliest")
    await consumer.start()
    found: list[ConsumerRecord] = []
    while len(found) < task.records:
        for records in (await consumer.getmany(timeout_ms=100)).values():
            found += records
    await consumer.stop()
    return found


def main() -> None:
    task = Task.given()
    job, marks = Job(), Marks(task.records)
    sessions: dict[bytes | None, Session | None] = {}
    records = uvloop.run(read(task))
    marks.before()
    for record in records:
        session = sessions.get(record.key)
        sessions[record.key], _ = job.fold(session, record.value, record.headers, record.key, record.timestamp)
    marks.after(len(records))
    mark("committed")


if __name__ == "__main__":
    main()
