"""The job in Quix Streams: stateful, RocksDB with its changelog, at least once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quixstreams import Application
from quixstreams.models import TopicConfig

from bench.jobs.job import Job
from bench.jobs.marks import Marks, Task

COMMIT_EVERY = 5_000
ROW = "session"


def main() -> None:
    task = Task.given()
    job = Job()
    marks = Marks(task.records)
    app = Application(
        broker_address=task.broker,
        consumer_group=task.app,
        auto_offset_reset="earliest",
        # Several commits a second; by time alone it would be one in 5 s. Never by time: the last record has to end one.
        commit_every=min(COMMIT_EVERY, max(1, task.records // 4)),
        commit_interval=60.0,
        state_dir=task.folder,
        loglevel="WARNING",
    )
    one = TopicConfig(num_partitions=task.partitions, replication_factor=1)
    inputs = app.topic(task.topic, key_deserializer="bytes", value_deserializer="bytes", config=one)
    outputs = app.topic(task.findings, key_serializer="bytes", value_serializer="bytes", config=one)

    def fold(value: bytes, key: bytes, timestamp: int, headers: Any, state: Any) -> Iterator[Any]:
        marks.before()
        row, found = job.row(state.get_bytes(ROW), value, headers, key, timestamp)
        if row is None:
            state.delete(ROW)
        else:
            state.set_bytes(ROW, row)
        marks.after()
        return found  # type: ignore[return-value]  # any iterable is expanded

    frame = app.dataframe(inputs).apply(fold, stateful=True, metadata=True, expand=True)
    frame = frame.set_headers(lambda finding, _key, _timestamp, _headers: list(finding.headers))
    frame = frame.apply(lambda finding: finding.value)
    frame.to_topic(outputs)
    app.run()


if __name__ == "__main__":
    main()
