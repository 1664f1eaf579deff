"""The tables of the inverting run: every observed figure with its verdict, the checks, the variants, the ablation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from compaction_monitor.simulate.figures import Figure, Table, every, near, share, spread, within
from compaction_monitor.simulate.inversion import ABLATION, NEVER, VARIANTS

Results = Sequence[dict[str, Any]]

_EARLY: Final = (
    "the mean of the sessions falls; in a single one what arrives in a round can outweigh what is evicted, by a point or two"
)
_TAIL: Final = "it comes down on its floor, the verbatim tail, a few rounds later"
_CITED: Final = "depends on the round in which the synthesis is written, which is not told; here round 30"


def report(results: Results) -> dict[str, Any]:
    """One document: figures, tables, and the trajectories that the picture is drawn from."""
    return {
        "run": "inversion",
        "seeds": [result["seed"] for result in results],
        "figures": [figure.document() for figure in figures(results)],
        "tables": [table.document() for table in (_checks(results), _loop(results), _variants(results), _ablation(results))],
        "series": {name: _series(results, name) for name in ("alone", "with_loop")},
    }


def figures(results: Results) -> list[Figure]:
    """Every figure that the document gives of its runs."""
    return [*_composition(results), *_hierarchy(results), *_onsets(results), *_grounded(results)]


def _composition(results: Results) -> list[Figure]:
    ratio = _of(results, "as observed", "raw_ratio")
    spans = _of(results, "as observed", "spans")
    cosine = _of(results, "as observed", "cosine")
    mean = [fmean(column) for column in zip(*ratio, strict=True)]
    rise = max(0.0, *(b - a for a, b in pairwise(mean[:28])))
    ups = [sum(b > a for a, b in pairwise(row[:28])) for row in ratio]
    return [
        near("raw_ratio in round 1", 0.71, [row[0] for row in ratio]),
        near("raw_ratio in round 28", 0.09, [row[27] for row in ratio], 2, _TAIL),
        within("largest rise of the mean raw_ratio in a round to 28", 0, 0.005, [rise], "none", 3),
        within("rounds to 28 in which a session's own rose", 0, 0, ups, "none", 1, _EARLY),
        near("raw_ratio in round 40 less that in round 28", 0.0, [row[39] - row[27] for row in ratio], 2, _TAIL, "flat"),
        near("reachable spans in round 1", 214, [row[0] for row in spans], 0),
        near("reachable spans in round 30", 37, [row[29] for row in spans], 0),
        near("cosine in round 1", 0.41, [row[0] for row in cosine]),
        near("cosine in round 30", 0.68, [row[29] for row in cosine]),
        near("cosine in round 40", 0.68, [row[39] for row in cosine]),
    ]


def _hierarchy(results: Results) -> list[Figure]:
    depth = _of(results, "as observed", "depth")
    full = _of(results, "as observed", "full")
    reached = [next((at for at, level in enumerate(row, 1) if level >= 3), NEVER) for row in depth]
    pinned = [all(level == 3 for level in row[at - 1 :]) for row, at in zip(depth, reached, strict=True)]
    return [
        within("round in which depth 3 is reached", 1, 12, reached, "by 12", 1),
        every("pinned there to the end", pinned),
        within("least tokens in any round, of the budget", 0.96, 1.0, [min(row) for row in full], "within 4 %", 3),
        within("most tokens in any round, of the budget", 0.96, 1.0, [max(row) for row in full], "within 4 %", 3),
    ]


def _onsets(results: Results) -> list[Figure]:
    decay, none = _values(results, "as observed", "onset"), _values(results, "no recency decay", "onset")
    gone = [row[29] for row in _of(results, "as observed", "cited_gone_rounds")]
    return [
        near("onset with decay, round", 12, decay, 1, observed="12"),
        near("onset without, round", 19, none, 1, observed="19"),
        near("rounds that decay brings it forward", 7, [b - a for a, b in zip(decay, none, strict=True)], 1, observed="7"),
        every("later without, in the same session", [b > a for a, b in zip(decay, none, strict=True)]),
        near("rounds since the ground of a cited deep summary went", 8, gone, 1, _CITED, observed="8"),
    ]


def _grounded(results: Results) -> list[Figure]:
    name = "reachability, depth 2"
    orphans = _of(results, name, "orphans")
    cited = _of(results, name, "cited_ungrounded")
    pressure = _values(results, name, "pressure")
    return [
        every(f"{name}: no inversion", [value == NEVER for value in _values(results, name, "onset")]),
        every(f"{name}: no summary whose leaves are gone", [not any(row) for row in orphans]),
        every(f"{name}: nothing cited without ground", [not any(row) for row in cited]),
        within(f"{name}: token pressure", 0.18, 0.24, pressure, "18 to 24 %", 3),
        every(
            "reachability, depth 3: still inverts, so the hierarchy has to be shallower",
            [value < NEVER for value in _values(results, "reachability, depth 3", "onset")],
        ),
    ]


def _checks(results: Results) -> Table:
    """What the monitor itself says of the observed run, and when."""
    firsts = [result["alone"]["first_round"] for result in results]
    names = sorted({name for first in firsts for name in first}, key=lambda name: _mean_round(firsts, name))
    rows = [
        (
            name,
            share([name in first for first in firsts]),
            spread([first[name] for first in firsts if name in first], 1),
            share([min(first, key=lambda check: first[check]) == name for first in firsts]),
        )
        for name in names
    ]
    return Table("Which check fired, and when", ("check", "sessions", "first round", "was the first"), tuple(rows))


def _loop(results: Results) -> Table:
    """The same sessions without and with the loop."""
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        "raw_ratio in round 40": lambda run: run["raw_ratio"][39],
        "least raw_ratio": lambda run: min(run["raw_ratio"]),
        "reachable spans in round 40": lambda run: run["spans"][39],
        "summaries without a reachable span, round 40": lambda run: run["orphans"][39],
        "rounds below raw_ratio 0.25": lambda run: sum(value < 0.25 for value in run["raw_ratio"]),
    }
    rows = []
    for name, of in measures.items():
        alone, helped = ([float(of(result[run])) for result in results] for run in ("alone", "with_loop"))
        digits = 2 if "raw_ratio in" in name or "least" in name else 1
        rows.append((name, spread(alone, digits), spread(helped, digits)))
    for action in sorted({action for result in results for action in result["with_loop"]["orders"]}):
        counts = [float(result["with_loop"]["orders"].get(action, 0)) for result in results]
        rows.append((f"orders `{action}`", "", spread(counts, 1)))
    return Table("With the loop", ("measure", "alone", "with the loop"), tuple(rows), "The set after each round.")


def _variants(results: Results) -> Table:
    rows = []
    for name in VARIANTS:
        onsets = _values(results, name, "onset")
        seen = [value for value in onsets if value < NEVER]
        rows.append(
            (
                name,
                share([value == NEVER for value in onsets]),
                spread(seen, 1) if seen else "-",
                spread(_values(results, name, "signature_rounds"), 1),
                spread([row[39] for row in _of(results, name, "raw_ratio")]),
                spread([100 * row[29] for row in _of(results, name, "cited_ungrounded")], 0),
                spread([100 * value for value in _values(results, name, "pressure")], 1),
            )
        )
    columns = (
        "loop", "never inverts", "onset, round", "rounds with the signature", "raw_ratio round 40",
        "cited without ground, round 30, %", "token pressure, %",
    )  # fmt: skip
    note = (
        "The signature is the inversion's condition, whatever the monitor's gates say. Cited: the five most relevant summaries "
        "of summaries; without ground: no span that they were first written from can be reached. Token pressure: tokens that "
        "the scorer would have evicted and the invariant kept, of the budget, mean of rounds 12 to 40."
    )
    return Table("What each switch does", columns, tuple(rows), note)


def _ablation(results: Results) -> Table:
    rows = []
    for name in ABLATION:
        decay, none = zip(*(result["ablation"][name] for result in results), strict=True)
        later = [b - a for a, b in zip(decay, none, strict=True)]
        rows.append(
            (
                name,
                spread(decay, 1),
                spread(none, 1),
                spread(later, 1),
                share([gap > 0 for gap in later]),
                share([gap < 0 for gap in later]),
            )
        )
    columns = ("loop and work", "onset with decay", "onset without", "brought forward by", "later without", "sooner without")
    note = (
        f"A session that never inverts counts as round {NEVER}. Decay helps whatever is fresh: the rewritten deep summaries; "
        "raw spans, where nothing is rewritten and no tail keeps the newest anyway, if it is strong and slow enough."
    )
    return Table("When a recency decay brings the inversion forward, and when it puts it off", columns, tuple(rows), note)


def _series(results: Results, run: str) -> dict[str, Any]:
    """Mean, least and most over the seeds, by round."""
    found: dict[str, Any] = {}
    for name in ("raw_ratio", "spans", "cosine", "orphans"):
        columns = list(zip(*(result[run][name] for result in results), strict=True))
        found[name] = {
            "mean": [round(fmean(column), 4) for column in columns],
            "low": [min(column) for column in columns],
            "high": [max(column) for column in columns],
        }
    return found


def _of(results: Results, variant: str, name: str) -> list[list[float]]:
    return [result["variants"][variant][name] for result in results]


def _values(results: Results, variant: str, name: str) -> list[float]:
    return [float(result["variants"][variant][name]) for result in results]


def _mean_round(firsts: Sequence[dict[str, int]], name: str) -> float:
    return fmean(first[name] for first in firsts if name in first)
