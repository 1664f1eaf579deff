"""The embedded broker: one small binary that speaks Kafka, for demos, development and tests.

A convenience, and the only module that knows the binary; everything else gets `address` and treats it as any broker.
The binary (noida-db, extra `[embedded]`) serves one worker on one machine: it keeps the log in memory, writes it to disk
as it changes and at a clean stop, and never evicts a dead group member, so its workers need a fixed instance id. It tells
who reads committed records of aborted transactions that ended before what is read; a client then drops what the same
producer has committed since (`tests/e2e/test_embedded.py` has the case).

Who stops it: the broker runs under a supervisor (this same file, run as a script) in a process group of its own, so that
a Ctrl-C meant for the worker leaves the broker up while the worker finishes. The supervisor holds the read end of a
pipe; the pipe closes when we stop the broker, but also when we die, of whatever signal, and then the supervisor stops it.

Only the standard library is imported: the supervisor runs without site-packages, and no extra is needed to say what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ALTERNATIVE = (
    "Use a broker you have with --broker HOST:PORT; to start one: docker compose up -d kafka, then --broker 127.0.0.1:9092."
)
_LISTENING = re.compile(rb"^\s*kafka\s+127\.0\.0\.1:(\d+)\s*$", re.MULTILINE)
_HELD = b"already running for"
_POLL_S = 0.02
# A stop writes the whole log to disk: seconds for a large one.
_KILL_AFTER_S = 15.0


class EmbeddedBrokerError(RuntimeError):
    """The embedded broker cannot be had or did not start: the operator's to solve. The message names the way out."""


def default_data_dir() -> Path:
    """Where the broker keeps its data when no directory is given: a folder in the user's cache directory."""
    home = Path.home()
    if sys.platform == "darwin":
        cache = home / "Library" / "Caches"
    elif sys.platform == "win32":
        cache = home / "AppData" / "Local"
    else:
        # The one variable read outside settings: it is the desktop's, not ours, and settings must not be needed here.
        cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")  # noqa: TID251 - see above
    return cache / "compaction-monitor" / "broker"


def find_binary() -> Path:
    """The real binary inside the installed wheel; the `noida-db` script beside Python is a wrapper that leaves it running.

    Raises:
        EmbeddedBrokerError: The wheel is not installed, or holds no binary for this platform.
    """
    spec = importlib.util.find_spec("noida_db")
    if spec is None or spec.origin is None:
        here = f"{platform.system()} {platform.machine()}"
        raise EmbeddedBrokerError(
            "The embedded broker is not installed: pip install 'compaction-monitor[embedded]'. There are wheels for Linux "
            f"(x86_64 and aarch64, glibc), macOS and Windows (amd64); this is {here}. {ALTERNATIVE}"
        )
    binary = Path(spec.origin).with_name("noida-db.exe" if sys.platform == "win32" else "noida-db")
    if not binary.is_file():
        raise EmbeddedBrokerError(f"The embedded broker's package has no binary at {binary}. {ALTERNATIVE}")
    return binary


class EmbeddedBroker:
    """A broker on 127.0.0.1 for as long as the context lasts.

    Args:
        data_dir: Where topics and offsets survive a restart; by default a folder in the user's cache directory.
        port: The port to listen on; 0 takes a free one.
        start_timeout_s: How long it may take until it answers a Kafka request.

    Example:
        with EmbeddedBroker() as broker:
            serve(broker.address)
    """

    def __init__(self, data_dir: Path | None = None, *, port: int = 0, start_timeout_s: float = 20.0) -> None:
        self.data_dir = default_data_dir() if data_dir is None else data_dir
        self._wanted_port = port
        self._start_timeout_s = start_timeout_s
        self._port = 0
        self._log_path = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for clients.

        Raises:
            EmbeddedBrokerError: It is not running.
        """
        if self._process is None:
            raise EmbeddedBrokerError("The embedded broker is not running.")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The supervisor's pid, which is also its process group's; None when not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the broker and return once it answers.

        Raises:
            EmbeddedBrokerError: It cannot be had, the port or the directory is taken, or it did not answer in time.
        """
        if self._process is not None:
            raise EmbeddedBrokerError(f"The embedded broker is already running on {self.address}.")
        binary = find_binary()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        give_up_at = time.monotonic() + self._start_timeout_s
        while True:
            try:
                return self._start_once(binary)
            except _HeldError:
                # By a broker whose owner has just died: it is being stopped, and will let go.
                if time.monotonic() >= give_up_at:
                    raise
            time.sleep(5 * _POLL_S)

    def stop(self) -> None:
        """Stop the broker, its data written; does nothing when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        self._log_path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _start_once(self, binary: Path) -> None:
        # A log of its own for every start: a second broker on this directory must not read the first one's port.
        handle, path = tempfile.mkstemp(prefix="broker-", suffix=".log", dir=self.data_dir)
        self._log_path = Path(path)
        with os.fdopen(handle, "wb") as log:
            options = ["--only", "kafka", "--kafka-port", str(self._wanted_port), "--data-dir", str(self.data_dir)]
            self._process = supervised([str(binary), "start", *options], log)
        try:
            self._port = self._wait_until_it_answers(self._process)
        except BaseException:
            self.stop()
            raise

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> int:
        log = b""
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            log = self._log_path.read_bytes()
            listening = _LISTENING.search(log)
            if listening and answers(int(listening[1])):
                return int(listening[1])
            if process.poll() is not None:
                raise _reason(self._log_path.read_bytes(), self.data_dir)
            time.sleep(_POLL_S)
        raise EmbeddedBrokerError(
            f"The embedded broker did not answer within {self._start_timeout_s:g} s; it said: {_said(log)}. {ALTERNATIVE}"
        )


class _HeldError(EmbeddedBrokerError):
    """The data directory belongs to a running broker."""


def _said(log: bytes) -> str:
    """The broker's own words, on one line."""
    # The loader of an older glibc warns of a weak symbol at every start; that is no reason.
    lines = [line.strip() for line in log.decode(errors="replace").splitlines() if "weak version" not in line]
    return " ".join(filter(None, lines)) or "nothing"


def _reason(log: bytes, data_dir: Path) -> EmbeddedBrokerError:
    """Why the broker ended before it answered."""
    if _HELD in log:
        return _HeldError(
            f"Another embedded broker holds {data_dir}: use that one with --broker, or another directory ({_said(log)})."
        )
    return EmbeddedBrokerError(f"The embedded broker ended at its start; it said: {_said(log)}. {ALTERNATIVE}")


def supervised(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Run `command` so that it ends when the returned process's `stdin` is closed, and so at the latest with us."""
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(_KILL_AFTER_S), *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        creationflags=flags,
    )


def answers(port: int) -> bool:
    """Whether a Kafka broker on 127.0.0.1 answers an ApiVersions request (key 18, version 0) on this port."""
    body = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            reply = connection.recv(10, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(reply) == 10 and struct.unpack(">iih", reply)[1:] == (1, 0)


def _supervise(kill_after_s: float, command: list[str]) -> int:
    """Run `command` until it ends or our standard input closes, then end it: first asked, then killed."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        # A binary for another libc or processor: the parent reads this as the reason.
        sys.stderr.write(f"cannot run {command[0]}: {error}\n")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())

    def end_with_the_pipe() -> None:
        while os.read(0, 4096):
            pass
        child.terminate()
        try:
            child.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=end_with_the_pipe, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(_supervise(float(sys.argv[1]), sys.argv[2:]))
