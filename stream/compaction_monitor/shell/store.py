"""Local state: one store for each partition number, holding the rows of every table.

A store is a cache of the changelogs, never the truth: it may be deleted at any time, and is built again. What makes it
safe is that rows and the changelog offset they reach are written in one batch, so whatever survives a crash is a state
that the changelog once had. One database for all tables of a partition keeps it to one batch, and to a few files.

Keys are bytes: table byte + key. Rows of a table are therefore neighbours, in key order.
"""

from __future__ import annotations

import logging
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options, Rdict, WriteBatch

from compaction_monitor.effects import TABLES
from compaction_monitor.state.session import StateError

log = logging.getLogger(__name__)

# A tombstone leaves a compacted changelog 24 h after it was written (Kafka's delete.retention.ms); a store that was
# away longer could keep a row whose deletion it never saw, so it is thrown away well before, when it is opened. Away is
# since it was last in step with the changelog, or begun: a recovery that did not come to its end does not count.
MAX_AWAY_S = 12 * 3600.0
YOUNG_S = 600.0
_PREFIX = {table: bytes([index + 1]) for index, table in enumerate(TABLES)}
_OFFSETS = b"\x00"
_IN_STEP = _OFFSETS + b"in step"
_DAMAGED = "DAMAGED"

Writes = Mapping[str, Mapping[bytes, bytes | None]]


class StoreError(StateError):
    """The local store cannot be opened, read or written: a full disk, a folder that was deleted, another process in it."""


class DamagedStoreError(StoreError):
    """Its files are broken. It is marked, and the next start builds it again from its changelog."""


class PartitionStore(Protocol):
    """The rows of one partition number. It is the `Reader` that a `Partition` gets."""

    def get(self, table: str, key: bytes) -> bytes | None: ...
    def scan(self, table: str, after: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]: ...
    def write(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        """Write rows and, with them, the changelog offset that each table now includes."""
        ...

    def apply(self, table: str, records: Iterable[Any], offset: int) -> None:
        """Write a fetch of the table's changelog: `records` have `key` and `value`, `offset` is the last one read."""
        ...

    def offset(self, table: str) -> int | None: ...
    def keep_young(self) -> None:
        """Its owner says, now and then, that it is in step with the changelogs; see `MAX_AWAY_S`."""
        ...

    def rows(self) -> int:
        """How many rows it holds, perhaps estimated."""
        ...

    def bytes(self) -> int:
        """How many bytes they take, perhaps estimated."""
        ...

    def close(self) -> None: ...


class RocksStore:
    """Rows in RocksDB, below `path`. Not synced to disk at each batch: a lost tail is read from the changelog again."""

    def __init__(self, path: Path, cache: Cache) -> None:
        if (path / _DAMAGED).exists():
            shutil.rmtree(path, ignore_errors=True)
        self._path = path
        self._young_at = 0.0
        begun = not path.exists()
        with self._told():
            self._db = self._opened(cache)
            if not begun and time.time() - int(self._db.get(_IN_STEP) or 0) > MAX_AWAY_S:
                self._db.close()
                shutil.rmtree(path)
                self._db, begun = self._opened(cache), True
        if begun:
            self.keep_young()

    def _opened(self, cache: Cache) -> Rdict:
        self._path.mkdir(parents=True, exist_ok=True)
        try:
            return Rdict(str(self._path), _options(cache))
        except Exception as exc:
            if not str(exc).startswith("Corruption"):
                raise
            # Files that are missing or cut off, after a full disk or a deletion: the changelog has everything.
            log.warning("the local store %s is damaged and is built again: %s", self._path, exc)
            shutil.rmtree(self._path)
            self._path.mkdir()
            return Rdict(str(self._path), _options(cache))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # rocksdict raises nothing more exact
            raise self._error(exc) from exc

    def _error(self, exc: Exception) -> StoreError:
        """A broken block is found when it is read, and opening goes well: so that it is not met for ever, it is marked."""
        if not str(exc).startswith("Corruption"):
            return StoreError(f"the local store {self._path}: {exc}")
        with suppress(OSError):
            (self._path / _DAMAGED).touch()
        return DamagedStoreError(f"the local store {self._path} is damaged, the next start builds it again: {exc}")

    def get(self, table: str, key: bytes) -> bytes | None:
        try:  # a context manager is too dear here
            value: bytes | None = self._db.get(_PREFIX[table] + key)
        except Exception as exc:
            raise self._error(exc) from exc
        return value

    def scan(self, table: str, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        prefix = _PREFIX[table]
        # The smallest key greater than `after` is `after` and a zero byte.
        start = prefix + after + b"\x00" if after else prefix
        rows: list[tuple[bytes, bytes]] = []
        with self._told():
            found = self._db.iter()
            try:
                found.seek(start)
                while len(rows) < limit and found.valid():
                    key = found.key()
                    if key[:1] != prefix:
                        return rows
                    rows.append((key[1:], found.value()))
                    found.next()
                if len(rows) < limit:
                    found.status()  # the end, or a block that cannot be read: then it raises
            finally:
                del found  # a traceback would hold it, and it the lock of the database that is closed
        return rows

    def write(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for table, rows in writes.items():
            prefix = _PREFIX[table]
            for key, value in rows.items():
                if value is None:
                    delete(prefix + key)
                else:
                    put(prefix + key, value)
        for table, offset in offsets.items():
            put(_OFFSETS + _PREFIX[table], b"%d" % offset)
        with self._told():
            self._db.write(batch)

    def apply(self, table: str, records: Iterable[Any], offset: int) -> None:
        # In log order, so the last value of a key wins as it does in the log.
        self.write({table: {record.key: record.value for record in records}}, {table: offset})

    def offset(self, table: str) -> int | None:
        with self._told():
            value = self._db.get(_OFFSETS + _PREFIX[table])
        return None if value is None else int(value)

    def keep_young(self) -> None:
        now = time.time()
        if not 0 <= now - self._young_at < YOUNG_S:
            self._young_at = now
            with self._told():
                self._db.put(_IN_STEP, b"%d" % now)

    def rows(self) -> int:
        # An estimate: counting would cost a read of everything.
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def bytes(self) -> int:
        names = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-active-mem-table")
        return sum(int(self._db.property_int_value(name) or 0) for name in names)

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as exc:  # noqa: BLE001 - rocksdict raises nothing more exact
            # After a failed write it cannot be closed in order; what is missing is read from the changelog again.
            log.warning("the local store %s was not closed in order: %s", self._path, exc)


class MemoryStore:
    """Rows in dictionaries: recovered from the changelog at every start, for demos and small fleets."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}
        self._order: dict[str, list[bytes] | None] = dict.fromkeys(TABLES)
        self._reached: dict[str, int] = {}

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._rows[table].get(key)

    def scan(self, table: str, after: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        rows, order = self._rows[table], self._order[table]
        if order is None:
            order = self._order[table] = sorted(rows)
        first = bisect_right(order, after) if after else 0
        return [(key, rows[key]) for key in order[first : first + limit]]

    def write(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        for table, changed in writes.items():
            rows = self._rows[table]
            before = len(rows)
            deleted = False
            for key, value in changed.items():
                if value is not None:
                    rows[key] = value
                else:
                    deleted |= rows.pop(key, None) is not None
            if deleted or len(rows) != before:
                self._order[table] = None
        self._reached.update(offsets)

    def apply(self, table: str, records: Iterable[Any], offset: int) -> None:
        self.write({table: {record.key: record.value for record in records}}, {table: offset})

    def offset(self, table: str) -> int | None:
        return self._reached.get(table)

    def keep_young(self) -> None:
        return  # it is never away

    def rows(self) -> int:
        return sum(len(rows) for rows in self._rows.values())

    def bytes(self) -> int:
        return sum(len(key) + len(value) for rows in self._rows.values() for key, value in rows.items())

    def close(self) -> None:
        return


class Stores:
    """The stores of the partitions this worker owns, opened when first asked for."""

    def __init__(self, kind: str, path: Path, cache_mb: int) -> None:
        self._memory = kind == "memory"
        self._path = path
        self._cache = None if self._memory else Cache(cache_mb << 20)
        self._open: dict[int, PartitionStore] = {}

    def __getitem__(self, partition: int) -> PartitionStore:
        store = self._open.get(partition)
        if store is None:
            store = self._open[partition] = self._new(partition)
        return store

    def _new(self, partition: int) -> PartitionStore:
        if self._cache is None:
            return MemoryStore()
        return RocksStore(self._path / str(partition), self._cache)

    def keep(self, partitions: Iterable[int]) -> None:
        """Close every store but these: another worker may own the others now."""
        for partition in set(self._open) - set(partitions):
            self._open.pop(partition).close()

    def close(self) -> None:
        self.keep(())

    def opened(self) -> Mapping[int, PartitionStore]:
        return self._open


def _options(cache: Cache) -> Options:
    """rocksdict's defaults reserve 2 GiB of cache for each database; here all databases share one small cache."""
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_bloom_filter(10, False)
    tables.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_size(8 << 20)
    options.set_max_write_buffer_number(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(128)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(32 << 20)
    return options
