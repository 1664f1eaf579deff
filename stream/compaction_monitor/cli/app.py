"""The application: its commands, and how all of them end."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from compaction_monitor.cli.bridge import app as bridge
from compaction_monitor.cli.dead_letters import app as dead_letters
from compaction_monitor.cli.demo import demo
from compaction_monitor.cli.exits import Problem, epilog
from compaction_monitor.cli.kafka import ingest, replay, watch
from compaction_monitor.cli.lint import lint
from compaction_monitor.cli.output import show
from compaction_monitor.cli.scan import scan
from compaction_monitor.cli.schema import app as schema
from compaction_monitor.cli.simulate import app as simulate
from compaction_monitor.cli.topics import app as topics
from compaction_monitor.cli.worker import worker


class Shell(TyperGroup):
    """Turns what the user can solve into a message and an exit code; everything else keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Problem as problem:
            show(problem)
            raise typer.Exit(int(problem.code)) from None


app = typer.Typer(
    cls=Shell,
    name="compaction-monitor",
    help="Watches what compaction does to the context of long-running agents.",
    epilog=epilog(),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # Local variables in a traceback could hold a session's text.
    pretty_exceptions_enable=False,
)
for command in (demo, scan, lint, worker, ingest, replay, watch):
    app.command()(command)
app.add_typer(topics, name="topics")
app.add_typer(dead_letters, name="dead-letters")
app.add_typer(bridge, name="bridge")
app.add_typer(schema, name="schema")
app.add_typer(simulate, name="simulate")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(version("compaction-monitor"))
        except PackageNotFoundError:  # run from a folder, never installed
            typer.echo("unknown")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Watches what compaction does to the context of long-running agents: what is lost, where, and what to do.

    Data goes to stdout, everything else to stderr. Every command has --json.
    """
