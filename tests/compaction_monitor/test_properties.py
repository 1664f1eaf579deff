"""What holds for every log: however it is cut, restarted, repeated, answered and timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compaction_events.builders import SESSION, acknowledged, at, completed, started
from compaction_events.codec import ce_id, encode
from compaction_events.facts import (
    EVENT_TYPES,
    OUTCOME_TYPES,
    CheckpointRegenerated,
    CheckpointWritten,
    Fact,
    PropositionMissed,
    PropositionStated,
    RemediationAcknowledged,
)
from compaction_events.findings import (
    MAX_FINDING_BYTES,
    Alert,
    RemediationRequested,
    RemediationWithdrawn,
)
from compaction_monitor.fold import expire, fold, tick
from compaction_monitor.harness import Offline, Published, milliseconds
from compaction_monitor.loop.conflicts import contradict, stands
from compaction_monitor.rules import Rules
from compaction_monitor.state.session import MAX_STATE_BYTES, Session
from tests.compaction_events.strategies import events
from tests.compaction_monitor.stories import SESSIONS, Move, Tick, play_move, stories, tell

LOOP = {"remediation_unacknowledged", "remediation_ineffective"}
BACK = st.integers(1, 40)
MANY = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


def by_session(published: Iterable[Published]) -> dict[str, list[Published]]:
    found: dict[str, list[Published]] = {name: [] for name in SESSIONS}
    for one in published:
        found[one.finding.session_id].append(one)
    return found


def alerts(published: Iterable[Published]) -> list[Published]:
    """The alerts of the checks: without orders, and without the loop's own two."""
    return [one for one in published if isinstance(one.finding, Alert) and one.finding.name not in LOOP]


class TestLog:
    @MANY
    @given(stories(sessions=3), st.integers(1, 9), st.sets(st.integers(0, 40)))
    def test_any_batching_and_any_restart_gives_the_same(self, moves: list[Move], size: int, restarts: set[int]) -> None:
        once, log = tell(moves)
        again = Offline(partitions=2)
        records = list(again.records(log))
        for start in range(0, len(records), size):
            if start // size in restarts:
                again.restart()
            again.feed_records(records[start : start + size], batch=size)
        assert by_session(again.published) == by_session(once.published)
        assert [rows.tables for rows in again.rows] == [rows.tables for rows in once.rows]
        assert again.counts == once.counts
        assert again.dead_letters == once.dead_letters == []

    @MANY
    @given(stories(sessions=2), st.integers(2, 3))
    def test_records_repeated_side_by_side_give_the_same(self, moves: list[Move], times: int) -> None:
        once, log = tell(moves)
        again = Offline(partitions=2)
        again.feed(fact for fact in log for _ in range(times))
        assert by_session(again.published) == by_session(once.published)

    @MANY
    @given(stories(sessions=2))
    def test_the_whole_log_once_more_gives_nothing_new(self, moves: list[Move]) -> None:
        log = nothing_ahead(tell(moves)[1])
        monitor = Offline(partitions=2)
        monitor.feed(log)
        before = list(monitor.published)
        opened = {name: open_alerts(monitor, name) for name in SESSIONS}
        monitor.feed(log)
        assert alerts(monitor.published) == alerts(before)
        assert {name: open_alerts(monitor, name) for name in SESSIONS} == opened

    @MANY
    @given(stories(sessions=2), st.integers(1, 9), st.sets(st.integers(0, 60)), st.dictionaries(st.integers(0, 40), BACK))
    def test_read_again_from_anywhere_gives_the_same_alerts(
        self, moves: list[Move], size: int, restarts: set[int], rewinds: dict[int, int]
    ) -> None:
        """As by a consumer that goes back, over and over, or a producer that sends again: in any batches, with restarts."""
        log = nothing_ahead(tell(moves)[1])
        once, again = Offline(partitions=2), Offline(partitions=2)
        once.feed(log)
        records = list(again.records(rewound(log, rewinds)))
        for start in range(0, len(records), size):
            if start // size in restarts:
                again.restart()
            again.feed_records(records[start : start + size], batch=size)
        assert by_session(alerts(again.published)) == by_session(alerts(once.published))

    @MANY
    @given(stories(ticks=True))
    def test_a_ce_id_names_one_publication(self, moves: list[Move]) -> None:
        monitor, _ = tell(moves)
        assert [one for one, n in Counter(found.ce_id for found in monitor.published).items() if n > 1] == []


def nothing_ahead(log: Iterable[Fact]) -> list[Fact]:
    """Without facts about a node or a proposition that is not known yet: they mean something only when told again."""
    known: set[tuple[str, str]] = set()
    kept: list[Fact] = []
    for fact in log:
        ahead = False
        match fact:
            case PropositionMissed():
                ahead = not {(fact.session_id, fact.node_id), (fact.session_id, fact.proposition)} <= known
            case CheckpointRegenerated(trial_number=int()):
                ahead = (fact.session_id, fact.node_id) not in known
            case PropositionStated():
                known.add((fact.session_id, fact.proposition))
            case CheckpointWritten() | CheckpointRegenerated():
                known.add((fact.session_id, fact.node_id))
        if not ahead:
            kept.append(fact)
    return kept


def rewound(log: Sequence[Fact], rewinds: dict[int, int]) -> list[Fact]:
    """The log, so many of its last facts once more at each of these places."""
    played: list[Fact] = []
    for end, fact in enumerate(log, 1):
        played.append(fact)
        played += log[max(0, end - rewinds.get(end - 1, 0)) : end]
    return played


def open_alerts(monitor: Offline, name: str) -> list[tuple[str, str, tuple[str, ...]]]:
    session = monitor.session(name)
    found = session.alerts if session else ()
    return sorted((alert.check, alert.severity, alert.subjects) for alert in found if alert.check not in LOOP)


class TestLoop:
    @MANY
    @given(stories(ticks=True))
    def test_alerts_of_the_checks_depend_on_neither_answers_nor_ticks(self, moves: list[Move]) -> None:
        told, log = tell(moves)
        events_only = Offline(partitions=2)
        events_only.feed(fact for fact in log if not isinstance(fact, RemediationAcknowledged))
        assert alerts(told.published) == alerts(events_only.published)

    @MANY
    @given(stories(ticks=True, moves=40))
    def test_no_two_open_orders_contradict(self, moves: list[Move]) -> None:
        def check(session: Session) -> None:
            standing = [order for order in session.orders if stands(order)]
            assert [(a.action, b.action) for a, b in combinations(standing, 2) if contradict(a, b)] == []

        watch(moves, check)

    @MANY
    @given(stories(ticks=True, moves=40))
    def test_every_order_ends_once(self, moves: list[Move]) -> None:
        seen: set[str] = set()
        gone: set[str] = set()

        def check(session: Session) -> None:
            now = {order.id for order in session.orders}
            assert len(now) == len(session.orders)
            assert not now & gone, "one that has ended is over"
            gone.update(seen - now)
            seen.update(now)

        monitor = watch(moves, check)
        seen |= {one.finding.id for one in monitor.published if isinstance(one.finding, RemediationRequested)}
        session = monitor.session(SESSION)
        standing = {order.id for order in session.orders} if session else set()
        ends = Counter({name[2]: n for name, n in monitor.counts.items() if name[0] == "orders_ended"})
        assert set(ends) <= {"completed", "rejected", "failed", "expired", "withdrawn"}
        assert sum(n for name, n in monitor.counts.items() if name[0] == "orders_ended") == len(seen - standing)

    @MANY
    @given(stories(ticks=True, moves=40))
    def test_nothing_is_called_back_that_was_not_sent_and_nothing_sent_twice(self, moves: list[Move]) -> None:
        monitor, _ = tell(moves)
        attempts: dict[str, int] = {}
        for one in monitor.published:
            if isinstance(one.finding, RemediationRequested):
                assert one.finding.attempt == attempts.get(one.finding.id, 0) + 1
                attempts[one.finding.id] = one.finding.attempt
            elif isinstance(one.finding, RemediationWithdrawn):
                assert one.finding.attempt == attempts[one.finding.id]

    @MANY
    @given(stories(ticks=True, moves=40))
    def test_an_alert_is_raised_then_resolved_then_gone(self, moves: list[Move]) -> None:
        monitor, _ = tell(moves)
        firing: dict[str, int] = {}
        over: set[str] = set()
        for one in monitor.published:
            if not isinstance(one.finding, Alert):
                continue
            assert one.finding.id not in over
            if one.finding.status == "firing":
                firing[one.finding.id] = firing.get(one.finding.id, 0) + 1
                assert one.finding.attempt == firing[one.finding.id]
            else:
                assert one.finding.attempt == firing.pop(one.finding.id)
                over.add(one.finding.id)
        session = monitor.session(SESSION)
        assert set(firing) == {alert.id for alert in (session.alerts if session else ())}

    @MANY
    @given(stories(ticks=True))
    def test_after_a_day_of_silence_nothing_is_left(self, moves: list[Move]) -> None:
        monitor, _ = tell(moves)
        monitor.tick(at(10_000))
        monitor.tick(at(10_000))
        assert [rows.tables for rows in monitor.rows] == [{"sessions": {}, "checkpoints": {}}] * 2
        left = Counter(
            one.finding.id for one in monitor.published if isinstance(one.finding, Alert) and one.finding.attempt == 1
        )
        assert all(n <= 2 for n in left.values())


def watch(moves: Sequence[Move], check: Callable[[Session], None]) -> Offline:
    """Play a story, and look at the session after every move."""
    monitor = Offline(partitions=2)
    for move in moves:
        play_move(monitor, move)
        session = monitor.session(SESSION)
        if session is not None:
            check(session)
    return monitor


class TestFold:
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(events((*EVENT_TYPES, *OUTCOME_TYPES)), max_size=8),
        st.booleans(),
        st.integers(0, 2**42),
    )
    def test_never_raises_on_valid_facts(self, facts: list[Fact], appended: bool, now_ms: int) -> None:
        session: Session | None = None
        for fact in (fact.model_copy(update={"session_id": SESSION}) for fact in facts):
            at_ms = milliseconds(fact.occurred_at) if appended and fact.occurred_at else None
            kept = None if session is None else session.to_bytes()
            folded = fold(session, fact, ce_id(fact), Rules(), at_ms)
            assert kept is None or (session is not None and session.to_bytes() == kept), "the input is left alone"
            for finding in folded.findings:
                assert len(encode(finding).value) <= MAX_FINDING_BYTES
            session = folded.session
            if session is not None:
                assert Session.from_bytes(session.to_bytes()) == session
                tick(SESSION, session, now_ms, Rules())
                assert expire(SESSION, session, Rules()).session is None

    @MANY
    @given(stories(moves=12), st.data())
    def test_never_raises_on_plausible_ones_in_any_order(self, moves: list[Move], data: st.DataObject) -> None:
        _, log = tell(moves)
        monitor = Offline(partitions=2)
        monitor.feed(data.draw(st.permutations(log)))
        assert monitor.dead_letters == []


WORST = "\x00" * 256
"""The longest id, of what JSON makes the most of."""


def test_a_state_and_a_finding_stay_bounded() -> None:
    """New orphans with the longest ids in every round, plans as long as they get, nobody ever answers."""
    for character in ("\x00", "🦀", "\\", "x"):
        monitor = Offline()
        monitor.feed([started(source_spans=10_000, controller="expected", max_depth=3)])
        for number in range(1, 60):
            monitor.feed([_hostile(number, character)])
            row = monitor.rows[0].tables["sessions"]
            assert all(len(value) <= MAX_STATE_BYTES for value in row.values())
        assert monitor.dead_letters == []
        assert {one.finding.type for one in monitor.published} > {"alert.raised", "remediation.requested"}
        assert max(len(encode(one.finding).value) for one in monitor.published) <= MAX_FINDING_BYTES


def _hostile(number: int, character: str) -> Fact:
    """About 130 summaries, 25 of them new orphans; every check that can fire does, by turns."""
    orphans = [
        {
            "summary_id": f"{number:03}-{i:02}".ljust(250, character),
            "depth": 1,
            "tokens": 1,
            "leaf_spans": 0,
            "expanded_tokens": 0,
        }
        for i in range(25)
    ]
    sound = [
        {"summary_id": f"sound-{i:02}".ljust(250, character), "depth": 2, "tokens": 1, "leaf_spans": 1, "expanded_tokens": 1}
        for i in range(100 if character != "\x00" else 60)
    ]
    return completed(
        number,
        raw_tokens=100 if number % 4 else 400,
        summary_tokens=900,
        distinct_source_spans=2_000 - number if number % 2 else 10,
        query_cosine_retained=number / 100,
        summary_depth_max=3,
        summaries=[*orphans, *sound],
        spans_method="pointer",
        summary_kind="error" if number % 3 else "ok",
        claimed_records=100,
        read_records=1 if number % 3 else 100,
        basis="inferred" if number % 5 else "measured",
    )


def _item(name: str, leaves: int) -> dict[str, object]:
    return {"summary_id": name, "depth": 2, "tokens": 1, "leaf_spans": leaves, "expanded_tokens": leaves}


def test_an_agent_with_the_longest_name() -> None:
    monitor = Offline()
    monitor.feed([started(WORST, agent=WORST, source_spans=100)])
    monitor.feed([completed(1, WORST, agent=WORST, distinct_source_spans=1, summary_depth_max=2)])
    monitor.feed([acknowledged(WORST, "accepted", 61, WORST)])
    assert [one.finding.type for one in monitor.published] == ["alert.raised", "remediation.requested"]
    assert max(len(encode(one.finding).value) for one in monitor.published) <= MAX_FINDING_BYTES


def test_ticks_alone_do_nothing() -> None:
    monitor = Offline()
    for minutes in (0, 1, 10_000):
        assert play_move(monitor, Tick(minutes)) is None
    assert monitor.published == []
