"""The tables of the saturating run: every observed figure with its verdict, verdicts of trials, remedies, the variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Final

from compaction_monitor.simulate.figures import Figure, Table, every, near, share, spread, within
from compaction_monitor.simulate.variants import LATE_LEAVES, REMEDIES

Results = Sequence[dict[str, Any]]
Of = Callable[[dict[str, Any]], Any]

_ONE: Final = (
    "where three trials stay undecided (the root keeps its members by chance) the monitor orders nothing, and the root stays "
    "as it is"
)
_NOISE: Final = "where the gain is within noise (0.15) the verdict is stable, and nothing is ordered"
_VERDICTS: Final = ("saturated", "undecided", "ambiguous", "stale", "stable", "unstable")
_WAYS: Final = {"raise": "raise the budget", "split": "split by need", "halves": "split in two, whatever the need"}


def report(results: Results) -> dict[str, Any]:
    """One document: figures, tables, and the trajectories that the picture is drawn from."""
    tables = (_verdicts(results), _hours(results), _checks(results), _ways(results), _stale(results), _silent(results))
    return {
        "run": "saturation",
        "seeds": [result["seed"] for result in results],
        "figures": [figure.document() for figure in figures(results)],
        "tables": [table.document() for table in tables],
        "series": {name: _series(results, name) for name in ("alone", "with_loop")},
    }


def figures(results: Results) -> list[Figure]:
    """Every figure that the document gives of its run."""
    return [*_regenerated(results), *_twenty_hours(results), *_variants(results)]


def _regenerated(results: Results) -> list[Figure]:
    retained = _each(results, lambda r: fmean(r["regenerated"]["retained"][1:]))
    churn = _each(results, lambda r: fmean(r["regenerated"]["churn"]))
    return [
        near("retained of 19 when first written", 11.2, _each(results, lambda r: r["regenerated"]["retained"][0]), 1),
        near("retained of 19, mean of four regenerations", 11.4, retained, 1),
        near("churn, mean of four regenerations", 0.30, churn, observed="about 0.30"),
        near("churn of the first", 0.30, _each(results, lambda r: r["regenerated"]["churn"][0]), observed="about 0.30"),
        within(
            "cardinality between regenerations, mean change", 0, 0.15,
            _each(results, lambda r: fmean(map(abs, r["regenerated"]["delta"]))), "within 0.15",
        ),
    ]  # fmt: skip


def _twenty_hours(results: Results) -> list[Figure]:
    def of(name: str) -> list[float]:
        return _each(results, lambda r: r["forty_hours"][name])

    return [
        near("root regenerations, first 20 hours", 4, of("first_half"), 1, observed="4"),
        near("root rewrites, second 20 hours with the loop", 1, of("rewrites"), 1, _ONE, observed="1"),
        within("constraints lost again after the loop's rebalance", 0, 0, of("lost_again"), "none", 1),
        *(
            within(
                f"constraints lost again in four regenerations after: {_WAYS[way]}", 0, 0,
                _each(results, lambda r, way=way: r["rebalanced"][way]["lost_again"]), "none", 1,  # type: ignore[misc]
            )
            for way in ("raise", "split")
        ),
    ]  # fmt: skip


def _variants(results: Results) -> list[Figure]:
    found = []
    for name in LATE_LEAVES:
        cases = [result["stale"][name] for result in results]
        found += [
            every(f"stale, {name}: keeps what it had", [case["superset"] for case in cases]),
            near(f"stale, {name}: regenerations", 1, [case["regenerations"] for case in cases], 1, _NOISE, observed="1"),
        ]
    silent = {name: [result["silent"][name] for result in results] for name in ("all mids", "one mid", "healthy")}
    return [
        *found,
        every("every mid saturated, root healthy: `silent_composed_loss`", [case["raised"] for case in silent["all mids"]]),
        every("one mid saturated, root healthy: `silent_composed_loss`", [case["raised"] for case in silent["one mid"]]),
        every("healthy mids: no `silent_composed_loss`", [not case["raised"] for case in silent["healthy"]]),
    ]


def _verdicts(results: Results) -> Table:
    judged = [result["judged"] for result in results]
    rows = [
        (verdict, share([case["first"] == verdict for case in judged]), share([case["last"] == verdict for case in judged]))
        for verdict in _VERDICTS
    ]
    trials = spread([case["trials"] for case in judged], 1)
    columns = ("verdict", "of one trial", "of up to three")
    return Table("What trials say of the saturated root", columns, tuple(rows), f"Trials spent: {trials}.")


def _hours(results: Results) -> Table:
    names = {
        "second_half_alone": "regenerations without the loop",
        "second_half": "regenerations with it",
        "rebalances": "rebalances",
        "trials": "trial calls of the summariser",
        "misses": "constraints missed with it",
        "held": "constraints held at the end",
    }
    rows = [(words, spread(_each(results, lambda r, n=name: r["forty_hours"][n]), 1)) for name, words in names.items()]  # type: ignore[misc]
    return Table("The second twenty hours, the loop switched on at hour 20", ("measure", "mean"), tuple(rows))


def _checks(results: Results) -> Table:
    """What the monitor says of the session, watched from the first turn."""
    rows = []
    for run, words in {"alone": "without the loop", "with_loop": "with the loop"}.items():
        checks = [result["from_start"][run]["checks"] for result in results]
        for name in sorted({name for found in checks for name in found}):
            hours = [found[name]["hour"] for found in checks if name in found]
            rows.append((words, name, share([name in found for found in checks]), spread(hours, 1)))
    return Table("Which check fired, and when", ("session", "check", "sessions", "first hour"), tuple(rows))


def _ways(results: Results) -> Table:
    rows = []
    for way in REMEDIES:
        cases = [result["rebalanced"][way] for result in results]
        numbers = (spread([case[name] for case in cases], 1) for name in ("parts", "tokens", "lost_again", "held"))
        rows.append((_WAYS[way], *numbers))
    columns = ("remedy", "parts", "tokens in all", "lost again in four regenerations", "held of 19")
    return Table("Room for the root", columns, tuple(rows))


def _stale(results: Results) -> Table:
    rows = []
    for name in LATE_LEAVES:
        cases = [result["stale"][name] for result in results]
        rows.append(
            (
                name,
                spread([case["before"] for case in cases], 1),
                spread([case["after"] for case in cases], 1),
                share([case["stale"] for case in cases]),
                share([case["regenerations"] == 1 for case in cases]),
                share([case["superset"] for case in cases]),
            )
        )
    columns = ("root", "retained before", "after", "judged stale", "regenerated once", "kept what it had")
    return Table("A root that was only written too early", columns, tuple(rows))


def _silent(results: Results) -> Table:
    rows = []
    for name in ("all mids", "one mid", "healthy"):
        cases = [result["silent"][name] for result in results]
        ways = sorted({way for case in cases for way in case["ways"]})
        rows.append(
            (
                {"all mids": "every mid too small", "one mid": "the fullest mid too small", "healthy": "healthy"}[name],
                share([case["root_fits"] for case in cases]),
                spread([case["held"] for case in cases], 1),
                share([case["lost_below"] for case in cases]),
                share([case["regeneration_changes_nothing"] for case in cases]),
                share([case["raised"] for case in cases]),
                ", ".join(ways) or "-",
                spread([case["held_after"] for case in cases], 1),
            )
        )
    columns = (
        "mids", "root has room", "root retains", "what it lacks is in no mid", "regenerating changes nothing",
        "silent_composed_loss", "remedy", "retains after it",
    )  # fmt: skip
    return Table("A healthy root over mids that lost it", columns, tuple(rows), "Root retains: of 19 constraints.")


def _series(results: Results, run: str) -> dict[str, Any]:
    histories = [result["from_start"][run]["held"] for result in results]
    columns = list(zip(*histories, strict=True))
    found: dict[str, Any] = {"hours": [column[0][0] for column in columns]}
    for place, name in ((1, "held"), (2, "regenerations")):
        values = [[point[place] for point in column] for column in columns]
        found[name] = {
            "mean": [round(fmean(v), 4) for v in values],
            "low": [min(v) for v in values],
            "high": [max(v) for v in values],
        }
    return found


def _each(results: Results, of: Of) -> list[float]:
    return [float(of(result)) for result in results]
