"""Every cell of the support matrix, held against the session written by hand in that format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction_events import adapters
from compaction_events.adapters.support import SIGNALS, SUPPORT, Level, markdown
from compaction_events.facts import CheckpointWritten, Fact, PropositionStated, RoundCompleted
from tests.compaction_events.adapters import fixtures as made
from tests.compaction_events.adapters.fixtures import RULE, SUMMARY, write_lines
from tests.compaction_events.adapters.transcript import Transcript

README = Path(__file__).parents[3] / "README.md"


def claude(path: Path) -> object:
    transcript = Transcript()
    transcript.user(RULE)
    transcript.reply("on", 1_000)
    transcript.boundary(250_000)
    transcript.summary(SUMMARY)
    transcript.reply("on", 1_100)
    return transcript.write(path)


def codex(path: Path) -> object:
    records = made.codex_records()
    typed = made.codex_line(3, "event_msg", type="user_message", message=RULE)
    said = made.codex_line(3, "response_item", **made.codex_message("user", RULE))
    return write_lines(path, [*records[:10], said, typed, *records[10:]])


WRITERS: dict[str, Callable[[Path], object]] = {
    "claude-code": claude,
    "codex": codex,
    "pi": lambda path: write_lines(path, made.pi_records()),
    "openhands": lambda path: made.write_openhands(path, made.openhands_events(tree=False)),
    "lossless-claw": lambda path: made.hierarchy(path, "lossless-claw"),
    "hermes-lcm": lambda path: made.hierarchy(path, "hermes-lcm"),
    "copilot": lambda path: write_lines(path, made.copilot_records()),
    "opencode": lambda path: made.opencode_store(path).close(),
}
# What the agent itself says, as the fixtures have it: the figure in the facts is that one, not one that was worked out.
COUNTED: dict[str, dict[str, Any]] = {
    "claude-code": {"tokens before": 250_000, "tokens after": 1_100, "trigger": "budget", "records read": 2},
    "codex": {"tokens before": 5_000, "tokens after": 1_150, "window": 10_000},
    "pi": {"tokens before": 5_000, "tokens after": 1_200},
    "openhands": {"depth": 1, "checkpoints": ("c1-summary",), "leaves of summaries": (1,)},
    "copilot": {"tokens before": 5_000, "tokens after": 1_200, "overhead": 1_000, "window": 8_000, "trigger": "budget"},
    "opencode": {"tokens before": 5_000, "tokens after": 1_200, "trigger": "budget"},
    "lossless-claw": {
        "tokens before": 600,
        "tokens after": 320,
        "raw and summary": (300, 20),
        "spans": 4,
        "depth": 1,
        "checkpoints": ("a", "b", "c"),
        "leaves of summaries": (2,),
    },
}
COUNTED["hermes-lcm"] = {**COUNTED["lossless-claw"], "checkpoints": ("1", "2", "3")}


def found_in(facts: list[Fact], quoted: dict[int, Any]) -> dict[str, Any]:
    """What the facts have of each signal; None where it is not there."""
    rounds = [fact for fact in facts if isinstance(fact, RoundCompleted)]
    nodes = [fact for fact in facts if isinstance(fact, CheckpointWritten)]
    first = rounds[0]
    before, after = first.before, first.after
    assert before is not None
    items = first.summaries
    return {
        "tokens before": before.raw_tokens + before.summary_tokens + (before.overhead_tokens or 0),
        "tokens after": after.raw_tokens + after.summary_tokens + (after.overhead_tokens or 0),
        "overhead": after.overhead_tokens,
        "raw and summary": (after.raw_tokens, after.summary_tokens),
        "window": first.token_budget,
        "trigger": first.trigger,
        "spans": after.distinct_source_spans,
        "cosine": after.query_cosine_retained,
        "depth": after.summary_depth_max,
        "checkpoints": tuple(node.node_id for node in nodes[: 3 if items and len(nodes) > 2 else 1]) or None,
        "leaves of summaries": None if items is None else tuple(item.leaf_spans for item in items),
        "entropy": next((node.child_joint_entropy_bits for node in nodes if node.child_joint_entropy_bits is not None), None),
        "propositions": [fact.proposition for fact in facts if isinstance(fact, PropositionStated)] or None,
        "own messages quoted": quoted.get(1),
        "records read": first.read_records,
        "summary kind": first.summary_kind,
    }


@pytest.mark.parametrize("adapter", SUPPORT)
def test_every_cell(adapter: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    WRITERS[adapter](path)
    [session] = adapters.find([path])
    reading = adapters.read_session(session)
    found = found_in(list(reading), reading.quoted)
    assert {signal for signal, value in found.items() if value is None} == {
        signal for signal, level in SUPPORT[adapter].items() if level is Level.absent
    }
    assert {signal: found[signal] for signal in COUNTED[adapter]} == COUNTED[adapter]
    assert set(COUNTED[adapter]) == {signal for signal, level in SUPPORT[adapter].items() if level is Level.measured}


def test_the_matrix_is_of_all_adapters_and_all_signals() -> None:
    assert sorted(SUPPORT) == sorted(adapter.NAME for adapter in adapters.ADAPTERS) == sorted(WRITERS)
    assert {tuple(row) for row in SUPPORT.values()} == {SIGNALS}


def test_the_readme_s_table_is_this_one() -> None:
    assert markdown() in README.read_text(encoding="utf-8")
