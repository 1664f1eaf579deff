"""Small sessions in the formats of many agents, written by hand. All text is made up; one minute passes a record."""

# ruff: noqa: E501 - tables and records stand as their tools write them

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from compaction_events import adapters
from compaction_events.facts import Fact, RoundCompleted

START = datetime(2026, 5, 4, 9, 0, tzinfo=UTC)
# 34 bytes: 9 tokens; two anchors.
ASK = "Serve port 8417 from conf/app.toml"
# 44 bytes: 11 tokens; a rule.
RULE = "Never write logs/audit.log without fsync_all"
# 32 bytes: 8 tokens.
DONE = "Port 8417 and conf/app.toml done"
# 24 bytes: 6 tokens.
SUMMARY = "Port 8417, conf/app.toml"


def minute(number: float) -> datetime:
    return START + timedelta(minutes=number)


def stamp(number: float) -> str:
    return minute(number).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def codex_line(at: float, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": stamp(at), "type": kind, "payload": payload}


def codex_message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def codex_tokens(at: float, sent: int, total: int, window: int = 10_000) -> dict[str, Any]:
    usage = {"input_tokens": sent, "total_tokens": total}
    return codex_line(at, "event_msg", type="token_count", info={"last_token_usage": usage, "model_context_window": window})


def codex_records(*, message: str = "", sealed: bool = True, history: bool = True) -> list[dict[str, Any]]:
    """One pass in a window of 10,000: 1,009 tokens of which 9 were typed, then 5,000, then 1,200."""
    items = [codex_message("user", ASK), *([codex_message("user", f"Another model:\n{message}")] if message else [])]
    items += [{"type": "compaction", "encrypted_content": "?"}] if sealed else []
    compacted = {"message": message, "window_id": "w-1", "previous_window_id": "w-0", "window_number": 1}
    return [
        codex_line(0, "session_meta", id="codex-a", cli_version="0.9"),
        codex_line(1, "response_item", **codex_message("developer", "Rules of the house")),
        codex_line(1, "response_item", **codex_message("user", "# Instructions that nobody typed")),
        codex_line(1, "response_item", **codex_message("user", ASK)),
        codex_line(1, "event_msg", type="user_message", message=ASK),
        codex_line(2, "response_item", type="function_call", name="shell", arguments='{"cmd":"ls"}', call_id="c1"),
        codex_line(2, "response_item", type="function_call_output", call_id="c1", output="x" * 400),
        codex_tokens(2, 1_009, 1_050),
        codex_line(3, "response_item", **codex_message("assistant", DONE)),
        codex_tokens(3, 4_900, 5_000),
        codex_line(4, "compacted", **compacted, **({"replacement_history": items} if history else {})),
        codex_tokens(4, 0, 1_150),
        codex_line(5, "response_item", **codex_message("assistant", "On")),
        codex_tokens(5, 1_209, 1_300),
    ]


def pi_entry(at: float, kind: str, name: str | None = None, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    ids = {} if name is None else {"id": name, "parentId": parent}
    return {"type": kind, **ids, "timestamp": stamp(at), **fields}


def pi_message(role: str, text: str, sent: int | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": [{"type": "text", "text": text}]}
    if sent is not None:
        message["usage"] = {"input": 9, "cacheRead": sent - 9, "cacheWrite": 0, "output": 5, "totalTokens": sent + 5}
    return {"message": message}


def pi_records(*, ids: bool = True) -> list[dict[str, Any]]:
    """One pass: 1,009 tokens of which 9 were typed, 5,000 before, 1,200 after; the last two entries stay."""

    def named(number: int) -> tuple[str | None, str | None]:
        return (f"e{number}", f"e{number - 1}" if number > 1 else None) if ids else (None, None)

    cut = {"firstKeptEntryId": "e3"} if ids else {"firstKeptEntryIndex": 3}
    return [
        {"type": "session", "version": 3, "id": "pi-a", "timestamp": stamp(0), "cwd": "/srv/tides"},
        pi_entry(1, "message", *named(1), **pi_message("user", ASK)),
        pi_entry(2, "message", *named(2), **pi_message("assistant", DONE, 1_009)),
        pi_entry(3, "message", *named(3), **pi_message("user", RULE)),
        pi_entry(4, "model_change", *named(4), provider="p", modelId="m"),
        pi_entry(5, "compaction", *named(5), summary=SUMMARY, tokensBefore=5_000, **cut),
        pi_entry(6, "message", *named(6), **pi_message("assistant", "On", 1_200)),
    ]


def copilot_event(at: float, kind: str, name: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "timestamp": stamp(at), "parentId": None, "type": kind, "data": data}


def copilot_records() -> list[dict[str, Any]]:
    """A pass of 5,000 tokens to 1,200, 1,000 of them overhead; the last message stays. Then a truncation."""
    return [
        copilot_event(0, "session.start", "v0", sessionId="copilot-a", copilotVersion="1.2", version=1),
        copilot_event(1, "user.message", "v1", content=ASK),
        copilot_event(2, "assistant.message", "v2", content=DONE, messageId="m", toolRequests=[]),
        copilot_event(3, "tool.execution_complete", "v3", success=True, toolCallId="t", result={"content": "x" * 40}),
        copilot_event(4, "user.message", "v4", content=RULE),
        copilot_event(5, "session.compaction_start", "v5"),
        copilot_event(5, "session.compaction_complete", "v6", success=False, error="refused"),
        copilot_event(
            6, "session.compaction_complete", "v7", success=True, preCompactionTokens=5_000, postCompactionTokens=1_200,
            messagesRemoved=3, preCompactionMessagesLength=4, summaryContent=SUMMARY, systemTokens=700, toolDefinitionsTokens=300,
            tokenLimit=8_000, trigger="threshold", checkpointNumber=1,
        ),
        copilot_event(7, "assistant.message", "v8", content="On", messageId="n"),
        copilot_event(
            8, "session.truncation", "v9", tokenLimit=8_000, preTruncationTokensInMessages=900, postTruncationTokensInMessages=500,
            messagesRemovedDuringTruncation=1,
        ),
    ]  # fmt: skip


def openhands_message(at: float, name: str, source: str, text: str) -> dict[str, Any]:
    role = "user" if source == "user" else "assistant"
    told = {"role": role, "content": [{"type": "text", "text": text}]}
    return {"kind": "MessageEvent", "id": name, "timestamp": stamp(at).rstrip("Z"), "source": source, "llm_message": told}


def openhands_condensation(
    at: float, name: str, forgotten: Sequence[str], summary: str | None, offset: int | None
) -> dict[str, Any]:
    event = {"kind": "Condensation", "id": name, "timestamp": stamp(at), "source": "environment", "llm_response_id": "r"}
    return {**event, "forgotten_event_ids": list(forgotten), "summary": summary, "summary_offset": offset}


def openhands_events(*, tree: bool) -> list[dict[str, Any]]:
    """Two passes: in a chain the second swallows the summary of the first, in a tree both stand; a third takes both."""
    return [
        {"kind": "SystemPromptEvent", "id": "p0", "timestamp": stamp(0), "source": "agent", "system_prompt": {"text": "x" * 40}, "tools": []},
        openhands_message(1, "p1", "user", ASK),
        openhands_message(2, "p2", "agent", DONE),
        openhands_condensation(3, "c1", ["p1", "p2"], SUMMARY, 0),
        openhands_message(4, "p3", "user", RULE),
        {"kind": "ActionEvent", "id": "p4", "timestamp": stamp(5), "source": "agent", "thought": [{"type": "text", "text": "Hm"}],
         "tool_call": {"name": "bash", "arguments": '{"command": "ls"}'}, "tool_name": "bash"},
        {"kind": "ObservationEvent", "id": "p5", "timestamp": stamp(6), "source": "environment",
         "observation": {"content": [{"type": "text", "text": "y" * 39}]}},
        openhands_condensation(7, "c2", ["p3", "p4", *([] if tree else ["c1-summary"])], "fsync_all in logs/audit.log", 1 if tree else 0),
        *([openhands_condensation(8, "c3", ["c1-summary", "c2-summary"], "conf/app.toml and logs/audit.log", 0)] if tree else []),
    ]  # fmt: skip


def write_openhands(folder: Path, events: Sequence[dict[str, Any]], name: str = "conversation-a") -> Path:
    below = folder / name / "events"
    below.mkdir(parents=True)
    for number, event in enumerate(events):
        (below / f"event-{number:05d}-{event['id']}.json").write_bytes(orjson.dumps(event))
    return below.parent


LOSSLESS_TABLES = """
CREATE TABLE conversations (conversation_id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, session_key TEXT,
    active INTEGER NOT NULL DEFAULT 1, archived_at TEXT, archive_cause TEXT, title TEXT, bootstrapped_at TEXT,
    created_at TEXT NOT NULL DEFAULT (datetime('now')), updated_at TEXT NOT NULL DEFAULT (datetime('now')));
CREATE TABLE messages (message_id INTEGER PRIMARY KEY AUTOINCREMENT, conversation_id INTEGER NOT NULL, seq INTEGER NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')), content TEXT NOT NULL,
    token_count INTEGER NOT NULL, identity_hash TEXT, openclaw_sender_metadata TEXT, transcript_entry_id TEXT,
    created_at TEXT NOT NULL DEFAULT (datetime('now')), UNIQUE (conversation_id, seq));
CREATE TABLE summaries (summary_id TEXT PRIMARY KEY, conversation_id INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('leaf', 'condensed')), depth INTEGER NOT NULL DEFAULT 0, content TEXT NOT NULL,
    token_count INTEGER NOT NULL, earliest_at TEXT, latest_at TEXT, descendant_count INTEGER NOT NULL DEFAULT 0,
    descendant_token_count INTEGER NOT NULL DEFAULT 0, source_message_token_count INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL DEFAULT (datetime('now')), file_ids TEXT NOT NULL DEFAULT '[]', model TEXT NOT NULL DEFAULT 'unknown');
CREATE TABLE summary_messages (summary_id TEXT NOT NULL, message_id INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    PRIMARY KEY (summary_id, message_id));
CREATE TABLE summary_parents (summary_id TEXT NOT NULL, parent_summary_id TEXT NOT NULL, ordinal INTEGER NOT NULL,
    PRIMARY KEY (summary_id, parent_summary_id));
CREATE TABLE context_items (conversation_id INTEGER NOT NULL, ordinal INTEGER NOT NULL, item_type TEXT NOT NULL,
    message_id INTEGER, summary_id TEXT, created_at TEXT NOT NULL DEFAULT (datetime('now')), PRIMARY KEY (conversation_id, ordinal));
"""
HERMES_TABLES = """
CREATE TABLE messages (store_id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, source TEXT DEFAULT '',
    role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT, timestamp REAL NOT NULL,
    token_estimate INTEGER DEFAULT 0, pinned INTEGER DEFAULT 0);
CREATE TABLE summary_nodes (node_id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, depth INTEGER NOT NULL DEFAULT 0,
    summary TEXT NOT NULL, token_count INTEGER DEFAULT 0, source_token_count INTEGER DEFAULT 0, source_ids TEXT NOT NULL DEFAULT '[]',
    source_type TEXT NOT NULL DEFAULT 'messages', created_at REAL NOT NULL, earliest_at REAL, latest_at REAL, expand_hint TEXT DEFAULT '');
CREATE TABLE metadata (key TEXT PRIMARY KEY, value TEXT);
"""
OPENCODE_TABLES = """
CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT NOT NULL, parent_id TEXT, slug TEXT NOT NULL, directory TEXT NOT NULL,
    title TEXT NOT NULL, version TEXT NOT NULL, share_url TEXT, time_created INTEGER NOT NULL, time_updated INTEGER NOT NULL,
    time_compacting INTEGER, time_archived INTEGER);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT NOT NULL, time_created INTEGER NOT NULL, time_updated INTEGER NOT NULL,
    data TEXT NOT NULL);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT NOT NULL, session_id TEXT NOT NULL, time_created INTEGER NOT NULL,
    time_updated INTEGER NOT NULL, data TEXT NOT NULL);
"""


def database(path: Path, tables: str) -> sqlite3.Connection:
    made = sqlite3.connect(path)
    made.executescript(tables)
    return made


class Lcm:
    """A store of one of the two layouts, filled alike: messages 1, 2, …; summaries by name, each from messages or summaries."""

    def __init__(self, path: Path, layout: str, session: str = "lcm-a") -> None:
        self.path, self.layout, self.session = path, layout, session
        self.names: list[str] = []
        self.seq = 0
        tables = LOSSLESS_TABLES if layout == "lossless-claw" else HERMES_TABLES
        with closing(database(path, tables)) as store, store:
            if layout == "lossless-claw":
                store.execute("INSERT INTO conversations (session_id) VALUES (?)", (session,))

    def message(self, role: str, text: str, tokens: int, at: float) -> None:
        self.seq += 1
        if self.layout == "lossless-claw":
            self.run(
                "INSERT INTO messages (conversation_id, seq, role, content, token_count, created_at) VALUES (1, ?, ?, ?, ?, ?)",
                self.seq, role, text, tokens, f"{minute(at):%Y-%m-%d %H:%M:%S}",
            )  # fmt: skip
        else:
            self.run(
                "INSERT INTO messages (session_id, role, content, timestamp, token_estimate) VALUES (?, ?, ?, ?, ?)",
                self.session, role, text, minute(at).timestamp(), tokens,
            )  # fmt: skip

    def summary(self, name: str, depth: int, text: str, tokens: int, at: float, sources: Sequence[int | str]) -> None:
        """`depth` as the store counts it, from 0. Sources: numbers of messages, or names of summaries."""
        self.names.append(name)
        of_messages = isinstance(sources[0], int)
        if self.layout == "lossless-claw":
            self.run(
                "INSERT INTO summaries (summary_id, conversation_id, kind, depth, content, token_count, created_at)"
                " VALUES (?, 1, ?, ?, ?, ?, ?)",
                name, "leaf" if of_messages else "condensed", depth, text, tokens, f"{minute(at):%Y-%m-%d %H:%M:%S}",
            )  # fmt: skip
            table = "summary_messages" if of_messages else "summary_parents"
            for place, source in enumerate(sources):
                self.run(f"INSERT INTO {table} VALUES (?, ?, ?)", name, source, place)
        else:
            ids = [source if isinstance(source, int) else self.names.index(source) + 1 for source in sources]
            self.run(
                "INSERT INTO summary_nodes (session_id, depth, summary, token_count, source_ids, source_type, created_at,"
                " earliest_at, latest_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                self.session, depth, text, tokens, orjson.dumps(ids).decode(), "messages" if of_messages else "nodes",
                minute(at).timestamp(), START.timestamp(), minute(at).timestamp(),
            )  # fmt: skip

    def run(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.path)) as store, store:
            store.execute(statement, values)

    def node(self, name: str) -> str:
        """A summary's id as the facts have it."""
        return name if self.layout == "lossless-claw" else str(self.names.index(name) + 1)


def hierarchy(path: Path, layout: str) -> Lcm:
    """Four spans of two messages each, 100 and 50 tokens; two leaf summaries of two spans each, then one of both."""
    store = Lcm(path, layout)
    for span in range(4):
        store.message("user", f"Keep span_{span} below {span}00", 100, 2 * span)
        store.message("assistant", f"Done with span_{span}", 50, 2 * span + 1)
    store.summary("a", 0, "span_0 below 000, span_1", 20, 8, [1, 2, 3, 4])
    store.summary("b", 0, "span_2 below 200", 20, 9, [5, 6])
    store.summary("c", 1, "span_0 and span_2 below 200", 15, 10, ["a", "b"])
    return store


def opencode_store(path: Path) -> sqlite3.Connection:
    """One pass, asked for by the tool: 1,009 tokens of which 9 were typed, 5,000 before, 1,200 after; the last message stays."""
    store = database(path, OPENCODE_TABLES)
    at = int(START.timestamp() * 1_000)
    store.execute("INSERT INTO session VALUES ('oc-a', 'p', NULL, 's', '/srv', 't', '1.3', NULL, ?, ?, NULL, NULL)", (at, at))

    def message(number: int, data: dict[str, Any], *parts: dict[str, Any]) -> None:
        time = at + 60_000 * number
        store.execute(
            "INSERT INTO message VALUES (?, 'oc-a', ?, ?, ?)", (f"m{number}", time, time, orjson.dumps(data).decode())
        )
        for place, part in enumerate(parts):
            text = orjson.dumps(part).decode()
            store.execute(
                "INSERT INTO part VALUES (?, ?, 'oc-a', ?, ?, ?)", (f"m{number}p{place}", f"m{number}", time, time, text)
            )

    def reply(sent: int, **fields: Any) -> dict[str, Any]:
        return {"role": "assistant", "tokens": {"input": sent - 9, "output": 5, "cache": {"read": 9, "write": 0}}, **fields}

    tool = {
        "type": "tool",
        "tool": "bash",
        "state": {"status": "completed", "input": {"command": "ls"}, "output": "x" * 40, "time": {}},
    }
    message(1, {"role": "user"}, {"type": "text", "text": ASK}, {"type": "text", "text": "A note", "synthetic": True})
    message(2, reply(1_011), {"type": "text", "text": DONE}, tool)
    message(3, {"role": "user"}, {"type": "text", "text": RULE})
    message(4, reply(5_000), {"type": "text", "text": "Hm"})
    message(5, {"role": "user"}, {"type": "compaction", "auto": True, "tail_start_id": "m3"})
    message(6, reply(5_100, summary=True, parentID="m5", mode="compaction"), {"type": "text", "text": SUMMARY})
    message(7, reply(1_200), {"type": "text", "text": "On"})
    store.commit()
    return store


def facts(*paths: Path) -> list[Fact]:
    return list(adapters.read(paths))


def shape(fact: Fact) -> dict[str, Any]:
    """A fact without what is the same in all of a session's, and without the cosine, which has tests of its own."""
    told = fact.model_dump(mode="json", exclude_none=True, exclude={"session_id", "agent", "basis", "scorer"})
    if isinstance(fact, RoundCompleted):
        for part in ("before", "after"):
            told.get(part, {}).pop("query_cosine_retained", None)
    return told
