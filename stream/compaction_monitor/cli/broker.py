"""What all commands that talk to a broker share: which one, the settings behind it, and what to say when it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compaction_events.errors import AccessError
from compaction_events.security import why_denied
from compaction_monitor.cli.exits import Code, Problem, extra

if TYPE_CHECKING:
    from compaction_monitor.shell.settings import Settings

EMBEDDED = "embedded"
Broker = Annotated[
    str | None,
    typer.Option(
        "--broker", metavar="HOST:PORT", help="The broker; several with commas. [default: COMPACTION_MONITOR_BROKERS]",
        show_default=False,
    ),
]  # fmt: skip
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, as in the environment but without the prefix."),
]


def load(code: Code, pairs: Sequence[str] | None, **options: Any) -> Settings:
    """The settings: options, then `--set`, then the environment and the file it names.

    Raises:
        Problem: One is wrong; exits with `code`.
    """
    with extra("monitor"):
        from compaction_monitor.shell import settings
    given: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or name not in settings.Settings.model_fields:
            known = ", ".join(sorted(settings.Settings.model_fields))
            raise Problem(Code.usage, f"--set {pair}: not NAME=VALUE with a known setting.", f"known: {known}")
        given[name] = value
    given |= {name: value for name, value in options.items() if value is not None}
    try:
        return settings.load(**given)
    except settings.SettingsError as error:
        raise Problem(code, "The settings are wrong.", str(error), "Correct them, or give another value.") from None


def client_settings(broker: str | None, pairs: Sequence[str] | None) -> Settings:
    """The settings of a command that is a client of a broker."""
    if broker == EMBEDDED:
        raise Problem(
            Code.usage,
            "--broker embedded is for demo and worker, which start it.",
            todo="Start one: compaction-monitor worker --broker embedded; then leave --broker out here.",
        )
    return load(Code.invalid, pairs, brokers=broker)


@contextmanager
def broker_problems() -> Iterator[None]:
    """A broker's refusal in words; the client library's own log lines only get in the way."""
    with extra("monitor"):
        from compaction_monitor.shell.client import BrokerError, MissingTopicsError
    log = logging.getLogger("aiokafka")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    except MissingTopicsError as error:
        raise Problem(
            Code.not_found,
            f"The broker lacks {', '.join(error.names)}, or hides it from this client.",
            todo="Create what is missing: compaction-monitor topics apply; or grant its rights: compaction-monitor topics acls",
        ) from None
    except AccessError as error:
        raise Problem(Code.invalid, f"{error.what}.", todo=error.todo) from None
    except BrokerError as error:
        if error.__cause__ is not None and (denied := why_denied(error.__cause__)):
            raise Problem(Code.invalid, f"{denied.what}.", todo=denied.todo) from None
        if not error.unreachable:
            raise Problem(Code.failed, "The broker refused.", str(error)) from None
        raise Problem(
            Code.unreachable,
            f"{str(error).capitalize()}.",
            todo="Check --broker; or start one: compaction-monitor worker --broker embedded, or docker compose up -d kafka",
        ) from None
    finally:
        log.setLevel(before)
