"""A run's document as Markdown: what stands in the documentation is what the command prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(document: dict[str, Any]) -> str:
    """Figures and tables of a run."""
    head = f"{which_seeds(document)}; constants were chosen on others. ± is one standard deviation."
    rows = [figure_cells(figure) for figure in document["figures"]]
    parts = [head, _table(("figure", "observed", "simulated", "verdict"), rows)]
    for table in document["tables"]:
        cells = [[row[column] for column in table["columns"]] for row in table["rows"]]
        parts += [f"**{table['title']}.** {table['note']}".strip(), _table(table["columns"], cells)]
    return "\n\n".join(parts) + "\n"


def which_seeds(document: dict[str, Any]) -> str:
    """Over how many sessions, and which.

    >>> which_seeds({"seeds": [1000, 1001]}), which_seeds({"seeds": [1000]})
    ('2 sessions, seeds 1000 to 1001', '1 session, seed 1000')
    """
    first, *more = document["seeds"]
    return f"{1 + len(more)} sessions, seeds {first} to {more[-1]}" if more else f"1 session, seed {first}"


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
