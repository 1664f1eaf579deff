"""`worker`: the process that watches the fleet."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from compaction_monitor.cli import options, output, topics
from compaction_monitor.cli.broker import EMBEDDED, Set, broker_problems, load
from compaction_monitor.cli.exits import Code, Problem, extra
from compaction_monitor.rules import Rules
from compaction_monitor.rules_file import RulesFileError, read_rules

if TYPE_CHECKING:
    from compaction_monitor.shell.settings import Settings


def worker(
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="HOST:PORT|embedded",
            help="The broker; `embedded` starts one for as long as the worker runs.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="rocksdict|memory", help="Where tables are kept.")] = None,
    datadir: Annotated[Path | None, typer.Option("--datadir", metavar="DIR", help="Folder of the local state.")] = None,
    web_port: Annotated[
        int | None, typer.Option("--web-port", metavar="PORT", help="/live, /ready, /metrics; 0: any free one.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Stable name of this worker; no two may share one.")] = None,
    checks: options.Checks = None,
    accept_new_log: Annotated[
        list[str] | None, typer.Option("--accept-new-log", metavar="TOPIC", help="It was recreated on purpose: read it anew.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR.")
    ] = None,
    settings: Set = None,
    json: Annotated[bool, typer.Option("--json", help="Log lines on stderr as JSON, keys sorted.")] = False,
) -> None:
    """Run the worker until SIGTERM or SIGINT. Settings: COMPACTION_MONITOR_* variables; options win over them.

    Exits 69 if no broker answers, 70 on a fault of the program, 75 if fenced, 78 if settings, disk or topics need a decision.
    """
    given = {
        "store": store, "datadir": datadir, "web_port": web_port, "worker": name, "checks_file": checks,
        "accept_new_log": tuple(accept_new_log) if accept_new_log else None, "log_level": log_level,
    }  # fmt: skip
    embedded = broker == EMBEDDED
    chosen = load(Code.config, settings, brokers=None if embedded else broker, **given)
    rules = _rules(chosen)
    log_to_stderr(chosen.log_level, json=json)
    if not embedded:
        raise typer.Exit(_run(chosen, rules))
    with _embedded(chosen, settings, given) as on_embedded:
        code = _run(on_embedded, rules)
    raise typer.Exit(code)


def _rules(settings: Settings) -> Rules:
    if settings.checks_file is None:
        return Rules()
    try:
        return read_rules(settings.checks_file.read_text(encoding="utf-8"), settings.checks_file.name)
    except (OSError, UnicodeDecodeError, RulesFileError) as error:
        raise Problem(Code.config, "The checks file is wrong.", str(error), "Correct it, or start without it.") from None


def _run(settings: Settings, rules: Rules) -> int:
    with extra("monitor"):
        from compaction_monitor.core import MonitorCore
        from compaction_monitor.shell.worker import run_worker
    if settings.store != "memory":
        try:
            settings.datadir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Problem(
                Code.config,
                f"Cannot write the datadir {settings.datadir}",
                error.strerror or "",
                "Name another: --datadir DIR.",
            ) from None
    agents = frozenset(settings.metrics_agents)
    return run_worker(settings, MonitorCore(rules, settings.partitions, settings.outcomes_topic, agents))


@contextmanager
def _embedded(settings: Settings, pairs: list[str] | None, given: dict[str, Any]) -> Iterator[Settings]:
    """A broker of our own on the configured port, with all topics; the settings that go with it."""
    from compaction_monitor.shell.embedded import EmbeddedBroker, EmbeddedBrokerError

    # The configured port, so that the other commands find it without being told.
    try:
        broker = EmbeddedBroker(port=int(settings.brokers[0].rpartition(":")[2]))
        broker.start()
    except OSError as error:
        raise Problem(
            Code.config, f"Cannot write {error.filename}", error.strerror or "", "Name a folder for it: XDG_CACHE_HOME."
        ) from None
    except EmbeddedBrokerError as error:
        raise Problem(Code.unavailable, "The embedded broker did not start.", str(error)) from None
    try:
        # It never evicts a dead group member: a fixed name takes the old one's place. Its log and our state go together.
        own = {"worker": EMBEDDED, "datadir": broker.data_dir.parent / "worker", "brokers": broker.address}
        chosen = load(Code.config, pairs, **own | {name: value for name, value in given.items() if value is not None})
        output.note(f"embedded broker on {broker.address}, its data in {broker.data_dir}")
        with broker_problems():
            asyncio.run(topics.create(chosen, topics.wanted(chosen)))
        yield chosen
    finally:
        broker.stop()


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, option=orjson.OPT_SORT_KEYS).decode()


def log_to_stderr(level: str, *, json: bool) -> None:
    """Log lines of the whole process, as text or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(_JsonLines() if json else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # It logs every request and response whole, at DEBUG: passwords and records are in them.
    logging.getLogger("aiokafka.conn").setLevel(max(logging.INFO, logging.getLevelName(level)))
