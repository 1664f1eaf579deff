"""`simulate`: the two observed runs by mechanics, over seeds that no constant was chosen on."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from compaction_monitor.cli import options, output
from compaction_monitor.cli.exits import Code, Problem, extra

if TYPE_CHECKING:
    from compaction_events.emitter import Emitter
    from compaction_events.facts import Fact

Measure = Callable[[int], dict[str, Any]]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, max=1_000, help="So many sessions.")]
Emit = Annotated[
    str | None,
    typer.Option("--emit", metavar="TARGET", help="Also report the sessions as their agents would: HOST:PORT, or file:PATH."),
]
Picture = Annotated[Path | None, typer.Option("--picture", metavar="FILE.svg", help="Also draw the trajectories.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")]
_INLINE = 2  # so few seeds are done before other processes have begun

app = typer.Typer(help="The two observed runs, by mechanics.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The two observed runs, by mechanics: agents that really compact, and what the monitor says of them."""


@app.command()
def inversion(
    seeds: Seeds = 20, emit: Emit = None, picture: Picture = None, markdown: AsMarkdown = False, json: options.Json = False
) -> None:
    """A loop whose scorer comes to prefer summaries to evidence, beside the observed figures; its switches, and the loop."""
    with extra("simulate"):
        from compaction_monitor.simulate import inversion as run
        from compaction_monitor.simulate import inversion_report

    def sessions(seed: int, tell: Callable[[Fact], object]) -> None:
        run.watched(seed, loop=False, also=tell)

    _emit(emit, "reference-researcher", seeds, sessions)
    _show(inversion_report.report(measured(run.measure, seeds)), picture, markdown=markdown, json=json)


@app.command()
def saturation(
    seeds: Seeds = 20, emit: Emit = None, picture: Picture = None, markdown: AsMarkdown = False, json: options.Json = False
) -> None:
    """A root that cannot hold its children, beside the observed figures; trials, remedies, stale and silent variants."""
    with extra("simulate"):
        from compaction_monitor.simulate import saturation as run
        from compaction_monitor.simulate import saturation_report
        from compaction_monitor.simulate.sessions import whole

    def sessions(seed: int, tell: Callable[[Fact], object]) -> None:
        whole(seed, loop=False, also=tell)

    _emit(emit, "reference-keeper", seeds, sessions)
    _show(saturation_report.report(measured(run.measure, seeds)), picture, markdown=markdown, json=json)


def held_out(count: int) -> range:
    """The seeds that figures are reported on."""
    from compaction_monitor.simulate.figures import HELD_OUT

    return range(HELD_OUT, HELD_OUT + count)


def measured(measure: Measure, count: int) -> list[dict[str, Any]]:
    """Every seed measured, on all cores; in the order of the seeds."""
    found = []
    with output.progress("Simulating", count) as bar, closing(_results(measure, held_out(count))) as results:
        for result in results:
            found.append(result)
            bar.advance(bar.task_ids[0])
    return found


def _results(measure: Measure, seeds: range) -> Generator[dict[str, Any]]:
    workers = min(len(seeds), os.cpu_count() or 1)
    if workers == 1 or len(seeds) <= _INLINE:
        yield from map(measure, seeds)
        return
    # Spawned: a fork would take this process's threads for granted.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(measure, seeds)


def _emit(target: str | None, agent: str, count: int, sessions: Callable[[int, Callable[[Fact], object]], None]) -> None:
    """Report the sessions without the loop: whoever monitors them will have to say what is wrong with them."""
    if target is None:
        return
    with extra("emitter"):
        from compaction_events.emitter import Emitter
    try:
        emitter = Emitter(target, agent=agent, source="simulation")
    except (ImportError, ValueError) as error:
        raise Problem(Code.usage, "Cannot report there.", str(error), "Give HOST:PORT, or file:PATH.") from None
    with closing(emitter), output.progress("Reporting", count) as bar:
        for seed in held_out(count):
            sessions(seed, emitter.emit)
            _flushed(emitter, target)
            bar.advance(bar.task_ids[0])
    output.note(f"{emitter.stats.delivered:,} events reported to {target}")


def _flushed(emitter: Emitter, target: str) -> None:
    if not emitter.flush(30.0) or emitter.stats.lost:
        raise Problem(
            Code.unreachable, f"{target} does not take the events.", str(emitter.stats), "Is it there, with its topics?"
        )


def _show(document: dict[str, Any], picture: Path | None, *, markdown: bool, json: bool) -> None:
    from compaction_monitor.simulate import pictures
    from compaction_monitor.simulate.markdown import markdown as as_markdown

    if picture is not None:
        try:
            picture.write_text(pictures.picture(document), encoding="utf-8")
        except OSError as error:
            raise Problem(Code.failed, f"Cannot write {picture}", error.strerror or "", "Name a file you can write.") from None
    if json:
        output.json_document(document)
    elif markdown:
        typer.echo(as_markdown(document), nl=False)
    else:
        _tables(document)


def _tables(document: dict[str, Any]) -> None:
    from compaction_monitor.simulate.markdown import figure_cells, which_seeds

    out = output.console()
    heading = f"{which_seeds(document)}; constants were chosen on others"
    cells = [figure_cells(figure) for figure in document["figures"]]
    out.print(_table("The observed figures", ("figure", "observed", "simulated", "verdict"), cells, heading))
    for table in document["tables"]:
        rows = [[row[column] for column in table["columns"]] for row in table["rows"]]
        out.print()
        out.print(_table(table["title"], table["columns"], rows, table["note"]))


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], note: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption=note or None, caption_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return table


def _style(cell: str) -> str:
    if cell.startswith("met"):
        return "green"
    return "yellow" if cell.startswith("short by") else ""
