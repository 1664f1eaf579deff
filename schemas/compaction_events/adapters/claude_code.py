"""Claude Code sessions: JSON Lines under `~/.claude/projects`, one session in one or several files.

What is exact: `before` (the boundary's `preTokens`), `after` (its `postTokens`, else the first `usage` after it: input +
cache creation + cache read), and which records the summariser read. What is inferred, and how:
- summary_tokens: the summary's UTF-8 bytes / 4.
- overhead_tokens (system prompt, tools): the session's first `usage` less what had been said until then, taken as
  constant. Absent where the file does not begin with the session, and with `postTokens`, which counts no overhead.
- raw_tokens: the rest. Files that the tool itself reads again after a pass are not on disk in older versions, but in it.
So raw + summary + overhead is always the count on disk. Only if there is none after a pass is the text estimated.

The context is replaced whole by each pass (a chain), at the latest when it is full (eviction `overflow`); records in
`preservedMessages` stay. A `microcompact_boundary` only clears old results of tools: the set becomes lighter, but no round
ends. Subagents have a context of their own: in a file of theirs they are a session of their own, and their records in the
session's file (`isSidechain`) are left out. A fork repeats the records of the session it comes from (`forkedFrom`): they
make up its context, but the passes among them are that session's, and are not told twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from compaction_events.adapters import claude_records as records
from compaction_events.adapters.claude_chain import Coverage, Node, coverage, relinked, segment
from compaction_events.adapters.fields import Record, count, id_of, mapping, text_of, texts, time_of
from compaction_events.adapters.lines import Head, Line, Trouble, Warnings, read_lines
from compaction_events.facts import MAX_ID_CHARS, Eviction, Fact, SummaryKind, Topology, Trigger
from compaction_events.recorder import Message, Pass, Recorder, Tokens

NAME = "claude-code"
# A session may begin with snapshots and titles, which name no session.
_HEAD_LINES = 256
_TRIGGERS = {"auto": Trigger.budget, "manual": Trigger.manual}
# The window is not on disk; but what does not fit into the common one can only be in the large one.
_WINDOW_TOKENS, _LARGE_WINDOW_TOKENS = 200_000, 1_000_000
PATTERNS: Final = ("*.jsonl*",)


def known_folders() -> Sequence[Path]:
    """Where Claude Code keeps its sessions."""
    return (Path.home() / ".claude" / "projects",)


def heads(path: Path) -> Sequence[Head]:
    """Whose file this is; nobody's if its first lines are no Claude Code transcript."""
    first_at = ""
    for line in read_lines(path, Warnings()):
        record = line.record
        first_at = first_at or text_of(record, "timestamp") or ""
        session_id = id_of(record, "sessionId")
        if session_id and text_of(record, "uuid") and "parentUuid" in record:
            if record.get("isSidechain") is not True:
                return (Head(session_id, first_at),)
            agent = id_of(record, "agentId")
            # Without its own id it cannot be told from the session, nor from another subagent.
            name = f"{session_id}/{agent}" if agent else session_id
            return (Head(name, first_at, subagent=agent is None or len(name) > MAX_ID_CHARS),)
        if line.number >= _HEAD_LINES:
            break
    return ()


def reading(paths: Sequence[Path], session_id: str) -> ClaudeCodeReading:
    """Read one session."""
    return ClaudeCodeReading(paths, session_id)


@dataclass
class _Pending:
    """A pass whose `after` is not complete: that takes the first usage, the next boundary, or the end."""

    boundary: Record
    at: datetime
    covered: Coverage
    kept: list[Message]
    restored: list[Message]
    copied: bool
    summary: Message | None = None


class ClaudeCodeReading:
    """One session. Iterate over it once.

    Args:
        paths: Its files, oldest first.
        session_id: Lines of another session are passed over, unless their parent is in this one (a resume under a new id).
    """

    def __init__(self, paths: Sequence[Path], session_id: str) -> None:
        self.warnings = Warnings()
        self.at_end = False
        self._paths = paths
        self._recorder = Recorder(session_id, NAME, source=NAME, topology=Topology.chain, eviction=Eviction.overflow)
        session, _, self._agent = session_id.partition("/")
        # Titles and snapshots name no session.
        self._ids: set[str | None] = {session, None}
        self._since: list[Node] = []
        self._set: list[Message] = []
        self._uuids: set[str] = set()
        self._boundary: str | None = None
        self._summary: str | None = None
        self._results: dict[str, frozenset[str]] = {}
        self._pending: _Pending | None = None
        self._passes = 0
        self._overhead: int | None = None
        self._overhead_open = True
        self._started = False
        self._last_at: datetime | None = None

    @property
    def quoted(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """By round, (still quoted, typed) for the user's messages of each stretch between passes, oldest first."""
        return self._recorder.quoted

    def __iter__(self) -> Iterator[Fact]:
        for path in self._paths:
            for line in read_lines(path, self.warnings):
                if self._is_ours(line):
                    yield from self._take(line)
        self.at_end = True
        yield from self._complete(None)
        if self._started and self._last_at is not None:
            yield self._recorder.ended(self._last_at)

    def _is_ours(self, line: Line) -> bool:
        record = line.record
        session_id = text_of(record, "sessionId")
        if any(text_of(record, field) in self._uuids for field in ("parentUuid", "logicalParentUuid")):
            self._ids.add(session_id)
        if not text_of(record, "type") or session_id not in self._ids:
            self.warnings.add(line.path, Trouble.foreign_line, line.number)
            return False
        # A file that continues another may repeat its records.
        is_side = record.get("isSidechain") is True
        mine = is_side and record.get("agentId") == self._agent if self._agent else not is_side
        if mine and is_side:
            # Beside the session it is a side chain; here it is what the session is made of.
            record["isSidechain"] = False
        return mine and text_of(record, "uuid") not in self._uuids

    def _take(self, line: Line) -> Iterator[Fact]:
        record, uuid, at = line.record, text_of(line.record, "uuid"), time_of(line.record)
        if at is not None:
            self._last_at = max(at, self._last_at or at)
        if at is not None and not self._started and (uuid is not None or records.is_boundary(record)):
            self._started = True
            # Seen from its start: what was said before the first usage is all there was.
            self._overhead_open = record.get("parentUuid") is None and not records.is_boundary(record)
            yield self._recorder.started(at, agent_version=id_of(record, "version"))
        if records.is_boundary(record):
            yield from self._complete(None)
            self._begin(line, uuid, at)
        elif records.is_microcompact(record):
            self._clear(mapping(record, "microcompactMetadata"))
        else:
            usage = records.context_tokens(record)
            if usage is not None:
                self._note_overhead(usage)
                yield from self._complete(usage)
            self._keep(record, uuid)
        if uuid is not None:
            self._uuids.add(uuid)

    def _note_overhead(self, usage: int) -> None:
        if self._overhead_open and self._passes == 0:
            self._overhead = max(0, usage - sum(message.weight for message in self._set))
        self._overhead_open = False

    def _keep(self, record: Record, uuid: str | None) -> None:
        """A record joins the working set, or what the last pass left of it."""
        self._since.append(Node(uuid, text_of(record, "parentUuid"), str(record["type"]), records.is_typed(record)))
        if uuid is None:
            return
        pending = self._pending
        if records.is_summary(record):
            message = self._summarised(record, uuid)
            if pending is not None and pending.summary is None:
                pending.summary = message
        else:
            message = records.message_of(record, uuid)
            if pending is not None and message is not None and record["type"] == "attachment":
                pending.restored.append(message)
        if message is not None:
            self._set.append(message)
            self._results[uuid] = records.tool_ids(record)

    def _summarised(self, record: Record, uuid: str) -> Message | None:
        """What a pass wrote, out of the summary before it and all that was said since."""
        children = (self._summary,) if self._summary is not None and self._summary != uuid else ()
        self._summary = uuid
        return Message(uuid, records.summary_of(record), depth=max(1, self._passes), children=children)

    def _clear(self, metadata: Record) -> None:
        """Results of tools, and attachments, leave the set; the messages they came in stay."""
        calls = frozenset(texts(metadata, "compactedToolIds"))
        uuids = frozenset(texts(metadata, "clearedAttachmentUUIDs"))
        self._set = [
            message._replace(bulk="") if message.id in uuids or calls & self._results.get(message.id, frozenset()) else message
            for message in self._set
        ]

    def _begin(self, line: Line, uuid: str | None, at: datetime | None) -> None:
        """A pass: measure the set as it finds it, and keep of it what it keeps."""
        at = at or self._last_at
        if at is None:
            self.warnings.add(line.path, Trouble.no_time, line.number)
            return
        metadata = mapping(line.record, "compactMetadata")
        kept = self._preserved(metadata)
        start = text_of(line.record, "logicalParentUuid")
        covered = coverage(self._since, start, self._boundary, self._uuids, kept)
        self._passes += 1
        before = [message for message in self._set if message.id not in covered.taken_back]
        self._recorder.before(before, Tokens(count(metadata, "preTokens"), self._overhead))
        self._set = [message for message in before if message.id in kept]
        self._results = {message.id: self._results.get(message.id, frozenset()) for message in self._set}
        copied = bool(mapping(line.record, "forkedFrom"))
        self._pending = _Pending(line.record, at, covered, list(self._set), [], copied)
        anchor = text_of(mapping(metadata, "preservedSegment"), "anchorUuid") or uuid
        stay = [node for node in self._since if node.uuid in kept]
        self._since = relinked(stay, anchor)
        self._boundary = uuid

    def _preserved(self, metadata: Record) -> frozenset[str]:
        """The uuids of the records that a pass keeps verbatim: listed, or in older versions only as a segment."""
        preserved = mapping(metadata, "preservedMessages")
        if uuids := texts(preserved, "allUuids") or texts(preserved, "uuids"):
            return frozenset(uuids)
        ends = mapping(metadata, "preservedSegment")
        return segment(self._since, text_of(ends, "headUuid"), text_of(ends, "tailUuid"))

    def _complete(self, usage: int | None) -> Iterator[Fact]:
        """The pass that is under way ends: its summary and what the tool restored are there."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        metadata = mapping(pending.boundary, "compactMetadata")
        post = count(metadata, "postTokens")
        summary = pending.summary
        after = [*([summary] if summary is not None else []), *pending.kept, *pending.restored]
        overhead = self._overhead if post is None and usage is not None else None
        this = Pass(
            self._passes,
            pending.at,
            trigger=_trigger(metadata),
            claimed=pending.covered.claimed,
            read=pending.covered.read,
            summary_kind=_kind(summary),
            token_method=self._token_method(metadata, usage),
            token_budget=_LARGE_WINDOW_TOKENS if (count(metadata, "preTokens") or 0) > _WINDOW_TOKENS else None,
        )
        made = list(self._recorder.passed(after, this, Tokens(usage if post is None else post, overhead)))
        yield from () if pending.copied else made

    def _token_method(self, metadata: Record, usage: int | None) -> str:
        before = "preTokens" if count(metadata, "preTokens") is not None else "estimate"
        counted = usage is not None
        after = "postTokens" if count(metadata, "postTokens") is not None else "usage" if counted else "estimate"
        overhead = "unknown" if self._overhead is None else "first_usage"
        if overhead != "unknown" and after != "usage":
            overhead += ",none_after"
        return f"before={before} after={after} summary=utf8_bytes/4 overhead={overhead} raw=rest"


def _trigger(metadata: Record) -> Trigger | None:
    trigger = text_of(metadata, "trigger")
    return None if trigger is None else _TRIGGERS.get(trigger, Trigger.other)


def _kind(summary: Message | None) -> SummaryKind:
    if summary is None:
        return SummaryKind.none
    return SummaryKind.ok if summary.text else SummaryKind.empty
