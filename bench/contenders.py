"""Who takes part: the command of each, what it is installed from, its settings in words, and where it says it is done."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from bench import vectors
from tests.e2e.brokers import VERSION as KAFKA_VERSION
from tests.e2e.brokers import cache_dir

ROOT = Path(__file__).parents[1]
JAVA_PROJECT = Path(__file__).with_name("kafka_streams")
# Who says that everything is committed: the consumer group's offsets, our progress rows, or the process itself.
Committed = Literal["group", "progress", "process"]


class UnavailableError(Exception):
    """A contender cannot run here; the message is the reason that is printed."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the job.

    Attributes:
        module: The module in `bench.jobs`, empty for Java.
        requires: What its own environment is installed from; empty: it runs in ours.
        python_below: The first Python (3.x) that it has no wheels for.
        share: Of the load it gets; events a second do not depend on it.
        settings: What was set beside the defaults, for the report.
        arguments: Of the Java program.
    """

    name: str
    module: str
    committed: Committed
    settings: str
    requires: tuple[str, ...] = ()
    python_below: int = 99
    share: float = 1.0
    ceiling: bool = False
    arguments: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The command that runs it, set up if it has to be.

        Raises:
            UnavailableError: It cannot be installed or built here.
        """
        if not self.module:
            return [*_java(), *self.arguments]
        return [str(_python(self)), "-m", f"bench.jobs.{self.module}"]

    @property
    def versions(self) -> tuple[str, ...]:
        """What it runs on, as far as it is not the standard library."""
        if not self.module:
            return (f"kafka-streams=={KAFKA_VERSION}",)
        return self.requires or _same("aiokafka", "faust-streaming", "orjson", "pydantic", "rocksdict", "uvloop")


def _same(*names: str) -> tuple[str, ...]:
    """The versions that ours runs on."""
    return tuple(f"{name}=={version(name)}" for name in names)


OURS = Contender(
    "ours",
    "ours",
    "progress",
    "the worker command: read committed, a Kafka transaction for each partition batch (state, findings, progress), rocksdict",
)
FAUST = Contender(
    "faust",
    "faust_agent",
    "group",
    "one agent, events one by one, table on rocksdict with changelog, findings awaited, uvloop, commit every 0.5 s",
    (
        "faust-streaming[rocksdict]==0.15.3",
        *_same("aiokafka", "cramjam", "mode-streaming", "rocksdict", "uvloop", "orjson", "pydantic"),
    ),
    share=0.1,
)
QUIX = Contender(
    "quix",
    "quix",
    "group",
    "state as bytes on RocksDB with changelog, at least once, a commit every 5,000 records, not by time",
    ("quixstreams==3.28.1", "confluent-kafka==2.12.2", "pydantic==2.13.5", *_same("rocksdict", "orjson")),
)
BYTEWAX = Contender(
    "bytewax",
    "bytewax_flow",
    "process",
    "state as objects in memory, snapshots in its recovery store, epochs of 1 s (default 10), batches of 1,000 (default)",
    ("bytewax[kafka]==0.21.1", "confluent-kafka==2.12.2", *_same("orjson", "pydantic")),
    python_below=13,
)
STREAMS = Contender(
    "kafka-streams",
    "",
    "group",
    "exactly_once_v2, a commit every 100 ms (its default), RocksDB with changelog, one thread, nine passes before, alerts only",
    arguments=("exactly_once_v2",),
)
STREAMS_ONCE = Contender(
    "kafka-streams-at-least-once",
    "",
    "group",
    "at_least_once (its default), commit every 1 s (default 30), otherwise as kafka-streams",
    arguments=("at_least_once",),
)
AIOKAFKA = Contender("aiokafka-ceiling", "ceiling_aiokafka", "process", "getmany and orjson.loads, uvloop", ceiling=True)
CONFLUENT = Contender(
    "confluent-ceiling",
    "ceiling_confluent",
    "process",
    "consume(500) and orjson.loads",
    ("confluent-kafka==2.12.2", *_same("orjson")),
    ceiling=True,
)
FUNCTIONS = Contender(
    "functions-ceiling", "ceiling_functions", "process", "validation and fold as everyone calls them, in memory", ceiling=True
)
JAVA_FUNCTIONS = Contender(
    "java-functions-ceiling",
    "",
    "process",
    "the same in the port of the Kafka Streams contender, sessions as objects, warmed up by nine passes; alerts only",
    ceiling=True,
    arguments=("functions",),
)
ALL: Sequence[Contender] = (OURS, FAUST, QUIX, BYTEWAX, STREAMS, STREAMS_ONCE, FUNCTIONS, JAVA_FUNCTIONS, AIOKAFKA, CONFLUENT)
QUICK: Sequence[Contender] = (OURS, QUIX, FAUST, AIOKAFKA)


def _python(contender: Contender) -> Path:
    """The interpreter of a contender's environment, made once."""
    if not contender.requires:
        return Path(sys.executable)
    base = _interpreter(contender)
    wanted = "\n".join((base, *contender.requires))
    # A changed list is another environment: nothing is ever upgraded in place.
    mark = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    folder = cache_dir() / "bench" / f"{contender.name}-{mark}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {', '.join(contender.requires)}; once", file=sys.stderr, flush=True)
    _run([base, "-m", "venv", str(folder)], contender.name)
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *contender.requires], contender.name)
    (folder / "complete").touch()
    return python


def _interpreter(contender: Contender) -> str:
    if sys.version_info[:2] < (3, contender.python_below):
        return sys.executable
    for minor in range(contender.python_below - 1, 10, -1):
        if found := shutil.which(f"python3.{minor}"):
            return found
    raise UnavailableError(
        f"{contender.name} has no wheels for Python 3.{sys.version_info.minor}, and no older one is installed"
    )


@functools.cache
def _java() -> list[str]:
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None:
        raise UnavailableError("Kafka Streams needs Java 17 or newer (java)")
    folder = cache_dir() / "bench" / f"kafka-streams-{_fingerprint(JAVA_PROJECT)}"
    if not (folder / "complete").exists():
        if maven is None:
            raise UnavailableError("Kafka Streams is built with Maven (mvn), which is not installed")
        shutil.rmtree(folder, ignore_errors=True)
        print("building bench/kafka_streams with Maven; once", file=sys.stderr, flush=True)
        pom = str(JAVA_PROJECT / "pom.xml")
        _run([maven, "-q", "-B", "-f", pom, f"-DbuildDirectory={folder}", "package"], "kafka-streams")
        (folder / "complete").touch()
    # The flags that Kafka's own start scripts give, with a heap that is large enough for the second load.
    flags = ["-Xms512m", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
    command = [java, *flags, "-cp", f"{folder / 'classes'}:{folder / 'libs'}/*", "Monitor", str(_vectors())]
    _run(command, "kafka-streams (its port of the checks, against Python's)")
    return command


def _vectors() -> Path:
    """What the Java port verifies itself with, of the code as it is now."""
    path = cache_dir() / "bench" / "vectors.jsonl"
    vectors.write(path)
    return path


def _fingerprint(project: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(project.rglob("*")):
        if path.is_file() and path.suffix in (".java", ".xml"):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        raise UnavailableError(f"{name} cannot be set up: {said[:400]}{' … ' + said[-400:] if len(said) > 400 else ''}")
