"""Every further format on a session written by hand: all facts of it, each figure worked out from the fixture."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from compaction_events import adapters
from compaction_events.adapters import Session, Trouble, Warned, Warnings
from compaction_events.codec import ce_id, encode
from compaction_events.facts import RoundCompleted, SummaryKind
from compaction_events.propositions import name
from tests.compaction_events.adapters import fixtures as made
from tests.compaction_events.adapters.fixtures import facts, minute, shape, write_lines

RULE = name(frozenset({"logs/audit.log", "fsync_all"}))
Json = dict[str, Any]


def at(number: float) -> str:
    return minute(number).isoformat().replace("+00:00", "Z")


def started(source: str, number: float, **fields: Any) -> Json:
    told = {"topology": "chain", "eviction": "overflow", **fields}
    return {"type": "session.started", "source": source, "started_at": at(number), **told}


def ended(number: float) -> Json:
    return {"type": "session.ended", "ended_at": at(number)}


def stated(span: str, turn: int = 1) -> Json:
    return {"type": "proposition.stated", "proposition": RULE, "span_id": span, "turn": turn, "pinned": True}


def written(node: str, number: float, level: int = 1, **fields: Any) -> Json:
    told = {"children": [], "retained": [], "sources": "raw", **fields}
    return {"type": "checkpoint.written", "node_id": node, "level": level, "version": 1, "written_at": at(number), **told}


def sized(raw: int, summary: int, spans: int, depth: int, overhead: int | None = None) -> Json:
    told = {"raw_tokens": raw, "summary_tokens": summary, "distinct_source_spans": spans, "summary_depth_max": depth}
    return told if overhead is None else {**told, "overhead_tokens": overhead}


def passed(number: int, time: float, before: Json, after: Json, seen: int, method: str, **fields: Any) -> Json:
    told = {"topology": "chain", "cause": "compaction", "spans_method": "lexical", "summary_kind": "ok", **fields}
    return {
        "type": "round.completed",
        "round": number,
        "at": at(time),
        "before": before,
        "after": after,
        "source_spans_seen": seen,
        "token_method": method,
        **told,
    }


def test_codex(tmp_path: Path) -> None:
    """What was typed stays. The sealed summary weighs what the next request had beside: 1,209 - 1,000 - 9."""
    path = write_lines(tmp_path / "x", made.codex_records())
    method = "before=token_count after=token_count summary=next_usage-known overhead=first_usage raw=utf8_bytes/4"
    assert [shape(fact) for fact in facts(path)] == [
        started("codex", 0, agent_version="0.9"),
        passed(1, 4, sized(4_000, 0, 1, 0, 1_000), sized(9, 200, 1, 1, 941), 1, method, token_budget=10_000),
        ended(5),
    ]


def test_codex_with_the_summary_s_text(tmp_path: Path) -> None:
    """Written on the spot: the text is there, and stands in the history as a message that nobody typed."""
    path = write_lines(tmp_path / "x", made.codex_records(message=made.SUMMARY, sealed=False))
    method = "before=token_count after=token_count summary=utf8_bytes/4 overhead=first_usage raw=rest"
    assert [shape(fact) for fact in facts(path)][1:3] == [
        written("w-1", 4),
        passed(1, 4, sized(4_000, 0, 1, 0, 1_000), sized(144, 6, 1, 1, 1_000), 1, method, token_budget=10_000),
    ]


def test_codex_before_it_wrote_histories(tmp_path: Path) -> None:
    """The user's newest messages stay, as many as fit into 20,000 tokens."""
    records = made.codex_records(message=made.SUMMARY, sealed=False, history=False)
    long = "x" * 79_990
    extra = [made.codex_line(3, "response_item", **made.codex_message("user", long)), typed(long)]
    path = write_lines(tmp_path / "x", [*records[:10], *extra, *records[10:]])
    [found] = [fact for fact in facts(path) if isinstance(fact, RoundCompleted)]
    assert (found.source_spans_seen, found.after.distinct_source_spans) == (2, 2)
    [session] = adapters.find([path])
    reading = adapters.codex.reading(session.paths, session.session_id)
    list(reading)
    assert [len(message.text) for message in reading.chain.messages] == [24, 79_990, 2]


def typed(text: str) -> Json:
    return made.codex_line(3, "event_msg", type="user_message", message=text)


def test_a_codex_summary_that_left_no_trace_is_of_unknown_kind(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x", made.codex_records(sealed=False))
    assert [fact.summary_kind for fact in facts(path) if isinstance(fact, RoundCompleted)] == [None]


def test_the_same_words_twice_are_two_codex_messages(tmp_path: Path) -> None:
    records = made.codex_records()
    again = [made.codex_line(3, "response_item", **made.codex_message("user", made.ASK)), typed(made.ASK)]
    path = write_lines(tmp_path / "x", [*records[:10], *again, *records[10:]])
    [found] = [fact for fact in facts(path) if isinstance(fact, RoundCompleted)]
    # The history has it once: the first of the two.
    assert (found.source_spans_seen, found.before and found.before.distinct_source_spans, found.after.raw_tokens) == (2, 2, 9)


@pytest.mark.parametrize("ids", [True, False], ids=["entries with ids", "entries by number"])
def test_pi(ids: bool, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x", made.pi_records(ids=ids))
    method = "before=tokensBefore after=usage summary=utf8_bytes/4 overhead=first_usage raw=rest"
    third, fifth = ("e3", "e5") if ids else ("entry-3", "entry-5")
    assert [shape(fact) for fact in facts(path)] == [
        started("pi", 1),
        stated(third),
        written(fifth, 5),
        passed(1, 5, sized(4_000, 0, 2, 0, 1_000), sized(194, 6, 2, 1, 1_000), 2, method, propositions_retained=[RULE]),
        ended(6),
    ]


def test_what_a_pi_user_went_back_from_is_out_of_the_set(tmp_path: Path) -> None:
    """The second message hangs on the first reply again: what it replaces is gone. Behind a pass nothing is known."""
    records = made.pi_records()
    branch = made.pi_entry(4.5, "message", "f1", "e2", **made.pi_message("user", "Go to port 9001 by conf/new.toml"))
    cut = made.pi_entry(5, "compaction", "e5", "f1", summary=made.SUMMARY, tokensBefore=5_000, firstKeptEntryId="f1")
    summary = made.pi_entry(6, "branch_summary", "f2", "e5", fromId="e4", summary="Of e3")
    behind = made.pi_entry(7, "message", "f3", "e1", **made.pi_message("user", "And again"))
    last = made.pi_entry(8, "compaction", "f4", "f3", summary="?", tokensBefore=50, firstKeptEntryId="f4")
    path = write_lines(tmp_path / "x", [*records[:5], branch, cut, summary, behind, last])
    [session] = adapters.find([path])
    reading = adapters.pi.reading(session.paths, session.session_id)
    found = [fact for fact in reading if isinstance(fact, RoundCompleted)]
    assert [(fact.source_spans_seen, reading.kept_entries[fact.round]) for fact in found] == [(2, 1), (3, 0)]


def test_copilot(tmp_path: Path) -> None:
    """A pass that was refused is none. The truncation drops the rule, and writes no summary."""
    path = write_lines(tmp_path / "x", made.copilot_records())
    method = "before=event after=event summary=utf8_bytes/4 overhead=counted raw=rest"
    common: Json = {"trigger": "budget", "token_budget": 8_000}
    assert [shape(fact) for fact in facts(path)] == [
        started("copilot", 0, agent_version="1.2"),
        stated("v4"),
        written("v7", 6),
        passed(
            1, 6, sized(4_000, 0, 2, 0, 1_000), sized(194, 6, 2, 1, 1_000), 2, method,
            propositions_retained=[RULE], claimed_records=3, **common,
        ),
        passed(
            2, 8, sized(894, 6, 2, 1, 0), sized(494, 6, 1, 1, 0), 2, method,
            propositions_retained=[], claimed_records=1, summary_kind="none", **common,
        ),
        ended(8),
    ]  # fmt: skip


def test_copilot_s_set_follows_rewinds_and_clearings(tmp_path: Path) -> None:
    first, *rest = made.copilot_records()
    rewind = made.copilot_event(5, "session.snapshot_rewind", "w1", upToEventId="v2", eventsRemoved=3)
    of_subagent = {**made.copilot_event(5, "user.message", "w2", content="A task"), "agentId": "sub"}
    clear = made.copilot_event(5, "session.context_cleared", "w3")
    seen = []
    for extra in ([rewind], [of_subagent], [clear]):
        path = write_lines(tmp_path / "x", [first, *rest[:4], *extra, rest[6]])
        [found] = [fact for fact in facts(path) if isinstance(fact, RoundCompleted)]
        seen.append((found.source_spans_seen, found.trigger))
    assert seen == [(1, "budget"), (2, "budget"), (0, "budget")]


def test_openhands_as_a_chain(tmp_path: Path) -> None:
    """The second pass swallows the first one's summary by its id; what that covered is reached through it."""
    folder = made.write_openhands(tmp_path, made.openhands_events(tree=False))
    first = {"summary_id": "c1-summary", "depth": 1, "tokens": 6, "leaf_spans": 1, "expanded_tokens": 17}
    second = {"summary_id": "c2-summary", "depth": 2, "tokens": 7, "leaf_spans": 2, "expanded_tokens": 33}
    assert [shape(fact) for fact in facts(folder)] == [
        started("openhands", 0),
        written("c1-summary", 3, turns={"first": 0, "last": 0}),
        passed(
            1, 3, sized(17, 0, 1, 0, 10), sized(0, 6, 1, 1, 10), 1, "utf8_bytes/4",
            claimed_records=2, summaries=[first], summaries_total=1,
        ),
        stated("p3"),
        written(
            "c2-summary", 7, 2, turns={"first": 0, "last": 1}, sources="children", retained=[RULE],
            children=[{"node_id": "c1-summary", "version": 1}],
        ),
        passed(
            2, 7, sized(26, 6, 2, 1, 10), sized(10, 7, 1, 2, 10), 2, "utf8_bytes/4",
            claimed_records=3, summaries=[second], summaries_total=1, propositions_retained=[RULE],
        ),
        ended(7),
    ]  # fmt: skip


def test_openhands_as_a_tree(tmp_path: Path) -> None:
    """Two summaries stand side by side, then one is written from both: the hierarchy is exact."""
    folder = made.write_openhands(tmp_path, made.openhands_events(tree=True))
    found = [fact for fact in facts(folder) if isinstance(fact, RoundCompleted)]
    assert [
        (fact.topology, fact.after.summary_depth_max, [(item.summary_id, item.leaf_spans) for item in fact.summaries or ()])
        for fact in found
    ] == [
        ("tree", 1, [("c1-summary", 1)]),
        ("tree", 1, [("c1-summary", 1), ("c2-summary", 1)]),
        ("tree", 2, [("c3-summary", 2)]),
    ]


@pytest.mark.parametrize(
    ("summary", "offset", "kind"), [(None, None, SummaryKind.none), (" ", 0, SummaryKind.empty), ("so far", 0, SummaryKind.ok)]
)
def test_what_kind_of_summary_openhands_wrote(
    summary: str | None, offset: int | None, kind: SummaryKind, tmp_path: Path
) -> None:
    events = [*made.openhands_events(tree=False)[:3], made.openhands_condensation(3, "c1", ["p1", "p2"], summary, offset)]
    [found] = [fact for fact in facts(made.write_openhands(tmp_path, events)) if isinstance(fact, RoundCompleted)]
    assert found.summary_kind == kind


def test_opencode(tmp_path: Path) -> None:
    path = tmp_path / "x"
    made.opencode_store(path).close()
    method = "before=usage after=usage summary=utf8_bytes/4 overhead=first_usage raw=rest"
    assert [shape(fact) for fact in facts(path)] == [
        started("opencode", 1, agent_version="1.3"),
        stated("m3"),
        written("m6", 6),
        passed(
            1, 6, sized(4_000, 0, 2, 0, 1_000), sized(194, 6, 2, 1, 1_000), 2, method,
            propositions_retained=[RULE], trigger="budget",
        ),
        ended(7),
    ]  # fmt: skip


def test_an_opencode_pass_that_failed_is_none_and_one_by_hand_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with closing(made.opencode_store(path)) as store, store:
        store.execute("UPDATE part SET data = ? WHERE message_id = 'm5'", ('{"type":"compaction","auto":false}',))
    assert [fact.trigger for fact in facts(path) if isinstance(fact, RoundCompleted)] == ["manual"]
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE message SET data = json_set(data, '$.error', 'refused') WHERE id = 'm6'")
    assert [fact for fact in facts(path) if isinstance(fact, RoundCompleted)] == []


WRITERS: dict[str, Callable[[Path], object]] = {
    "claude-code": lambda path: write_lines(
        path, [{"parentUuid": None, "sessionId": "s", "type": "user", "uuid": "u", "timestamp": made.stamp(0)}]
    ),
    "codex": lambda path: write_lines(path, made.codex_records()),
    "copilot": lambda path: write_lines(path, made.copilot_records()),
    "pi": lambda path: write_lines(path, made.pi_records()),
    "lossless-claw": lambda path: made.hierarchy(path, "lossless-claw"),
    "hermes-lcm": lambda path: made.hierarchy(path, "hermes-lcm"),
    "opencode": lambda path: made.opencode_store(path).close(),
}


@pytest.mark.parametrize("adapter", WRITERS)
@pytest.mark.parametrize("file", ["a.jsonl", "lcm.db", "notes.txt", "event-00000-a.json"])
def test_what_a_file_is_its_content_decides(adapter: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    WRITERS[adapter](path)
    assert [session.adapter for session in adapters.find([path])] == [adapter]


def test_every_format_is_found_in_a_folder(tmp_path: Path) -> None:
    endings = {"lossless-claw": "db", "hermes-lcm": "db", "opencode": "db"}
    for adapter, write in WRITERS.items():
        write(tmp_path / f"{adapter}.{endings.get(adapter, 'jsonl')}")
    made.write_openhands(tmp_path, made.openhands_events(tree=False))
    warnings = Warnings()
    assert sorted(session.adapter for session in adapters.find([tmp_path], warnings)) == sorted([*WRITERS, "openhands"])
    assert sorted([*WRITERS, "openhands"]) == sorted(adapter.NAME for adapter in adapters.ADAPTERS)
    assert list(warnings) == []


@pytest.mark.parametrize("adapter", WRITERS)
def test_read_again_it_is_the_same_and_no_word_of_it_is_told(adapter: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    WRITERS[adapter](path)
    first, again = ([(encode(fact).value, ce_id(fact)) for fact in facts(path)] for _ in range(2))
    assert first == again
    wire = b"".join(value for value, _ in first).lower()
    assert not [word for word in (b"port 8417", b"conf/app", b"audit", b"span_0") if word in wire]


@pytest.mark.parametrize("adapter", ["codex", "copilot", "pi"])
def test_fields_of_any_other_type_break_nothing(adapter: str, tmp_path: Path) -> None:
    """Every field of every record is replaced by each of these values, one at a time; a fault would be an exception."""
    path = tmp_path / "x"
    WRITERS[adapter](path)
    records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    head, strange = records[0], [None, 7, -1, "x", [], [None, 7], {"type": 7}, True]
    spoilt = [
        {**record, field: value if field != "payload" else {**payload, inner: value}}
        for value in strange
        for record in records[1:]
        for payload in [record.get("payload", record.get("data", record.get("message", {})))]
        for field in record
        for inner in (payload if field == "payload" else ("",))
    ]
    assert facts(write_lines(path, [head, *spoilt]))


@pytest.mark.parametrize("adapter", ["codex", "copilot", "pi"])
def test_a_line_of_something_else_is_reported(adapter: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    WRITERS[adapter](path)
    with path.open("ab") as file:
        file.write(b'{"note": 1}\n{"torn')
    [session] = adapters.find([path])
    reading = adapters.read_session(session)
    list(reading)
    last = len(path.read_bytes().splitlines())
    assert list(reading.warnings) == [
        Warned(path, Trouble.foreign_line, last - 1, 1),
        Warned(path, Trouble.torn_line, last, 1),
    ]


def test_damaged_databases_and_events_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    with closing(sqlite3.connect(tmp_path / "b.db")) as store, store:
        store.execute("CREATE TABLE messages (id)")
    (tmp_path / "event-00000-x.json").write_text("{")
    warnings = Warnings()
    assert adapters.find([tmp_path], warnings) == []
    assert list(warnings) == [
        Warned(tmp_path / name, Trouble.foreign_file, 0, 1) for name in ("a.db", "b.db", "event-00000-x.json")
    ]


def test_a_damaged_event_is_passed_over(tmp_path: Path) -> None:
    folder = made.write_openhands(tmp_path, made.openhands_events(tree=False)) / "events"
    (folder / "event-00002-p2.json").write_text("{")
    [session] = adapters.find([folder])
    reading = adapters.read_session(session)
    assert len([fact for fact in reading if isinstance(fact, RoundCompleted)]) == 2
    assert list(reading.warnings) == [Warned(folder / "event-00002-p2.json", Trouble.not_json, 0, 1)]


def test_a_database_vanishes_between_finding_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    made.opencode_store(path).close()
    [session] = adapters.find([path])
    path.unlink()
    reading = adapters.read_session(session)
    assert (list(reading), list(reading.warnings)) == ([], [Warned(path, Trouble.unreadable_file, 0, 1)])


def test_known_folders_of_every_agent_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    places = {
        "codex": ".codex/sessions/2026/05/04/rollout-1.jsonl",
        "copilot": ".copilot/session-state/x/events.jsonl",
        "pi": ".openclaw/agents/main/sessions/x.jsonl",
        "lossless-claw": ".openclaw/lcm.db",
        "hermes-lcm": ".hermes/lcm.db",
        "opencode": ".local/share/opencode/opencode.db",
    }
    for adapter, place in places.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        WRITERS[adapter](tmp_path / place)
    made.write_openhands(tmp_path / ".openhands" / "conversations", made.openhands_events(tree=False))
    found: list[Session] = adapters.find()
    assert sorted(session.adapter for session in found) == sorted([*places, "openhands"])
