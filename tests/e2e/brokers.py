"""What the tests know of brokers, and a real Kafka: its jars by Maven, one KRaft node on free ports of 127.0.0.1."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from compaction_monitor.shell import topics
from compaction_monitor.shell.embedded import answers, supervised

VERSION = "4.4.0"
_POM = Path(__file__).with_name("pom.xml")
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
# Few partitions of the internal topics, so that the first group and the first transaction do not wait for a hundred.
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
# Workers under test are killed and replaced within seconds.
group.min.session.timeout.ms=1000
"""


class Broker(Protocol):
    """What a test knows of the broker it runs on."""

    @property
    def address(self) -> str: ...


def own_topics(app_id: str, **wanted: Any) -> tuple[topics.Topic, ...]:
    """`topics.expected` with every name prefixed by the app's: `<app_id>.events`, `.outcomes`, `.findings`, `.dead-letters`."""
    names: dict[str, Any] = {
        "events": [f"{app_id}.events"],
        "outcomes": f"{app_id}.outcomes",
        "findings": f"{app_id}.findings",
        "dead_letters": f"{app_id}.dead-letters",
    }
    return topics.expected(app_id=app_id, **(names | wanted))


class KafkaUnavailableError(Exception):
    """No Java, no Maven, or the jars cannot be had; the message is the reason a test is skipped for."""


def cache_dir() -> Path:
    """Outside the checkout, so that a fresh clone does not fetch the jars again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compaction-monitor"


def jars() -> Path:
    """The folder with Kafka's jars, fetched once.

    Raises:
        KafkaUnavailableError: They are not cached and cannot be fetched.
    """
    folder = cache_dir() / f"kafka-{VERSION}"
    # Moved there whole at the end: a fetch that was cut off leaves no half of it.
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError("Kafka's jars are not cached, and there is no Maven (mvn) to fetch them")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    command = [maven, "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    fetched = subprocess.run(command, capture_output=True, text=True, check=False)
    if fetched.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise KafkaUnavailableError(f"Maven could not fetch Kafka's jars: {(fetched.stdout + fetched.stderr)[-500:]}")
    try:
        partial.rename(folder)
    except OSError:
        # Another test run was faster.
        shutil.rmtree(partial)
    return folder


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all held at once while choosing so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Supervised(ABC):
    """A program that runs until its block ends, or this process does: see `supervised`."""

    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Return once it answers."""

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


class Kafka(Supervised):
    """One broker (and controller) on 127.0.0.1; `with Kafka(folder) as broker: broker.address`."""

    def __init__(self, folder: Path, *, start_timeout_s: float = 60.0) -> None:
        self.folder = folder
        self.log_path = folder / "kafka.log"
        self._start_timeout_s = start_timeout_s
        self._port, self._controller = free_ports(2)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The supervisor's pid, which is also the process group's."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Format the log directory if it is new, start, and return once the broker answers.

        Raises:
            KafkaUnavailableError: There is no Java or there are no jars.
        """
        properties = self.folder / "server.properties"
        if not properties.exists():
            self._format(properties)
        with self.log_path.open("ab") as log:
            # In a process group of its own: a Ctrl-C must not take the broker from tests that are still cleaning up.
            self._process = supervised([*self._java(), "kafka.Kafka", str(properties)], log)
        try:
            self._wait_until_it_answers(self._process)
        except BaseException:
            self.stop()
            raise

    def _java(self) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise KafkaUnavailableError("There is no Java (java) to run Kafka with")
        # The tests are one client on two cores: small heap, one collector thread, the quick compiler only.
        flags = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [java, *flags, "-cp", f"{jars()}/*"]

    def _properties(self, data: Path) -> str:
        return _PROPERTIES.format(port=self._port, controller=self._controller, data=data.as_posix())

    def _format_options(self) -> list[str]:
        return []

    def _format(self, properties: Path) -> None:
        java = self._java()
        data = self.folder / "data"
        text = self._properties(data)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # An id that begins with a dash would be read as an option.
        cluster = "k" + cluster[1:]
        properties.write_text(text)
        command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties), "--standalone"]
        command += self._format_options()
        formatted = subprocess.run(command, capture_output=True, text=True, check=False)
        if formatted.returncode != 0:
            properties.unlink()
            if "UnsupportedClassVersionError" in formatted.stderr:
                raise KafkaUnavailableError("Kafka 4.4 needs Java 17 or newer; the java found here is older")
            raise RuntimeError(f"Kafka's log directory could not be formatted: {formatted.stdout}{formatted.stderr}")

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            if answers(self._port):
                return
            time.sleep(0.05)
        raise RuntimeError(f"Kafka did not start: {self.log_path.read_text(errors='replace')[-2000:]}")
