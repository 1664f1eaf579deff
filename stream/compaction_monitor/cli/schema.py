"""`schema`: the contract as JSON Schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compaction_events import schema
from compaction_monitor.cli import options, output
from compaction_monitor.cli.exits import Code, Problem

app = typer.Typer(help="The contract as JSON Schemas.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The contract as JSON Schemas."""


@app.command("export")
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; created if it is not there.")],
    json: options.Json = False,
) -> None:
    """Write one JSON Schema per event and finding type into DIR."""
    try:
        written = schema.export(folder)
    except OSError as error:
        raise Problem(
            Code.failed, f"Cannot write the schemas to {folder}", error.strerror or "", "Give a folder you can write to."
        ) from None
    if json:
        output.json_document({"files": [str(path) for path in written]})
    else:
        for path in written:
            typer.echo(path)
