"""The Claude Code adapter on hand-made transcripts: each rule once, with the case that would break a simpler reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compaction_events import adapters
from compaction_events.codec import ce_id, encode
from compaction_events.facts import (
    Basis,
    CheckpointWritten,
    ChildVersion,
    Composition,
    Eviction,
    PropositionStated,
    RoundCompleted,
    Scorer,
    SessionEnded,
    SessionStarted,
    Sources,
    SpansMethod,
    SummaryKind,
    Topology,
    Trigger,
)
from compaction_events.measures import scorer_name
from compaction_events.propositions import name
from tests.compaction_events.adapters.transcript import SESSION, Transcript, facts, minute, rounds, without_cosine

ASK = "Serve port 8417 from conf/app.toml"  # 34 bytes: 9 tokens; two anchors
DONE = "Port 8417 and conf/app.toml done"  # 32 bytes: 8 tokens
FRAME = "This session is being continued from a previous conversation.\n\nSummary:\n"


def opened() -> Transcript:
    """A first message and its reply: 9 of the 1,009 tokens were said, so the overhead is 1,000."""
    transcript = Transcript()
    transcript.user(ASK)
    transcript.reply(DONE, 1_009)
    return transcript


def only_round(transcript: Transcript, path: Path) -> RoundCompleted:
    [found] = rounds(transcript.write(path / "a.jsonl"))
    return found


def test_two_passes_from_start_to_end(tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary(2_000)
    transcript.summary("Port 8417, conf/app.toml")  # 24 bytes: 6 tokens
    transcript.reply("Go on", 1_100)
    transcript.user("Also write logs/audit.log with level_name")
    transcript.reply("Writing logs/audit.log")
    transcript.boundary(2_500, "manual")
    transcript.summary("Audit in logs/audit.log by level_name")  # 37 bytes: 10 tokens
    transcript.reply("Done", 1_050)

    found = facts(transcript.write(tmp_path / "any.name"))

    common: dict[str, Any] = {
        "session_id": SESSION,
        "agent": "claude-code",
        "topology": Topology.chain,
        "spans_method": SpansMethod.lexical,
        "summary_kind": SummaryKind.ok,
        "token_method": "before=preTokens after=usage summary=utf8_bytes/4 overhead=first_usage raw=rest",
        "basis": Basis.inferred,
    }

    def made(raw: int, summary: int, spans: int, depth: int) -> Composition:
        return Composition(
            raw_tokens=raw, summary_tokens=summary, overhead_tokens=1_000, distinct_source_spans=spans, summary_depth_max=depth
        )

    assert [
        fact.model_copy(update={"before": without_cosine(fact.before), "after": without_cosine(fact.after)})
        if isinstance(fact, RoundCompleted) and fact.before is not None
        else fact
        for fact in found
    ] == [
        SessionStarted(
            session_id=SESSION,
            agent="claude-code",
            agent_version="2.1.29",
            started_at=minute(1),
            topology=Topology.chain,
            scorer=Scorer(name=scorer_name()),
            eviction=Eviction.overflow,
            source="claude-code",
        ),
        CheckpointWritten(
            session_id=SESSION,
            node_id="u4",
            level=1,
            version=1,
            written_at=minute(3),
            retained=(),
            sources=Sources.raw,
            basis=Basis.inferred,
        ),
        RoundCompleted(
            **common,
            round=1,
            at=minute(3),
            trigger=Trigger.budget,
            before=made(1_000, 0, 1, 0),
            after=made(94, 6, 1, 1),
            source_spans_seen=1,
            claimed_records=2,
            read_records=2,
        ),
        # The second summary is written out of the first, and of what was said since.
        CheckpointWritten(
            session_id=SESSION,
            node_id="u9",
            level=2,
            version=1,
            written_at=minute(8),
            retained=(),
            children=(ChildVersion(node_id="u4", version=1),),
            sources=Sources.children,
            basis=Basis.inferred,
        ),
        RoundCompleted(
            **common,
            round=2,
            at=minute(8),
            trigger=Trigger.manual,
            # The span that stood and the one typed since; the second summary names the second alone.
            before=made(1_494, 6, 2, 1),
            after=made(40, 10, 1, 2),
            source_spans_seen=2,
            claimed_records=4,
            read_records=4,
        ),
        SessionEnded(session_id=SESSION, agent="claude-code", ended_at=minute(10)),
    ]


def sidechain(transcript: Transcript) -> None:
    transcript.user("a subagent's task", isSidechain=True)


NOT_TYPED: dict[str, Callable[[Transcript], Any]] = {
    "a tool's result comes in the user's name": lambda t: t.user(
        [{"type": "tool_result", "tool_use_id": "t1", "content": "8417"}]
    ),
    "meta: the tool's own notes": lambda t: t.user("Caveats of the tool", isMeta=True),
    "a subagent was told, not this agent": sidechain,
    "a summary is what the tool says": lambda t: t.summary("so far"),
    "no content at all": lambda t: t.user([]),
    "content of another type": lambda t: t.user(7),
    "no message": lambda t: t.record("user"),
    **{
        f"the tool's marker {marker}": lambda t, marker=marker: t.user(marker + " rest")  # type: ignore[misc]
        for marker in (
            "<command-name>",
            "<local-command-stdout>",
            "Caveat:",
            "[Request interrupted by user]",
            "<system-reminder>",
            "<task-notification>",
            "<bash-input>",
            "This session is being continued",
            "Stop hook",
            "Base directory",
        )
    },
}


@pytest.mark.parametrize("why", NOT_TYPED)
def test_what_the_user_did_not_type_opens_no_span(why: str, tmp_path: Path) -> None:
    transcript = opened()
    NOT_TYPED[why](transcript)
    transcript.reply("yes")
    transcript.boundary()
    found = only_round(transcript, tmp_path)
    assert (found.source_spans_seen, found.before and found.before.distinct_source_spans) == (1, 1)


def test_an_image_alone_is_a_message_too(tmp_path: Path) -> None:
    transcript = opened()
    transcript.user([{"type": "image", "source": {"data": "aGk="}}])
    transcript.boundary()
    assert only_round(transcript, tmp_path).source_spans_seen == 2


class Tokens(NamedTuple):
    """How the count after a pass is found: the metadata, the usage of the next replies, and the split."""

    why: str
    metadata: dict[str, Any]
    usages: tuple[int | None, ...]
    after: tuple[int, int, int | None]  # raw, summary, overhead
    method: str


SUMMARY = "Port 8417, conf/app.toml"  # 6 tokens
METHOD = "before=preTokens after={} summary=utf8_bytes/4 overhead={} raw=rest"


@pytest.mark.parametrize(
    "case",
    [
        Tokens("the next usage, if there is no other", {}, (1_100,), (94, 6, 1_000), METHOD.format("usage", "first_usage")),
        Tokens(
            "a reply without usage, or with zeros only, was made by the tool itself",
            {},
            (None, 0, 1_200),
            (194, 6, 1_000),
            METHOD.format("usage", "first_usage"),
        ),
        Tokens(
            "the boundary's count goes first; it knows no overhead",
            {"postTokens": 300},
            (1_400,),
            (294, 6, None),
            METHOD.format("postTokens", "first_usage,none_after"),
        ),
        Tokens("nothing is left but the text", {}, (), (0, 6, None), METHOD.format("estimate", "first_usage,none_after")),
        Tokens(
            "a count smaller than the summary's estimate is not exceeded",
            {"postTokens": 4},
            (),
            (0, 4, None),
            METHOD.format("postTokens", "first_usage,none_after"),
        ),
        Tokens("a count that is none", {"postTokens": "many"}, (1_100,), (94, 6, 1_000), METHOD.format("usage", "first_usage")),
        Tokens("less than the overhead of the start", {}, (500,), (0, 6, 494), METHOD.format("usage", "first_usage")),
    ],
    ids=lambda case: case.why,
)
def test_tokens_after_a_pass(case: Tokens, tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary(**case.metadata)
    transcript.summary(SUMMARY)
    for usage in case.usages:
        if usage == 0:
            zeros = {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
            transcript.record("assistant", message={"model": "<synthetic>", "content": [], "usage": zeros})
        else:
            transcript.reply("on", usage)
    found = only_round(transcript, tmp_path)
    after = found.after
    assert ((after.raw_tokens, after.summary_tokens, after.overhead_tokens), found.token_method) == (case.after, case.method)


def test_before_is_estimated_where_the_boundary_has_no_count(tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary(preTokens=None)
    found = only_round(transcript, tmp_path)
    assert found.before is not None
    assert (without_cosine(found.before), found.token_method) == (
        Composition(raw_tokens=17, summary_tokens=0, overhead_tokens=1_000, distinct_source_spans=1, summary_depth_max=0),
        "before=estimate after=estimate summary=utf8_bytes/4 overhead=first_usage,none_after raw=rest",
    )


def test_a_file_that_begins_with_a_boundary(tmp_path: Path) -> None:
    """What was before is in a file that is not here; the pass is told all the same, and begins the session."""
    transcript = Transcript()
    metadata = {"trigger": "auto", "preTokens": 2_000}
    transcript.record("system", uuid=None, subtype="compact_boundary", compactMetadata=metadata)
    transcript.summary(SUMMARY)
    transcript.reply("on", 1_100)
    found = facts(transcript.write(tmp_path / "a.jsonl"))
    assert [fact.type for fact in found] == ["session.started", "checkpoint.written", "round.completed", "session.ended"]
    assert isinstance(found[2], RoundCompleted)
    assert (found[2].before, without_cosine(found[2].after)) == (
        Composition(raw_tokens=2_000, summary_tokens=0, distinct_source_spans=0, summary_depth_max=0),
        Composition(raw_tokens=1_094, summary_tokens=6, distinct_source_spans=0, summary_depth_max=1),
    )


def test_overhead_is_not_guessed_where_the_file_begins_midway(tmp_path: Path) -> None:
    transcript = Transcript(parent="u0")
    transcript.user(ASK)
    transcript.reply(DONE, 1_009)
    transcript.boundary(2_000)
    transcript.summary(SUMMARY)
    transcript.reply("on", 1_100)
    found = only_round(transcript, tmp_path)
    assert found.before is not None
    assert (without_cosine(found.before), without_cosine(found.after), found.token_method) == (
        Composition(raw_tokens=2_000, summary_tokens=0, distinct_source_spans=1, summary_depth_max=0),
        Composition(raw_tokens=1_094, summary_tokens=6, distinct_source_spans=1, summary_depth_max=1),
        METHOD.format("usage", "unknown"),
    )


def test_a_message_typed_before_the_first_reply_after_a_pass_is_no_survivor(tmp_path: Path) -> None:
    """The usage counts it, but the pass did not keep it: spans after are those of before that still stand."""
    transcript = opened()
    transcript.boundary()
    transcript.summary("Nothing of note")
    transcript.user("Go to port 9001 by conf/new.toml")
    transcript.reply("on", 1_100)
    transcript.boundary()
    first, second = rounds(transcript.write(tmp_path / "a.jsonl"))
    assert [
        (found.before and found.before.distinct_source_spans, found.after.distinct_source_spans, found.source_spans_seen)
        for found in (first, second)
    ] == [(1, 0, 1), (1, 0, 2)]


def test_a_file_that_the_tool_reads_again_is_raw_and_no_evidence_of_a_span(tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary()
    transcript.summary("Nothing of note")
    content = {"type": "text", "file": {"filePath": "conf/app.toml", "content": "port = 8417"}}
    transcript.record("attachment", attachment={"type": "file", "filename": "conf/app.toml", "content": content})
    transcript.record("attachment", attachment={"type": "hook_success", "content": "noise " * 100})
    found = only_round(transcript, tmp_path)
    # "text", "conf/app.toml" and "port = 8417" in lines: 30 bytes.
    assert without_cosine(found.after) == Composition(
        raw_tokens=8, summary_tokens=4, distinct_source_spans=0, summary_depth_max=1
    )


@pytest.mark.parametrize(
    ("text", "kind", "tokens"),
    [
        pytest.param(FRAME + "Port 8417.", SummaryKind.ok, 21, id="a summary in its frame"),
        pytest.param(FRAME, SummaryKind.empty, 0, id="the frame alone says nothing"),
        pytest.param(
            FRAME + "\nIf you need specific details from before, read the full transcript at: /x/y.jsonl\n"
            "Please continue the conversation from where we left it off.",
            SummaryKind.empty,
            0,
            id="nor does the frame's end",
        ),
        pytest.param("", SummaryKind.empty, 0, id="no text"),
        pytest.param(None, SummaryKind.none, 0, id="no summary record"),
    ],
)
def test_what_kind_of_summary(text: str | None, kind: SummaryKind, tokens: int, tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary()
    if text is not None:
        transcript.summary(text)
    found = only_round(transcript, tmp_path)
    assert (found.summary_kind, found.after.summary_tokens) == (kind, tokens)


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [("auto", Trigger.budget), ("manual", Trigger.manual), ("later_invention", Trigger.other), (7, None)],
)
def test_trigger(trigger: Any, expected: Trigger | None, tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary(trigger=trigger)
    assert only_round(transcript, tmp_path).trigger == expected


def test_two_boundaries_without_a_reply_between_are_two_rounds(tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary()
    transcript.summary(SUMMARY)
    transcript.boundary(1_500)
    transcript.summary(SUMMARY)
    assert [(found.round, found.at, found.after.summary_depth_max) for found in rounds(transcript.write(tmp_path / "a"))] == [
        (1, minute(3), 1),
        (2, minute(5), 2),
    ]


def test_quoted_messages_by_the_stretch_they_come_from(tmp_path: Path) -> None:
    transcript = opened()
    transcript.user("ok")  # under 10 characters: not counted
    transcript.user("Never drop the AUDIT -- table, whatever else happens")
    transcript.boundary()
    # As in the message by letters and digits only; 30 characters are enough.
    transcript.summary("They said: never drop the audit table; whatever comes.")
    transcript.user("Please keep to metric units")
    transcript.boundary()
    transcript.summary("please keep to metric units")
    [session] = adapters.find([transcript.write(tmp_path / "a.jsonl")])
    reading = adapters.read_session(session)
    list(reading)
    assert reading.quoted == {1: ((1, 2),), 2: ((0, 2), (1, 1))}


def test_the_same_file_gives_the_same_bytes_and_a_longer_one_the_same_ids(tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary()
    transcript.summary(SUMMARY)
    transcript.reply("on", 1_100)
    path = transcript.write(tmp_path / "a.jsonl")
    first, again = ([encode(fact) for fact in facts(path)] for _ in range(2))
    assert first == again
    transcript.reply("and on", 1_150)
    longer = facts(transcript.write(path))
    # The end moves; what happened before it is the same fact.
    assert [ce_id(fact) for fact in longer[:-1]] == [ce_id(fact) for fact in facts(path)[:-1]]
    assert [encode(fact) for fact in longer[:-1]] == first[:-1]


def test_no_word_of_the_session_is_in_the_facts(tmp_path: Path) -> None:
    transcript = Transcript()
    transcript.user("Zebra crossing at conf/zebra.toml")
    transcript.answer([{"type": "tool_use", "name": "Bash", "input": {"command": "grep zebra"}}], 900)
    transcript.user([{"type": "tool_result", "content": "zebra zebra"}])
    transcript.boundary()
    transcript.summary("Zebra in conf/zebra.toml")
    transcript.reply("zebra", 950)
    wire = b"".join(encode(fact).value for fact in facts(transcript.write(tmp_path / "a.jsonl")))
    assert b"zebra" not in wire.lower()


def test_constraints_of_the_user_s_are_tracked(tmp_path: Path) -> None:
    """The rule is in the summary in other words, the wish is not; what the agent says constrains nothing."""
    transcript = Transcript()
    transcript.user("Never write to conf/app.toml. Keep logs/audit.log short, please.")
    transcript.reply("I must not touch conf/other.toml", 1_009)
    transcript.boundary()
    transcript.summary("conf/app.toml is read-only")
    transcript.reply("on", 1_100)
    found = facts(transcript.write(tmp_path / "a.jsonl"))
    rule, wish = name(frozenset({"conf/app.toml"})), name(frozenset({"logs/audit.log"}))
    assert [fact for fact in found if isinstance(fact, PropositionStated)] == [
        PropositionStated(session_id=SESSION, proposition=rule, turn=0, span_id="u1", pinned=True),
        PropositionStated(session_id=SESSION, proposition=wish, turn=0, span_id="u1", pinned=False),
    ]
    assert [fact.propositions_retained for fact in found if isinstance(fact, RoundCompleted)] == [(rule,)]
    assert [fact.retained for fact in found if isinstance(fact, CheckpointWritten)] == [(rule,)]


def test_a_subagent_s_file_is_a_session_of_its_own(tmp_path: Path) -> None:
    """The task it was given is what its user typed; its records in the session's file stay out of the session."""
    transcript = opened()
    transcript.user("Serve port 9001 from conf/side.toml", isSidechain=True, agentId="agent-7")
    transcript.boundary(isSidechain=True)
    main = transcript.write(tmp_path / "a.jsonl")
    side = Transcript()
    for number in (1, 2):
        side.user(f"Serve port 900{number} from conf/side.toml", isSidechain=True, agentId="agent-7")
        side.parent = f"u{number}"
    side.record(
        "system", subtype="compact_boundary", isSidechain=True, agentId="agent-7",
        compactMetadata={"trigger": "auto", "preTokens": 900},
    )  # fmt: skip
    other = side.write(tmp_path / "b.jsonl")
    assert [(fact.session_id, fact.source_spans_seen) for fact in rounds(main, other)] == [
        (SESSION, 1),
        (f"{SESSION}/agent-7", 2),
    ]


def test_a_microcompaction_clears_results_of_tools_and_is_no_round(tmp_path: Path) -> None:
    transcript = opened()
    transcript.user([{"type": "tool_result", "tool_use_id": "t1", "content": "x" * 400}])
    transcript.user([{"type": "tool_result", "tool_use_id": "t2", "content": "y" * 40}])
    metadata = {"trigger": "auto", "preTokens": 1_200, "tokensSaved": 100, "compactedToolIds": ["t1"]}
    transcript.beside("system", subtype="microcompact_boundary", microcompactMetadata=metadata)
    transcript.boundary(preTokens=None)
    found = only_round(transcript, tmp_path)
    # 9 + 8 tokens were said, and the second result has 41 bytes: 11.
    assert (found.round, found.before and found.before.raw_tokens) == (1, 28)


def test_a_fork_has_the_context_of_its_origin_but_does_not_tell_its_rounds_again(tmp_path: Path) -> None:
    transcript = Transcript("session-f")
    copied = {"forkedFrom": {"sessionId": SESSION, "messageUuid": "x"}}
    transcript.user(ASK, **copied)
    transcript.record(
        "system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 2_000}, **copied
    )  # fmt: skip
    transcript.user(SUMMARY, isCompactSummary=True, **copied)
    transcript.user("Go to port 9001 by conf/new.toml")
    transcript.boundary(2_100)
    transcript.summary("Port 9001 by conf/new.toml")
    found = facts(transcript.write(tmp_path / "a.jsonl"))
    assert [fact.type for fact in found] == ["session.started", "checkpoint.written", "round.completed", "session.ended"]
    assert [
        (fact.round, fact.source_spans_seen, fact.after.summary_depth_max) for fact in found if isinstance(fact, RoundCompleted)
    ] == [(2, 2, 2)]


def test_what_only_fits_into_the_large_window_was_in_it(tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary(200_000)
    transcript.boundary(200_001)
    found = rounds(transcript.write(tmp_path / "a.jsonl"))
    assert [fact.token_budget for fact in found] == [None, 1_000_000]


@pytest.mark.parametrize("listed", [{"allUuids": ["u1"]}, {"uuids": ["u1"]}])
def test_preserved_messages_stay(listed: dict[str, Any], tmp_path: Path) -> None:
    transcript = opened()
    transcript.boundary(preservedMessages=listed)
    transcript.summary("Nothing of note")
    found = only_round(transcript, tmp_path)
    # The first message, 9 tokens, is not evicted; of the rest one record was covered.
    assert (found.after.raw_tokens, found.claimed_records, found.after.distinct_source_spans) == (9, 1, 1)
