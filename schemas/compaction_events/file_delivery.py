"""Events into a file: one plain JSON object a line, what `scan`, `replay` and `lint` read. No broker, no Kafka client."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from compaction_events.outbox import BACKOFF_S, CHUNK, MAX_BACKOFF_S, THREAD, Item, Outbox, log


class FileDelivery:
    """Appends one plain JSON object a line. A folder that is missing is made; a full disk is tried again.

    Args:
        path: The file. Several processes may append to it: a line is one write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._work = threading.Event()
        self._stopping = threading.Event()
        self._file = -1
        self._torn = False

    def start(self, outbox: Outbox) -> None:
        self._thread = threading.Thread(target=self._run, args=(outbox,), name=THREAD, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._work.set()

    def hurry(self) -> None:
        self._work.set()

    def stop(self, timeout_s: float) -> None:
        self._stopping.set()
        self._work.set()
        self._thread.join(timeout_s)

    def _run(self, outbox: Outbox) -> None:
        backoff_s = BACKOFF_S
        while not self._stopping.is_set():
            self._work.clear()
            try:
                while items := outbox.take(CHUNK, CHUNK):
                    self._write(outbox, items)
                    backoff_s = BACKOFF_S
                self._work.wait()
            except OSError as error:
                log.warning("cannot write %s, trying again: %s", self._path, error.strerror)
                self._close()
                outbox.take_back()
                self._stopping.wait(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        self._close()

    def _write(self, outbox: Outbox, items: list[Item]) -> None:
        if self._file >= 0 and not os.fstat(self._file).st_nlink:
            self._close()  # somebody deleted the file
        if self._file < 0:
            self._open()
        for item in items:
            line = (b"\n" if self._torn else b"") + item.value + b"\n"
            self._torn = True  # until it is written whole
            written = os.write(self._file, line)
            while written < len(line):
                written += os.write(self._file, line[written:])
            self._torn = False
            outbox.confirm(item)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        self._torn = False
        # A writer that was killed may have left half a line.
        if size := os.fstat(self._file).st_size:
            os.lseek(self._file, size - 1, os.SEEK_SET)
            self._torn = os.read(self._file, 1) != b"\n"

    def _close(self) -> None:
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
        self._file = -1
