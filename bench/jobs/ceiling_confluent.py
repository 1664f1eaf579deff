"""A ceiling: confluent-kafka's consume and orjson.loads, nothing else; offsets committed once a second."""

from __future__ import annotations

import time

import orjson
from confluent_kafka import Consumer

from bench.jobs.marks import Marks, Task, mark

COMMIT_S = 1.0
BATCH = 500  # it waits until it has so many, the last time for the whole timeout


def main() -> None:
    task = Task.given()
    marks = Marks(task.records)
    consumer = Consumer(
        {
            "bootstrap.servers": task.broker,
            "group.id": task.app,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([task.topic])
    committed = time.monotonic()
    over = False
    while not over:
        asked_ns = time.monotonic_ns()
        records = consumer.consume(BATCH, timeout=0.1)
        if records:
            marks.before(asked_ns)
            for record in records:
                orjson.loads(record.value())
            over = marks.after(len(records))
        if over or time.monotonic() - committed > COMMIT_S:
            if records:
                consumer.commit(asynchronous=False)
            committed = time.monotonic()
    mark("committed")
    consumer.close()


if __name__ == "__main__":
    main()
