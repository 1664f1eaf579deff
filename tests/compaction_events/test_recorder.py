"""The recorder as a middleware would use it: whole sets of messages, pass after pass, known ones by their ids."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import compaction_monitor
from compaction_events import adapters
from compaction_events.entropy import entropy
from compaction_events.facts import (
    Basis,
    CheckpointWritten,
    ChildVersion,
    Composition,
    Eviction,
    Fact,
    PropositionStated,
    RoundCompleted,
    SessionEnded,
    Sources,
    SpansMethod,
    SummaryItem,
    SummaryKind,
    Topology,
    Trigger,
    Turns,
)
from compaction_events.recorder import Message, Pass, Recorder, Tokens
from tests.compaction_events.adapters.transcript import without_cosine

AT = datetime(2026, 5, 4, 9, tzinfo=UTC)


def recorder() -> Recorder:
    return Recorder("s", "agent", source="middleware", topology=Topology.tree, eviction=Eviction.continuous)


FIRST = Message("m1", "Serve port 8417 from conf/app.toml", typed=True)  # 34 bytes: 9 tokens
REPLY = Message("m2", "Did conf/app.toml", bulk="x" * 22)  # 17 + newline + 22: 10 tokens
SECOND = Message("m3", "Write logs/audit.log by level_name", typed=True)  # 34: 9
SUMMARY = Message("s1", "8417 in conf/app.toml", depth=1)  # 21: 6


def test_a_sliding_set_whose_messages_stay(tmp_path: Path) -> None:
    """Nobody counted tokens: all is estimated, the bulk too. A message that stays is known by its id, and is no new span."""
    made = recorder()
    found = [without_cosine(made.before([FIRST, REPLY, SECOND]))]
    first = made.after([SUMMARY, SECOND], Pass(1, AT))
    found += [without_cosine(first.after), without_cosine(made.before([SUMMARY, SECOND], Tokens(100, 40)))]
    second = made.after([Message("s2", "level_name in logs/audit.log", depth=2)], Pass(2, AT), Tokens(50, 40))
    found += [without_cosine(second.after)]
    assert found == [
        Composition(raw_tokens=28, summary_tokens=0, distinct_source_spans=2, summary_depth_max=0),
        Composition(raw_tokens=9, summary_tokens=6, distinct_source_spans=2, summary_depth_max=1),
        Composition(raw_tokens=54, summary_tokens=6, overhead_tokens=40, distinct_source_spans=2, summary_depth_max=1),
        Composition(raw_tokens=3, summary_tokens=7, overhead_tokens=40, distinct_source_spans=1, summary_depth_max=2),
    ]
    assert (first.before and without_cosine(first.before), second.source_spans_seen) == (found[0], 2)


def test_a_round_carries_what_is_known_of_the_pass() -> None:
    made = recorder()
    before = made.before([FIRST], query="port 8417")
    this = Pass(3, AT, Trigger.turns, claimed=9, read=8, summary_kind=SummaryKind.fallback, token_method="counted")
    found = made.after([SUMMARY], this, Tokens(20))
    assert found == RoundCompleted(
        session_id="s",
        agent="agent",
        round=3,
        at=AT,
        trigger=Trigger.turns,
        before=before,
        after=found.after,
        topology=Topology.tree,
        source_spans_seen=1,
        spans_method=SpansMethod.lexical,
        claimed_records=9,
        read_records=8,
        summary_kind=SummaryKind.fallback,
        token_method="counted",
        basis=Basis.inferred,
    )
    assert found.after.query_cosine_retained is not None and 0 < found.after.query_cosine_retained < 1


def test_a_session_nobody_typed_in_has_no_query_and_no_spans() -> None:
    """Unknown, not 0: a check that needs the cosine is skipped then."""
    made = recorder()
    assert made.before([REPLY]) == Composition(raw_tokens=10, summary_tokens=0, distinct_source_spans=0, summary_depth_max=0)


def test_after_without_before_is_the_caller_s_mistake() -> None:
    made = recorder()
    made.before([FIRST])
    made.after([SUMMARY], Pass(1, AT))
    with pytest.raises(RuntimeError, match=r"call before\(\)"):
        made.after([SUMMARY], Pass(2, AT))


def test_end() -> None:
    assert recorder().ended(AT) == SessionEnded(session_id="s", agent="agent", ended_at=AT)


def test_the_demo_session_goes_wrong_in_its_second_pass() -> None:
    """It ships in the package. After a resume the chain is broken: 4 of 29 records read, and no span is left."""
    [session] = adapters.find([Path(compaction_monitor.__file__).with_name("demo_session.jsonl")])
    reading = adapters.read_session(session)
    assert [
        (
            fact.round,
            fact.read_records,
            fact.claimed_records,
            fact.before and fact.before.distinct_source_spans,
            fact.after.distinct_source_spans,
        )
        for fact in reading
        if isinstance(fact, RoundCompleted)
    ] == [(1, 18, 23, 5, 5), (2, 4, 29, 10, 0)]
    assert (reading.quoted, list(reading.warnings)) == ({1: ((5, 5),), 2: ((0, 5), (0, 5))}, [])


def leaf(number: int, tokens: int, *, typed: bool = False) -> Message:
    return Message(f"m{number}", f"Message {number} names file_{number}", typed=typed, tokens=tokens)


def summary(name: str, depth: int, tokens: int, *, children: tuple[str, ...] = (), leaves: tuple[str, ...] = ()) -> Message:
    return Message(name, f"Summary {name} of file_{name}", depth=depth, tokens=tokens, children=children, leaves=leaves)


class Tree:
    """Three spans: m1 and m2, m3, m4. Two leaf summaries, of m1 m2 and of m3, then one of both; m4 stays raw."""

    def __init__(self, reachable: SpansMethod, *, budget: int | None = None) -> None:
        made = Recorder(
            "s", "agent", source="middleware", topology=Topology.tree, eviction=None, leaves=True, reachable=reachable,
            summary_budget_tokens=budget,
        )  # fmt: skip
        raw = [leaf(1, 100, typed=True), leaf(2, 50), leaf(3, 200, typed=True), leaf(4, 70, typed=True)]
        first, second = summary("a", 1, 20, leaves=("m1", "m2")), summary("b", 1, 30, leaves=("m3",))
        top = summary("c", 2, 25, children=("a", "b"))
        sets = [raw, [first, *raw[2:]], [first, second, raw[3]], [top, raw[3]]]
        self.facts: list[Fact] = []
        for number in (1, 2, 3):
            made.before(sets[number - 1])
            self.facts += made.passed(sets[number], Pass(number, AT))
        self.rounds = [fact for fact in self.facts if isinstance(fact, RoundCompleted)]


def test_a_tree_by_its_pointers() -> None:
    found = Tree(SpansMethod.pointer).rounds
    assert [
        (fact.spans_method, fact.summaries_total, fact.after.distinct_source_spans, fact.after.summary_depth_max)
        for fact in found
    ] == [(SpansMethod.pointer, 1, 3, 1), (SpansMethod.pointer, 2, 3, 1), (SpansMethod.pointer, 1, 3, 2)]
    a = SummaryItem(summary_id="a", depth=1, tokens=20, leaf_spans=1, expanded_tokens=150)
    b = SummaryItem(summary_id="b", depth=1, tokens=30, leaf_spans=1, expanded_tokens=200)
    c = SummaryItem(summary_id="c", depth=2, tokens=25, leaf_spans=2, expanded_tokens=350)
    assert [fact.summaries for fact in found] == [(a,), (a, b), (c,)]


def test_the_same_tree_whose_pointers_the_agent_cannot_follow() -> None:
    """The inventory is the same; but what stands is what the texts still say."""
    found = Tree(SpansMethod.lexical).rounds
    assert [(fact.spans_method, fact.after.distinct_source_spans) for fact in found] == [
        (SpansMethod.lexical, n) for n in (2, 1, 1)
    ]
    assert [fact.summaries for fact in found] == [fact.summaries for fact in Tree(SpansMethod.pointer).rounds]


def test_checkpoints_of_a_tree() -> None:
    """Once each, before the round that wrote it; an entropy only where summaries alone were read."""
    facts = Tree(SpansMethod.pointer, budget=40).facts
    measured = entropy(["Summary a of file_a", "Summary b of file_b"], "Summary c of file_c", 25)
    assert measured is not None
    common = {"session_id": "s", "version": 1, "written_at": AT, "retained": (), "budget_tokens": 40, "basis": Basis.inferred}

    children = (ChildVersion(node_id="a", version=1), ChildVersion(node_id="b", version=1))
    figures = {
        "child_joint_entropy_bits": measured.joint_bits,
        "child_redundancy": measured.redundancy,
        "bits_per_token": measured.bits_per_token,
    }

    def written(name: str, level: int, first: int, last: int, **fields: object) -> CheckpointWritten:
        return CheckpointWritten.model_validate(
            {**common, "node_id": name, "level": level, "turns": Turns(first=first, last=last), **fields}
        )

    assert [fact for fact in facts if isinstance(fact, CheckpointWritten)] == [
        written("a", 1, 0, 0, sources=Sources.raw),
        written("b", 1, 1, 1, sources=Sources.raw),
        written("c", 2, 0, 1, sources=Sources.children, children=children, **figures),
    ]  # fmt: skip
    assert [fact.type for fact in facts] == ["checkpoint.written", "round.completed"] * 3
    assert [fact.token_method for fact in facts if isinstance(fact, RoundCompleted)] == [None, None, "entropy=lzma2"]


def test_a_summary_whose_sources_are_gone_reaches_nothing() -> None:
    made = Recorder(
        "s", "agent", source="x", topology=Topology.tree, eviction=None, leaves=True, reachable=SpansMethod.pointer
    )  # fmt: skip
    made.before([leaf(1, 100, typed=True)])
    found = made.after([summary("a", 2, 20, children=("deleted",))], Pass(1, AT))
    assert (found.after.distinct_source_spans, found.summaries) == (
        0,
        (SummaryItem(summary_id="a", depth=2, tokens=20, leaf_spans=0, expanded_tokens=0),),
    )


def test_a_summary_that_was_there_from_the_start_is_no_pass_of_ours() -> None:
    made = Recorder("s", "agent", source="x", topology=Topology.chain, eviction=None)
    made.before([summary("old", 1, 20), FIRST])
    facts = list(made.passed([summary("old", 1, 20), SUMMARY], Pass(1, AT)))
    assert [fact.type for fact in facts] == ["round.completed"]


def test_a_tracked_rule_stands_while_anything_states_it() -> None:
    made = recorder()
    rule = Message("m1", "Never open port 8417 beside conf/app.toml", typed=True)
    found = []
    for messages in ([rule], [SUMMARY], []):
        made.before([rule])
        found.append(made.after(messages, Pass(1, AT)).propositions_retained)
    [stated] = made.made()
    assert stated.model_dump(exclude={"proposition"}) == {
        "type": "proposition.stated", "session_id": "s", "turn": 0, "span_id": "m1", "pinned": True,
    }  # fmt: skip
    assert isinstance(stated, PropositionStated)
    assert found == [(stated.proposition,), (stated.proposition,), ()]


def test_what_was_cleared_out_of_a_message_is_out_of_the_cosine() -> None:
    made = recorder()
    heavy = Message("m2", "", bulk="noise " * 50)
    before = made.before([FIRST, heavy], query="port 8417")
    after = made.after([FIRST, heavy._replace(bulk="Port 8417")], Pass(1, AT)).after
    assert before.query_cosine_retained is not None and after.query_cosine_retained is not None
    assert before.query_cosine_retained < after.query_cosine_retained


def test_the_same_messages_give_the_same_facts() -> None:
    first, again = (Tree(SpansMethod.pointer).facts for _ in range(2))
    assert first == again
