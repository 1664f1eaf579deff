"""A run's document as Markdown: what stands in the documentation is what the command prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(document: dict[str, Any]) -> str:
    """Figures and tables of a run."""
    seeds = document["seeds"]
    head = (
        f"{len(seeds)} sessions, seeds {seeds[0]} to {seeds[-1]}; constants were chosen on others. ± is one standard deviation."
    )
    rows = [figure_cells(figure) for figure in document["figures"]]
    parts = [head, _table(("figure", "observed", "simulated", "verdict"), rows)]
    for table in document["tables"]:
        cells = [[row[column] for column in table["columns"]] for row in table["rows"]]
        parts += [f"**{table['title']}.** {table['note']}".strip(), _table(table["columns"], cells)]
    return "\n\n".join(parts) + "\n"


def figure_cells(figure: dict[str, Any]) -> tuple[str, str, str, str]:
    """A figure's cells: what, as observed, as simulated, and the verdict in words.

    >>> figure_cells({"name": "spans", "observed": "37", "mean": 40.0, "sd": 1.0, "digits": 0, "met": False,
    ...               "short_by": 2.0, "off_by": 3.0, "why": "it is not told"})
    ('spans', '37', '40 ± 1', 'short by 2.0: it is not told')
    """
    digits, off = figure["digits"], figure["off_by"]
    simulated = f"{figure['mean']:.{digits}f} ± {figure['sd']:.{digits}f}"
    if figure["met"]:
        apart = off is not None and abs(off) > 0.5 * 10**-digits
        verdict = f"met; the mean is off by {off:+.{digits}f}" if apart else "met"
    else:
        why = f": {figure['why']}" if figure["why"] else ""
        verdict = f"short by {figure['short_by']:.{digits + 1}f}{why}"
    return figure["name"], figure["observed"], simulated, verdict


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
