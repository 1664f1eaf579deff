"""A ceiling: aiokafka's getmany and orjson.loads, nothing else; offsets committed once a second."""

from __future__ import annotations

import time

import orjson
import uvloop
from aiokafka import AIOKafkaConsumer

from bench.jobs.marks import Marks, Task, mark

COMMIT_S = 1.0


async def main() -> None:
    task = Task.given()
    marks = Marks(task.records)
    consumer = AIOKafkaConsumer(
        task.topic,
        bootstrap_servers=task.broker,
        group_id=task.app,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    committed = time.monotonic()
    over = False
    while not over:
        asked_ns = time.monotonic_ns()
        for records in (await consumer.getmany(timeout_ms=100)).values():
            marks.before(asked_ns)
            for record in records:
                orjson.loads(record.value)
            over = marks.after(len(records))
        if over or time.monotonic() - committed > COMMIT_S:
            await consumer.commit()
            committed = time.monotonic()
    mark("committed")
    await consumer.stop()


if __name__ == "__main__":
    uvloop.run(main())
