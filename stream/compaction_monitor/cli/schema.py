"""`schema`: the contract for others, as JSON Schemas and as an AsyncAPI document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from compaction_events import asyncapi as contract
from compaction_events import schema
from compaction_monitor.cli import options, output
from compaction_monitor.cli.exits import Code, Problem, extra

app = typer.Typer(help="The contract as JSON Schemas, and as an AsyncAPI document.", no_args_is_help=True)


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


@app.command("asyncapi")
def asyncapi(json: options.Json = False) -> None:
    """Print the AsyncAPI 3.0 document: topics, records, headers, and which answer belongs to which order."""
    document = contract.document()
    if json:
        output.json_document(document)
    else:
        sys.stdout.write(_yaml(document))


def _yaml(document: dict[str, Any]) -> str:
    """Plain ASCII, so that any terminal and file can hold it; texts of several lines as such."""
    with extra("monitor"):
        import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    found: str = yaml.dump(document, Dumper=Dumper, sort_keys=False, width=120)
    return found
