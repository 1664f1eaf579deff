"""The guard in the agent's own process: what it raises and returns, rolling back and accepting, the checkpoint twin."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

import compaction_monitor
from compaction_events.builders import at
from compaction_events.errors import ContractError
from compaction_events.findings import (
    AlertRaised,
    AlertResolved,
    CapDepth,
    EscalateToRaw,
    HaltAndRehydrate,
    InspectChildren,
    Plan,
    Rebalance,
    RebalanceOption,
    Recompact,
    RegenerateParent,
    Rehydrate,
    RunTrialRegeneration,
)
from compaction_monitor import CompactionGuard, CompactionInvariantError, SalienceInversionError
from compaction_monitor.guard.errors import Fall
from compaction_monitor.guard.guard import PASS_RAISES, GuardReport
from compaction_monitor.rules import AgentRules, Thresholds

Fields = dict[str, Any]


def left(raw: int, spans: int | None = None, cosine: float | None = None, depth: int | None = 2, **more: Any) -> Fields:
    """The set after a pass, of 1,000 tokens."""
    told = {"raw_tokens": raw, "summary_tokens": 1_000 - raw, "spans": spans, "cosine": cosine, "depth": depth, **more}
    return {name: value for name, value in told.items() if value is not None}


def inventory(*leaves: int) -> Fields:
    items = [
        {"summary_id": f"s{n}", "depth": 1, "tokens": 100, "leaf_spans": count, "expanded_tokens": 100 * count}
        for n, count in enumerate(leaves, 1)
    ]
    return {"summaries": items, "spans_method": "pointer"}


def guarded(**start: Any) -> CompactionGuard:
    return CompactionGuard(**{"source_spans": 100, "max_depth": 3, **start})


def shown(report: GuardReport) -> list[str]:
    return [f"{found.alert.status} {found.check} {found.alert.severity}" for found in report.findings]


BEFORE, AFTER = left(400, 60, 0.40), left(200, 50, 0.45)


class Case(NamedTuple):
    why: str
    passes: list[Fields]
    check: str
    plan: Plan | None
    start: Fields = {}  # noqa: RUF012 - never changed


RAISED = [
    Case("inverted, no inventory: the plan names its target", [BEFORE, AFTER], "salience_inversion",
         HaltAndRehydrate(target_raw_ratio=0.3)),
    Case("below the floor", [left(600, 19)], "provenance_floor", Rehydrate(target_spans=20)),
    Case("below the floor, nothing to expand", [left(600, 19, **inventory())], "provenance_floor",
         EscalateToRaw(what="spans", count=1, round=1)),
    Case("six rounds at the deepest level, spans falling", [left(600, 90 - n, None, 3) for n in range(6)], "depth_pinned",
         CapDepth(max_depth=2)),
    Case("six rounds at the deepest level, nothing falling: no order, but told", [left(600, 90, None, 3)] * 6,
         "depth_pinned", None),
    Case("a summary without a leaf", [left(600, **inventory(3, 0))], "orphaned_summary",
         EscalateToRaw(what="summaries", ids=("s2",), round=1)),
    Case("the summariser failed", [left(600, summary_kind="error")], "summary_failed", Recompact(round=1)),
    Case("of several the worst: the floor before the orphan", [left(600, 19, **inventory(0))], "provenance_floor",
         EscalateToRaw(what="spans", count=1, round=1)),
]  # fmt: skip


@pytest.mark.parametrize("case", RAISED, ids=[case.why for case in RAISED])
def test_raises(case: Case) -> None:
    guard = guarded(**case.start)
    for fields in case.passes[:-1]:
        assert shown(guard.after_pass(**fields)) == []
    with pytest.raises(SalienceInversionError) as raised:
        guard.after_pass(**case.passes[-1])
    error = raised.value
    assert (error.check, error.verdict, error.plan) == (case.check, case.check, case.plan)
    assert error.evidence["round"] == len(case.passes)
    assert str(error) == f"{case.check}: {next(f.alert.message for f in error.findings if f.check == case.check)}"


def test_every_check_that_raises_has_its_case() -> None:
    assert {case.check for case in RAISED} == PASS_RAISES


class TestRollback:
    def test_a_pass_that_was_undone_is_as_if_it_had_not_been(self) -> None:
        guard = guarded()
        guard.after_pass(**BEFORE)
        for _ in range(3):  # as often as it is tried, and always round 2 against round 1
            with pytest.raises(SalienceInversionError) as raised:
                guard.after_pass(**AFTER)
            assert {raised.value.evidence[name] for name in ("round", "previous_round")} == {1, 2}
            assert raised.value.evidence["previous_spans"] == 60
        assert guard.after_pass(**left(350, 60, 0.40)) == GuardReport((), (), None)

    def test_a_pass_that_was_accepted_is_silent_until_it_is_over(self) -> None:
        guard = guarded()
        guard.after_pass(**BEFORE)
        with pytest.raises(SalienceInversionError):
            guard.after_pass(**AFTER)
        guard.accept()
        again = guard.after_pass(**left(190, 45, 0.50))
        assert (shown(again), again.open) == ([], ("salience_inversion",))
        over = guard.after_pass(**left(350, 60, 0.40), cause="rehydration")
        assert (shown(over), over.open) == (["resolved salience_inversion critical"], ())
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**left(200, 50, 0.50))
        # It came back at once: rehydrating again would not last.
        assert raised.value.plan == CapDepth(max_depth=2, reachability=True)

    def test_worse_raises_again(self) -> None:
        guard = guarded()
        with pytest.raises(SalienceInversionError):
            guard.after_pass(**left(600, summary_kind="fallback"))
        guard.accept()
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**left(600, summary_kind="error"))
        assert raised.value.plan == EscalateToRaw(what="records", round=2)

    def test_a_new_orphan_raises_about_itself(self) -> None:
        guard = guarded()
        with pytest.raises(SalienceInversionError):
            guard.after_pass(**left(600, **inventory(0, 4)))
        guard.accept()
        assert shown(guard.after_pass(**left(600, **inventory(0, 4)))) == []
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**left(600, **inventory(0, 0)))
        assert raised.value.plan == EscalateToRaw(what="summaries", ids=("s2",), round=3)

    def test_accepting_nothing_changes_nothing(self) -> None:
        guard = guarded()
        guard.accept()
        guard.after_pass(**BEFORE)
        guard.accept()
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER)
        assert raised.value.evidence["previous_round"] == 1

    def test_what_was_undone_cannot_be_accepted_later(self) -> None:
        guard = guarded()
        guard.after_pass(**BEFORE)
        with pytest.raises(SalienceInversionError):
            guard.after_pass(**AFTER)
        guard.after_pass(**left(390, 60, 0.40))
        guard.accept()
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER)
        assert raised.value.evidence["previous_raw_ratio"] == 0.39


class TestReturned:
    def test_the_rest_is_returned_with_its_plan(self) -> None:
        guard = guarded(eviction="overflow", token_budget=1_000)
        reports = [guard.after_pass(**left(200, 50, 0.40)) for _ in range(3)]
        assert [shown(report) for report in reports] == [
            ["firing drift info"],  # a closed gate: it cannot be an inversion
            [],
            ["firing compaction_thrash warning"],
        ]
        assert reports[2].open == ("drift", "compaction_thrash")
        (thrash,) = reports[2].findings
        assert thrash.plan is not None
        assert (thrash.plan.action, thrash.alert.evidence["full_ratio"]) == ("raise_budget", 1.0)

    @pytest.mark.parametrize(
        ("raise_on", "raises"),
        [((), False), (("drift",), False), (("salience_inversion",), True)],
        ids=["nothing", "another", "this one"],
    )
    def test_what_raises_can_be_chosen(self, raise_on: tuple[str, ...], raises: bool) -> None:
        guard = guarded(raise_on=raise_on)
        guard.after_pass(**BEFORE)
        if raises:
            with pytest.raises(SalienceInversionError):
                guard.after_pass(**AFTER)
        else:
            report = guard.after_pass(**AFTER)
            assert shown(report) == ["firing salience_inversion critical"]
            assert report.findings[0].plan == HaltAndRehydrate(target_raw_ratio=0.3)

    def test_a_name_that_no_check_has(self) -> None:
        with pytest.raises(ValueError, match=r"raise_on: inversion, stail \(allowed: .*salience_inversion.*\)"):
            guarded(raise_on=["inversion", "stail", "stale"])

    def test_the_operators_rules_hold(self) -> None:
        guard = guarded(rules=AgentRules(thresholds=Thresholds(raw_ratio_floor=0.1), off=frozenset({"provenance_floor"})))
        guard.after_pass(**BEFORE)
        assert shown(guard.after_pass(**left(200, 10, 0.45))) == []

    def test_the_error_has_everything_found_in_the_pass(self) -> None:
        guard = guarded()
        guard.after_pass(**left(200, 50, 0.40))
        assert shown(guard.after_pass(**left(200, 50, 0.40))) == ["firing drift info"]
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**left(200, 40, 0.45))
        kinds = [(type(found.alert), found.check, found.plan) for found in raised.value.findings]
        assert kinds == [
            (AlertRaised, "salience_inversion", HaltAndRehydrate(target_raw_ratio=0.3)),
            (AlertResolved, "drift", None),
        ]


class TestFall:
    def test_how_much_of_the_fall_this_pass_caused(self) -> None:
        guard = guarded()
        guard.after_pass(**left(500, 60, 0.40))
        fall = guard.after_pass(**left(300, 40, 0.40), before=left(450, 55)).fall
        assert fall == pytest.approx(Fall(raw_ratio=0.2, raw_ratio_in_pass=0.15, spans=20, spans_in_pass=15))

    def test_the_first_pass_has_only_its_own(self) -> None:
        assert guarded().after_pass(**left(300), before=left(500, 60)).fall == Fall(None, 0.2, None, None)

    def test_an_empty_set_is_all_fallen(self) -> None:
        empty = {"raw_tokens": 0, "summary_tokens": 0}
        assert guarded().after_pass(**left(0), before={**empty, "spans": 5}).fall == Fall(None, 0.0, None, None)

    def test_not_told_not_known(self) -> None:
        assert guarded().after_pass(**BEFORE).fall is None

    def test_the_error_says_it_too(self) -> None:
        guard = guarded()
        guard.after_pass(**BEFORE)
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER, before=left(400, 60))
        assert raised.value.fall == Fall(0.2, 0.2, 10, 10)


class TestInput:
    def test_numbers_that_make_no_sense_change_nothing(self) -> None:
        guard = guarded()
        guard.after_pass(**BEFORE)
        with pytest.raises(ContractError) as refused:
            guard.after_pass(**left(200, -1, 7.0))
        assert {fault.field for fault in refused.value.faults} == {
            "after.distinct_source_spans",
            "after.query_cosine_retained",
        }
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER)
        assert raised.value.evidence["round"] == 2

    def test_a_time_without_zone_is_refused(self) -> None:
        guard = guarded()
        with pytest.raises(ContractError) as refused:
            guard.after_pass(**BEFORE, at=datetime(2026, 1, 1))  # noqa: DTZ001 - the point
        assert [fault.field for fault in refused.value.faults] == ["at"]

    def test_rounds_are_numbered_here(self) -> None:
        guard = guarded()
        guard.after_pass(**BEFORE, round=7)
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER, round=3)
        assert raised.value.evidence["round"] == 2

    def test_a_clock_that_stands_still_or_goes_back(self) -> None:
        times = iter([at(0), at(10), at(10), at(5)])
        guard = guarded(clock=lambda: next(times))
        for fields in (BEFORE, BEFORE):
            guard.after_pass(**fields)
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER)
        assert raised.value.findings[0].alert.lastReceived == at(10) + timedelta(microseconds=2)

    def test_an_agent_that_slept_for_a_week_goes_on(self) -> None:
        guard = guarded(clock=lambda: at(0))
        guard.after_pass(**BEFORE)
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**AFTER, at=at(7 * 24 * 60))
        assert raised.value.evidence["previous_round"] == 1

    def test_its_own_clock_is_the_wall_clock(self) -> None:
        guard = guarded()
        with pytest.raises(SalienceInversionError) as raised:
            guard.after_pass(**left(600, 19))
        assert abs(raised.value.findings[0].alert.lastReceived - datetime.now(UTC)) < timedelta(minutes=1)

    def test_numbers_of_an_array_library(self) -> None:
        np = pytest.importorskip("numpy")
        guard = guarded(source_spans=np.int64(100))
        guard.after_pass(**BEFORE)
        with pytest.raises(SalienceInversionError):
            guard.after_pass(
                raw_tokens=np.int64(200), summary_tokens=np.int32(800), spans=np.int64(50), cosine=np.float32(0.45), depth=2
            )


async def test_in_async_code() -> None:
    guard = guarded()
    guard.after_pass(**BEFORE)
    with pytest.raises(SalienceInversionError):
        guard.after_pass(**AFTER)


def test_in_many_threads_no_pass_is_lost() -> None:
    guard = guarded(raise_on=())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: guard.after_pass(**left(600, 90, 0.4)), range(400)))
    report = guard.after_pass(**left(600, 9, 0.4))
    assert [(found.check, found.alert.evidence["round"]) for found in report.findings] == [("provenance_floor", 401)]


ROOM: Fields = {"child_joint_entropy_bits": 100.0, "child_redundancy": 0.0, "bits_per_token": 1.0}
ENOUGH: Fields = {**ROOM, "budget_tokens": 100}
SHORT: Fields = {**ROOM, "budget_tokens": 80}
OPTIONS = (
    RebalanceOption(method="raise", cost_tokens=35, budget_tokens=115),
    RebalanceOption(method="split", cost_tokens=80, budget_tokens=80, parts=2),
)


class Regenerated(NamedTuple):
    why: str
    after: list[str]
    more: Fields
    verdict: str
    plan: Plan | None
    raises: bool = False


REGENERATED = [
    Regenerated("kept all and gained", ["abcdef"], ENOUGH, "stale", RegenerateParent(node_id="root", commit_trial=1)),
    Regenerated("kept all, gained, but no room", ["abcdef"], SHORT, "saturated",
                Rebalance(node_id="root", needed_tokens=100, options=OPTIONS, keep_trial=1), True),
    Regenerated("as many, but others", ["abxy"], SHORT, "saturated",
                Rebalance(node_id="root", needed_tokens=100, options=OPTIONS), True),
    Regenerated("as many, but others, though there is room", ["abxy"], {**ENOUGH, "children": ["m1", "m2"]}, "unstable",
                InspectChildren(node_id="root", children=("m1", "m2")), True),
    Regenerated("the same again", ["abcd"], ENOUGH, "stable", None),
    Regenerated("the same again, no room", ["abcd"], SHORT, "undecided",
                RunTrialRegeneration(node_id="root", trial_number=2, trials_max=3)),
    Regenerated("it shrank", ["ab"], ENOUGH, "ambiguous", RunTrialRegeneration(node_id="root", trial_number=2, trials_max=3)),
    Regenerated("it shrank three times", ["ab", "ab", "cd"], ENOUGH, "ambiguous",
                EscalateToRaw(what="node", node_id="root"), True),
    Regenerated("nothing tried yet", [], ENOUGH, "none", RunTrialRegeneration(node_id="root", trial_number=1, trials_max=3)),
    Regenerated("written from the raw log", ["xy"], {**SHORT, "from_raw": True}, "none", None),
    Regenerated("room not known: inferred", ["abxy"], {}, "saturated", Rebalance(node_id="root"), True),
]  # fmt: skip


@pytest.mark.parametrize("case", REGENERATED, ids=[case.why for case in REGENERATED])
def test_regeneration(case: Regenerated) -> None:
    guard = guarded()
    if not case.raises:
        found = guard.regeneration("abcd", *case.after, node_id="root", **case.more)
        assert (found.judgement.verdict, found.plan) == (case.verdict, case.plan)
        return
    with pytest.raises(CompactionInvariantError) as raised:
        guard.regeneration("abcd", *case.after, node_id="root", **case.more)
    error = raised.value
    assert (error.verdict, error.plan) == (case.verdict, case.plan)
    assert error.evidence["trials"] == len(case.after)
    assert str(error).startswith(f"root is {case.verdict} ({error.judgement.reason}): delta_ratio ")


def test_regeneration_that_raises_can_be_chosen() -> None:
    assert guarded(raise_on=()).regeneration("abcd", "abxy", **SHORT).judgement.verdict == "saturated"
    with pytest.raises(CompactionInvariantError):
        guarded(raise_on=["stale"]).regeneration("abcd", "abcdef", **ENOUGH)


def test_estimates_are_no_more_than_a_warning() -> None:
    with pytest.raises(CompactionInvariantError) as raised:
        guarded().regeneration("abcd", "abxy", **SHORT, inferred=True)
    assert (raised.value.judgement.severity, raised.value.judgement.inferred) == ("warning", True)


def test_the_package_costs_nothing_until_the_guard_is_asked_for() -> None:
    code = """
import sys
import compaction_monitor
assert "pydantic" not in sys.modules
from compaction_monitor import CompactionGuard
print(*sorted({name.split(".")[0] for name in sys.modules} & {"faust", "aiokafka", "prometheus_client", "typer", "sklearn"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_the_package_has_what_it_says_and_nothing_else() -> None:
    assert [getattr(compaction_monitor, name).__name__ for name in compaction_monitor.__all__] == compaction_monitor.__all__
    with pytest.raises(AttributeError, match="no attribute 'CompactionGuardian'"):
        _ = compaction_monitor.CompactionGuardian
