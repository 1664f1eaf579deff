"""The round checks before any alert: per check one table of cases with their whys, and what holds for all of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from compaction_events.builders import at, completed, started
from compaction_events.facts import RoundCompleted
from compaction_monitor.checks.rounds import CHECKS, Verdict, drift_cause
from compaction_monitor.fold import fold
from compaction_monitor.rules import AgentRules, Rules, Thresholds
from compaction_monitor.state.session import Session

Fields = Mapping[str, Any]
NOTHING: Fields = MappingProxyType({})
LIMITS = Thresholds()
CONDITIONS_ONLY = Rules(default=AgentRules(off=frozenset(CHECKS)))


class Case(NamedTuple):
    """`says`: `holds:SEVERITY`, `over`, `clear`, `skipped:REASON`, or `skipped:REASON over`."""

    why: str
    rounds: list[Fields]
    says: str
    told: Fields = NOTHING
    subjects: tuple[str, ...] = ()


def ground(raw: int | None, spans: int | None, cosine: float | None, depth: int | None = 2, **more: Any) -> Fields:
    """A round of 1,000 tokens (of none where `raw` is None)."""
    return {
        "raw_tokens": raw or 0,
        "summary_tokens": 0 if raw is None else 1_000 - raw,
        "distinct_source_spans": spans,
        "query_cosine_retained": cosine,
        "summary_depth_max": depth,
        **more,
    }


def last_of(case: Case) -> tuple[Session, RoundCompleted]:
    """The session after the last round of the case, and that round; numbered from 1, half an hour apart, unless told."""
    session = fold(None, started(**{"source_spans": 100, "max_depth": 3, **case.told}), "start", CONDITIONS_ONLY).session
    event = None
    for number, fields in enumerate(case.rounds, 1):
        event = _event(number, fields)
        session = fold(session, event, f"round-{number}", CONDITIONS_ONLY).session
    assert session is not None
    assert event is not None
    return session, event


def _event(number: int, fields: Fields) -> RoundCompleted:
    told = {name: value for name, value in fields.items() if name not in ("round", "minutes")}
    if "minutes" in fields:
        told["at"] = at(fields["minutes"])
    return completed(fields.get("round", number), **told)


def said(verdict: Verdict) -> str:
    if verdict.holds:
        assert verdict.severity is not None
        return f"holds:{verdict.severity.value}"
    words = [f"skipped:{verdict.skipped}" if verdict.skipped else "", "over" if verdict.over else ""]
    return " ".join(filter(None, words)) or "clear"


INFERRED: Fields = {"basis": "inferred"}
BEFORE = ground(200, 50, 0.40)
AFTER = ground(200, 40, 0.45)

SALIENCE_INVERSION = [
    Case("mostly summary, ground falling, scorer pleased", [BEFORE, AFTER], "holds:critical"),
    Case("a quarter raw is not below a quarter", [BEFORE, ground(250, 40, 0.45)], "clear"),
    Case("one token less is", [BEFORE, ground(249, 40, 0.45)], "holds:critical"),
    Case("at 0.30 it is over", [BEFORE, ground(300, 40, 0.45)], "over"),
    Case("just below 0.30 it is neither", [BEFORE, ground(299, 40, 0.45)], "clear"),
    Case("spans stable: drift, not inversion", [BEFORE, ground(200, 50, 0.45)], "clear"),
    Case("one span is a fall", [BEFORE, ground(200, 49, 0.45)], "holds:critical"),
    Case("cosine the same: not rising", [BEFORE, ground(200, 40, 0.40)], "clear"),
    Case("depth 1: summaries do not compete with summaries yet", [BEFORE, ground(200, 40, 0.45, 1)], "clear"),
    Case("a working set without a token has no ground, as in the reference", [BEFORE, ground(None, 0, 0.45)], "holds:critical"),
    Case("a negative cosine rises too", [ground(200, 50, -0.4), ground(200, 40, -0.3)], "holds:critical"),
    Case("the scorer penalises depth", [BEFORE, AFTER], "clear", {"scorer": {"name": "x", "depth_penalty": 0.1}}),
    Case("a penalty of nothing is none", [BEFORE, AFTER], "holds:critical", {"scorer": {"name": "x", "depth_penalty": 0.0}}),
    Case("scorer not told: gate open, as in the reference", [BEFORE, AFTER], "holds:critical", {"scorer": None}),
    Case("eviction at overflow only", [BEFORE, AFTER], "clear", {"eviction": "overflow"}),
    Case("eviction of a kind not known here: gate open", [BEFORE, AFTER], "holds:critical", {"eviction": "nightly"}),
    Case("topology not told: a tree, as in the reference", [BEFORE, AFTER], "holds:critical", {"topology": None}),
    Case("topology of a kind not known here: a tree", [BEFORE, AFTER], "holds:critical", {"topology": "forest"}),
    Case("a chain has no levels", [BEFORE, AFTER], "skipped:chain", {"topology": "chain"}),
    Case("a sliding window has none either", [BEFORE, AFTER], "skipped:flat", {"topology": "flat"}),
    Case("nothing is scored", [BEFORE, AFTER], "skipped:no_scorer", {"scorer": {"name": "none"}}),
    Case("the first known round has no previous one", [AFTER], "skipped:no_previous"),
    Case("its own state before the pass is none", [ground(200, 40, 0.45, before={**BEFORE, "summary_depth_max": 2})],
         "skipped:no_previous"),
    Case("cosine without spans is blind, never healthy", [BEFORE, ground(200, None, 0.45)], "skipped:no_reachability"),
    Case("the previous round without spans", [ground(200, None, 0.40), AFTER], "skipped:no_reachability"),
    Case("no cosine", [BEFORE, ground(200, 40, None)], "skipped:no_cosine"),
    Case("the previous round without a cosine", [ground(200, 50, None), AFTER], "skipped:no_cosine"),
    Case("no depth", [BEFORE, ground(200, 40, 0.45, None)], "skipped:no_depth"),
    Case("blind, yet visibly over", [BEFORE, ground(300, None, None)], "skipped:no_reachability over"),
    Case("inferred, a fall of 10 in 50 and a rise of 0.05", [BEFORE, ground(200, 40, 0.45, **INFERRED)], "holds:critical"),
    Case("inferred, a fall of 5 % equals the margin", [ground(200, 60, 0.40), ground(200, 57, 0.45, **INFERRED)], "clear"),
    Case("one span more is beyond it", [ground(200, 60, 0.40), ground(200, 56, 0.45, **INFERRED)], "holds:critical"),
    Case("inferred, a rise of 0.02 equals the margin, though 0.43 - 0.41 is more in floats",
         [ground(200, 50, 0.41), ground(200, 40, 0.43, **INFERRED)], "clear"),
    Case("a rise of 0.021 is beyond it", [ground(200, 50, 0.45), ground(200, 40, 0.471, **INFERRED)], "holds:critical"),
    Case("the previous round inferred: still a comparison with an estimate",
         [ground(200, 60, 0.40, **INFERRED), ground(200, 57, 0.45)], "clear"),
    Case("over a gap it is compared with the last known round", [BEFORE, {**AFTER, "round": 5}], "holds:critical"),
    Case("two rounds ago does not matter", [ground(200, 60, 0.30), ground(200, 40, 0.45), ground(200, 40, 0.50)], "clear"),
]  # fmt: skip

CHAIN: Fields = {"topology": "chain"}


def within_pass(before: int | None, after: int, depth: int = 2, **more: Any) -> Fields:
    stood = None if before is None else {"raw_tokens": 500, "summary_tokens": 500, "distinct_source_spans": before}
    return ground(200, after, None, depth, before=stood, **more)


PROVENANCE_FLOOR = [
    Case("19 of 100: fewer than a fifth", [ground(500, 19, None)], "holds:critical"),
    Case("20 of 100: a fifth stands", [ground(500, 20, None)], "over"),
    Case("a fifth of 104 is 20 whole spans", [ground(500, 20, None)], "over", {"source_spans": 104}),
    Case("at least one span must be left, even of 4", [ground(500, 0, None)], "holds:critical", {"source_spans": 4}),
    Case("one of 4 is enough", [ground(500, 1, None)], "over", {"source_spans": 4}),
    Case("a session that starts empty still needs one", [ground(500, 0, None)], "holds:critical", {"source_spans": 0}),
    Case("depth 1: not yet", [ground(500, 19, None, 1)], "clear"),
    Case("the count at the start is not known", [ground(500, 19, None)], "skipped:no_source_spans", {"source_spans": None}),
    Case("no spans", [ground(500, None, 0.5)], "skipped:no_reachability"),
    Case("no depth, below the floor: not known whether it matters", [ground(500, 19, None, None)], "skipped:no_depth"),
    Case("no depth, but enough spans: what was raised is over", [ground(500, 20, None, None)], "skipped:no_depth over"),
    Case("inferred: floors take no margin", [ground(500, 19, None, **INFERRED)], "holds:critical"),
    Case("a sliding window keeps no ground to stand on", [ground(500, 0, None)], "skipped:flat", {"topology": "flat"}),
    Case("topology not told: a tree", [ground(500, 19, None)], "holds:critical", {"topology": None}),
    Case("a chain: 3 of 17 within the pass", [within_pass(17, 3)], "holds:critical", CHAIN),
    Case("a chain: 4 of 20 is a fifth", [within_pass(20, 4)], "over", CHAIN),
    Case("a chain: 0 of 4 is below, without rounding", [within_pass(4, 0)], "holds:critical", CHAIN),
    Case("a chain: 3 of 16 is below 3.2, without rounding", [within_pass(16, 3)], "holds:critical", CHAIN),
    Case("a chain: nothing stood before, nothing can be lost", [within_pass(0, 0)], "over", CHAIN),
    Case("a chain: its first generation summarises raw turns", [within_pass(17, 3, 1)], "clear", CHAIN),
    Case("a chain does not answer for the session's start", [within_pass(17, 9)], "over", {**CHAIN, "source_spans": 1_000}),
    Case("a chain without the state before the pass", [within_pass(None, 3)], "skipped:no_before", CHAIN),
    Case("a chain: a rehydration is no pass that holds", [within_pass(17, 9, cause="rehydration")], "clear", CHAIN),
]  # fmt: skip


def sinking(*rounds: tuple[int, int], depth: int = 2) -> list[Fields]:
    return [ground(raw, spans, None, depth) for raw, spans in rounds]


INVERSION_RISK = [
    Case("four rounds below half, both falling", sinking((490, 50), (450, 48), (400, 46), (350, 44)), "holds:warning"),
    Case("three rounds are no slope", sinking((490, 50), (450, 48), (400, 46)), "skipped:few_rounds"),
    Case("one round", sinking((490, 50)), "skipped:no_previous"),
    Case("two rounds have a previous one, and no slope", sinking((490, 50), (450, 48)), "skipped:few_rounds"),
    Case("three rounds whose spans stand are too few to call it over", sinking((490, 50), (450, 50), (400, 50)),
         "skipped:few_rounds"),
    Case("half raw is not below half", sinking((540, 50), (530, 48), (510, 46), (500, 44)), "clear"),
    Case("one below half is enough until 0.55", sinking((600, 52), (499, 50), (530, 48), (520, 44)), "holds:warning"),
    Case("back at 0.55 it is over", sinking((490, 50), (450, 48), (400, 46), (550, 44)), "over"),
    Case("since it was at 0.55 it has not been below half", sinking((560, 52), (450, 50), (550, 48), (540, 44)), "clear"),
    Case("spans not falling for three rounds: over", sinking((490, 50), (450, 48), (440, 48), (430, 48), (420, 48)), "over"),
    Case("for two only: it goes on", sinking((490, 50), (450, 49), (440, 48), (430, 48), (420, 48)), "holds:warning"),
    Case("the last fell, but the window did not", sinking((490, 44), (450, 48), (440, 46), (430, 45)), "clear"),
    Case("spans fall, the raw share does not", sinking((400, 50), (400, 48), (400, 46), (400, 44)), "clear"),
    Case("depth 1: nothing to invert yet", sinking((490, 50), (450, 48), (400, 46), (350, 44), depth=1), "clear"),
    Case("a chain has no levels", sinking((490, 50), (450, 48), (400, 46), (350, 44)), "skipped:chain", CHAIN),
    Case("a sliding window neither", sinking((490, 50), (450, 48), (400, 46), (350, 44)), "skipped:flat", {"topology": "flat"}),
    Case("spans missing in one of the last rounds",
         [*sinking((490, 50), (450, 48), (400, 46)), ground(350, None, None)], "skipped:no_reachability"),
    Case("spans missing where the window begins",
         [ground(490, None, None), *sinking((480, 50), (450, 48), (400, 46), (350, 44))], "skipped:no_reachability"),
    Case("no depth", [*sinking((490, 50), (450, 48), (400, 46)), ground(350, 44, None, None)], "skipped:no_depth"),
    Case("no depth, but half raw again", [*sinking((490, 50), (450, 48), (400, 46)), ground(550, 44, None, None)],
         "skipped:no_depth over"),
    Case("eight rounds are remembered: the ninth from the end is forgotten",
         sinking((490, 90), *[(400, 44)] * 5, (390, 44), (380, 44), (370, 43)), "holds:warning"),
    Case("inferred falls within the margin of 5 % are none",
         [ground(raw, spans, None, **INFERRED) for raw, spans in ((490, 100), (450, 99), (400, 98), (350, 97))], "over"),
]  # fmt: skip

DRIFT = [
    Case("spans stable: drift", [BEFORE, ground(200, 50, 0.45)], "holds:info"),
    Case("spans risen: stable", [BEFORE, ground(200, 55, 0.45)], "holds:info"),
    Case("spans fall, the cosine does not rise: worse", [BEFORE, ground(200, 40, 0.40)], "holds:warning"),
    Case("an inversion is no drift", [BEFORE, AFTER], "clear"),
    Case("a closed gate, and spans fall", [BEFORE, AFTER], "holds:warning", {"eviction": "overflow"}),
    Case("a closed gate, spans stable", [BEFORE, ground(200, 50, 0.45)], "holds:info", {"eviction": "overflow"}),
    Case("nothing is scored, and spans fall", [BEFORE, AFTER], "holds:warning", {"scorer": {"name": "none"}}),
    Case("a quarter raw is enough", [BEFORE, ground(250, 50, 0.45)], "clear"),
    Case("at 0.30 it is over", [BEFORE, ground(300, 50, 0.45)], "over"),
    Case("an empty set drifts nowhere", [BEFORE, ground(None, 0, 0.0)], "clear"),
    Case("depth 1", [BEFORE, ground(200, 50, 0.45, 1)], "clear"),
    Case("no depth", [BEFORE, ground(200, 50, 0.45, None)], "skipped:no_depth"),
    Case("a first round may be an inversion for all one knows", [AFTER], "skipped:no_previous"),
    Case("a first round behind a closed gate cannot", [AFTER], "holds:info", {"eviction": "overflow"}),
    Case("no spans: may be an inversion", [BEFORE, ground(200, None, 0.45)], "skipped:no_reachability"),
    Case("stable spans need no cosine", [BEFORE, ground(200, 50, None)], "holds:info"),
    Case("falling spans do", [BEFORE, ground(200, 40, None)], "skipped:no_cosine"),
    Case("an inferred fall within the margin is stable", [BEFORE, ground(200, 48, 0.45, **INFERRED)], "holds:info"),
    Case("a chain has no levels", [BEFORE, AFTER], "skipped:chain", CHAIN),
    Case("a sliding window neither", [BEFORE, AFTER], "skipped:flat", {"topology": "flat"}),
]  # fmt: skip

DEEP = ground(500, 50, 0.4, 3)
FREE: Fields = {"max_depth": None}

DEPTH_PINNED = [
    Case("six rounds at the maximum, nothing falls", [DEEP] * 6, "holds:info"),
    Case("five are allowed", [DEEP] * 5, "clear"),
    Case("mostly summary as well", [*[DEEP] * 5, ground(249, 50, 0.4, 3)], "holds:warning"),
    Case("a quarter raw is not mostly summary", [*[DEEP] * 5, ground(250, 50, 0.4, 3)], "holds:info"),
    Case("spans fell over the window", [*[DEEP] * 5, ground(500, 49, 0.4, 3)], "holds:warning"),
    Case("spans fell in the window's first step only", [DEEP, *[ground(500, 49, 0.4, 3)] * 5], "holds:warning"),
    Case("spans fell and came back", [DEEP, *[ground(500, 40, 0.4, 3)] * 4, DEEP], "holds:info"),
    Case("spans not known: judged by the raw share", [*[DEEP] * 5, ground(500, None, 0.4, 3)], "holds:info"),
    Case("below the maximum it is over", [*[DEEP] * 6, ground(500, 50, 0.4, 2)], "over"),
    Case("one round below begins the count again", [*[DEEP] * 5, ground(500, 50, 0.4, 2), *[DEEP] * 5], "clear"),
    Case("at depth 2 of 2 a cap of 2 means nothing", [ground(500, 50, 0.4, 2)] * 9, "clear", {"max_depth": 2}),
    Case("deeper than its own maximum is not below it", [ground(500, 50, 0.4, 4)] * 6, "holds:info"),
    Case("below a maximum of 4", [DEEP] * 9, "over", {"max_depth": 4}),
    Case("no maximum told: the deepest level seen", [DEEP] * 6, "holds:info", FREE),
    Case("a new deepest level restarts the count", [*[DEEP] * 5, *[ground(500, 50, 0.4, 4)] * 5], "clear", FREE),
    Case("six on the new level", [*[DEEP] * 5, *[ground(500, 50, 0.4, 4)] * 6], "holds:info", FREE),
    Case("a rehydration does not count", [*[DEEP] * 4, {**DEEP, "cause": "rehydration"}, DEEP], "clear"),
    Case("nor does it break the run", [*[DEEP] * 5, {**DEEP, "cause": "rehydration"}, DEEP], "holds:info"),
    Case("one that gets below the maximum does",
         [*[DEEP] * 5, ground(500, 50, 0.4, 2, cause="rehydration"), DEEP], "clear"),
    Case("no depth: not told", [*[DEEP] * 5, ground(500, 50, 0.4, None)], "skipped:no_depth"),
    Case("a round without a depth neither counts nor breaks", [*[DEEP] * 5, ground(500, 50, 0.4, None), DEEP], "holds:info"),
    Case("a chain's depth is its generation", [DEEP] * 6, "skipped:chain", CHAIN),
    Case("a sliding window has none", [DEEP] * 6, "skipped:flat", {"topology": "flat"}),
    Case("a restarted emitter counts anew", [*[DEEP] * 5, {**DEEP, "round": 0, "minutes": 900}], "clear"),
]  # fmt: skip


def inventory(*leaves: int, method: str | None = "pointer", total: int | None = None) -> Fields:
    items = [
        {"summary_id": f"s{n:02}", "depth": 1, "tokens": 10, "leaf_spans": count, "expanded_tokens": 10 * count}
        for n, count in enumerate(leaves)
    ]
    return {"raw_tokens": 100, "summary_tokens": 100, "summaries": items, "spans_method": method, "summaries_total": total}


ORPHANED_SUMMARY = [
    Case("one without a leaf, at depth 1 already", [inventory(3, 0, 2)], "holds:critical", NOTHING, ("s01",)),
    Case("all of them", [inventory(0, 0)], "holds:critical", NOTHING, ("s00", "s01")),
    Case("at most twenty are named", [inventory(*[0] * 25)], "holds:critical", {}, tuple(f"s{n:02}" for n in range(20))),
    Case("each has a leaf: none, or none any more", [inventory(3, 1)], "over"),
    Case("nothing retained of summaries", [inventory()], "over"),
    Case("the list is cut: an orphan may be beyond it", [inventory(3, 1, total=3)], "clear"),
    Case("the list is whole by its own count", [inventory(3, 1, total=2)], "over"),
    Case("found in a cut list it is one all the same", [inventory(3, 0, total=9)], "holds:critical", NOTHING, ("s01",)),
    Case("no inventory", [ground(200, 40, 0.4)], "skipped:no_inventory"),
    Case("words that still stand are no pointers", [inventory(3, 0, method="lexical")], "skipped:no_pointers"),
    Case("a method that is not told", [inventory(3, 0, method=None)], "skipped:no_pointers"),
    Case("a hard invariant, in a chain too", [inventory(0)], "holds:critical", CHAIN, ("s00",)),
    Case("and in a sliding window", [inventory(0)], "holds:critical", {"topology": "flat"}, ("s00",)),
]  # fmt: skip


def read(read_records: int | None, claimed_records: int | None, kind: str | None = "ok", **more: Any) -> Fields:
    return {"read_records": read_records, "claimed_records": claimed_records, "summary_kind": kind, **more}


COVERAGE_GAP = [
    Case("49 read of 100 evicted as covered", [read(49, 100)], "holds:critical"),
    Case("half is enough", [read(50, 100)], "over"),
    Case("nothing read at all", [read(0, 1)], "holds:critical"),
    Case("more read than evicted", [read(200, 100)], "over"),
    Case("a fallback is a summary too", [read(49, 100, "fallback")], "holds:critical"),
    Case("a kind not told is not a missing summary", [read(49, 100, None)], "holds:critical"),
    Case("no summary was written: nothing was evicted as covered", [read(0, 100, "none")], "skipped:no_summary"),
    Case("a failed one is another check's", [read(0, 100, "error")], "skipped:no_summary"),
    Case("an empty one likewise", [read(0, 100, "empty")], "skipped:no_summary"),
    Case("nothing claimed: no share of it", [read(0, 0)], "skipped:no_records"),
    Case("claims not told", [read(10, None)], "skipped:no_records"),
    Case("reads not told", [read(None, 10)], "skipped:no_records"),
    Case("a rehydration is no good pass", [read(100, 100, cause="rehydration")], "clear"),
    Case("in a chain as well", [read(49, 100)], "holds:critical", CHAIN),
]  # fmt: skip

SUMMARY_FAILED = [
    Case("the summariser failed", [read(1, 1, "error")], "holds:critical"),
    Case("it returned nothing", [read(1, 1, "empty")], "holds:critical"),
    Case("it fell back to something cruder", [read(1, 1, "fallback")], "holds:warning"),
    Case("a good one", [read(1, 1, "ok")], "over"),
    Case("a pass that wrote none neither failed nor repaired", [read(1, 1, "none")], "clear"),
    Case("not told", [read(1, 1, None)], "skipped:no_summary_kind"),
    Case("a kind not known here", [read(1, 1, "poem")], "skipped:no_summary_kind"),
    Case("a rehydration is no good pass", [read(1, 1, "ok", cause="rehydration")], "clear"),
]  # fmt: skip

OVERFLOW: Fields = {"eviction": "overflow", "token_budget": 1_000}


def left(tokens: int, minutes: float | None = None, **more: Any) -> Fields:
    """A pass that leaves so many tokens; half an hour apart unless told."""
    return {"raw_tokens": tokens, "summary_tokens": 0, **({} if minutes is None else {"minutes": minutes}), **more}


COMPACTION_THRASH = [
    Case("three rounds in a row leave more than 0.9", [left(901)] * 3, "holds:warning", OVERFLOW),
    Case("two do not", [left(901)] * 2, "over", OVERFLOW),
    Case("0.9 itself is allowed", [left(901), left(900), left(901)], "over", OVERFLOW),
    Case("summaries take room too", [{"raw_tokens": 1, "summary_tokens": 900}] * 3, "holds:warning", OVERFLOW),
    Case("a good one in between", [left(901), left(901), left(500), left(901), left(901)], "over", OVERFLOW),
    Case("a rehydration in between is no round of it", [left(901), left(901), left(999, cause="rehydration"), left(901)],
         "holds:warning", OVERFLOW),
    Case("on a rehydration itself nothing is said", [*[left(901)] * 3, left(999, cause="rehydration")], "clear", OVERFLOW),
    Case("one asked for by hand does not count", [left(901), left(901, trigger="manual"), left(901)], "over", OVERFLOW),
    Case("four within 20 minutes", [left(500, m) for m in (40, 45, 50, 60)], "holds:warning", OVERFLOW),
    Case("four within more", [left(500, m) for m in (40, 45, 50, 60.1)], "over", OVERFLOW),
    Case("three within 20 minutes", [left(500, m) for m in (40, 50, 60)], "over", OVERFLOW),
    Case("four of which one by hand", [left(500, 40), left(500, 45, trigger="manual"), left(500, 50), left(500, 60)],
         "over", OVERFLOW),
    Case("five of which one by hand", [left(500, 40), left(500, 45, trigger="manual"), *[left(500, m) for m in (50, 55, 60)]],
         "holds:warning", OVERFLOW),
    Case("one by hand after a burst does neither", [*[left(500, m) for m in (40, 45, 50, 55)], left(500, 56, trigger="manual")],
         "over", OVERFLOW),
    Case("no budget told: only the burst can be seen", [left(901)] * 3, "over", {"eviction": "overflow"}),
    Case("a chain overflows by nature", [left(901)] * 3, "holds:warning", {**CHAIN, "token_budget": 1_000}),
    Case("continuous eviction is full by design", [left(999)] * 3, "skipped:continuous",
         {"eviction": "continuous", "token_budget": 1_000}),
    Case("eviction not told", [left(999)] * 3, "skipped:no_eviction", {"token_budget": 1_000}),
]  # fmt: skip

TABLES = {
    "salience_inversion": SALIENCE_INVERSION,
    "provenance_floor": PROVENANCE_FLOOR,
    "inversion_risk": INVERSION_RISK,
    "drift": DRIFT,
    "depth_pinned": DEPTH_PINNED,
    "orphaned_summary": ORPHANED_SUMMARY,
    "coverage_gap": COVERAGE_GAP,
    "summary_failed": SUMMARY_FAILED,
    "compaction_thrash": COMPACTION_THRASH,
}
ALL = [pytest.param(check, case, id=f"{check}: {case.why}") for check, table in TABLES.items() for case in table]


class TestCases:
    @pytest.mark.parametrize(("check", "case"), ALL)
    def test_says(self, check: str, case: Case) -> None:
        verdict = CHECKS[check](*last_of(case), LIMITS)
        assert (said(verdict), verdict.subjects) == (case.says, case.subjects)

    def test_every_check_has_its_table(self) -> None:
        assert set(TABLES) == set(CHECKS)
        for check, table in TABLES.items():
            words = {case.says.split(":")[0] for case in table}
            assert words >= {"holds", "over", "skipped"}, check
            assert len({case.why for case in table}) == len(table)


DRIFT_CAUSES = [
    ("spans_stable", [BEFORE, ground(200, 50, 0.45)], {}),
    ("cosine_not_rising", [BEFORE, ground(200, 40, 0.40)], {}),
    ("depth_penalty", [BEFORE, AFTER], {"scorer": {"name": "x", "depth_penalty": 0.1}}),
    ("overflow", [BEFORE, AFTER], {"eviction": "overflow"}),
    ("scorer_none", [BEFORE, AFTER], {"scorer": {"name": "none"}}),
]


@pytest.mark.parametrize(("cause", "rounds", "told"), DRIFT_CAUSES, ids=[cause for cause, *_ in DRIFT_CAUSES])
def test_drift_says_what_is_missing_for_an_inversion(cause: str, rounds: list[Fields], told: Fields) -> None:
    session, _ = last_of(Case("", rounds, "", told))
    assert drift_cause(session, LIMITS) == cause


class TestConformity:
    @pytest.mark.parametrize(("check", "case"), ALL)
    def test_input_is_left_alone_and_the_same_input_gives_the_same_answer(self, check: str, case: Case) -> None:
        session, event = last_of(case)
        kept = copy.deepcopy((session, event))
        assert CHECKS[check](session, event, LIMITS) == CHECKS[check](session, event, LIMITS)
        assert (session, event) == kept

    @pytest.mark.parametrize(("check", "case"), ALL)
    def test_a_state_that_was_stored_and_read_says_the_same(self, check: str, case: Case) -> None:
        session, event = last_of(case)
        restored = Session.from_bytes(session.to_bytes())
        assert restored == session
        assert CHECKS[check](restored, event, LIMITS) == CHECKS[check](session, event, LIMITS)

    @pytest.mark.parametrize("check", CHECKS)
    @pytest.mark.parametrize("told", [{}, CHAIN, {"topology": "flat"}], ids=["tree", "chain", "flat"])
    def test_a_round_that_tells_nothing_but_tokens_is_quiet(self, check: str, told: Fields) -> None:
        verdict = CHECKS[check](*last_of(Case("", [{"raw_tokens": 100, "summary_tokens": 0}], "", told)), LIMITS)
        assert not verdict.holds
        assert verdict.skipped or verdict.over

    @pytest.mark.parametrize("check", CHECKS)
    def test_what_holds_is_never_over_nor_skipped(self, check: str) -> None:
        for case in TABLES[check]:
            verdict = CHECKS[check](*last_of(case), LIMITS)
            assert not (verdict.holds and (verdict.over or verdict.skipped))
            assert (verdict.severity is not None) == verdict.holds

    def test_a_session_without_rounds_is_quiet(self) -> None:
        assert not fold(None, started(), "start", Rules()).findings


def held(check: str, rounds: list[Fields], told: Fields = NOTHING) -> bool:
    return CHECKS[check](*last_of(Case("", rounds, "", told)), LIMITS).holds


class TestMonotone:
    """Worse input never makes a condition that holds go away."""

    def test_less_raw(self) -> None:
        series = [held("salience_inversion", [BEFORE, ground(raw, 40, 0.45)]) for raw in range(400, -1, -50)]
        assert series == sorted(series)

    def test_fewer_spans(self) -> None:
        assert [held("provenance_floor", [ground(500, spans, None)]) for spans in range(30, -1, -1)] == [False] * 11 + [
            True
        ] * 20
        series = [held("salience_inversion", [BEFORE, ground(200, spans, 0.45)]) for spans in range(60, -1, -4)]
        assert series == sorted(series)

    def test_a_higher_cosine(self) -> None:
        series = [held("salience_inversion", [BEFORE, ground(200, 40, cosine / 100)]) for cosine in range(-100, 101, 10)]
        assert series == sorted(series)

    def test_more_rounds_at_the_deepest_level(self) -> None:
        series = [held("depth_pinned", [DEEP] * rounds) for rounds in range(1, 12)]
        assert series == [False] * 5 + [True] * 6

    def test_fewer_records_read(self) -> None:
        assert [held("coverage_gap", [read(records, 10)]) for records in range(10, -1, -1)] == [False] * 6 + [True] * 5

    def test_fuller(self) -> None:
        series = [held("compaction_thrash", [left(tokens)] * 3, OVERFLOW) for tokens in range(850, 1_000, 10)]
        assert series == sorted(series)

    def test_one_more_orphan(self) -> None:
        series = [held("orphaned_summary", [inventory(*[0] * orphans, 4)]) for orphans in range(5)]
        assert series == sorted(series)
