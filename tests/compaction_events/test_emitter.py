"""The emitter without a broker: what it writes, what it numbers and fills in, and that nothing comes out of it."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any, cast, get_type_hints

import pytest

from compaction_events import builders
from compaction_events.codec import decode
from compaction_events.emitter import Emitter
from compaction_events.errors import ContractError, Reason
from compaction_events.examples import EXAMPLES
from compaction_events.facts import (
    CheckpointRegenerated,
    CheckpointWritten,
    Composition,
    Fact,
    RoundCompleted,
    SessionStarted,
)
from compaction_events.session import (
    REPEAT_START_EVERY,
    SHORT,
    CheckpointFields,
    RegeneratedFields,
    RoundFields,
    StartFields,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    """A minute a call."""

    def __init__(self) -> None:
        self.minutes = itertools.count()

    def __call__(self) -> datetime:
        return START + timedelta(minutes=next(self.minutes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "events.jsonl"


@pytest.fixture
def emitter(path: Path) -> Iterator[Emitter]:
    with Emitter(f"file:{path}", agent="coder", agent_version="2", clock=Clock()) as made:
        yield made


def events(emitter: Emitter, path: Path) -> list[Fact]:
    assert emitter.flush(30)
    return [decode(line, check_key=False).event for line in path.read_bytes().splitlines()]


def rounds(found: list[Fact]) -> list[RoundCompleted]:
    return [event for event in found if isinstance(event, RoundCompleted)]


class TestASession:
    def test_five_lines(self, path: Path) -> None:
        emitter = Emitter(f"file:{path}", agent="coder")
        session = emitter.session("s", topology="tree", source_spans=214)
        session.round(raw_tokens=61_000, summary_tokens=3_000, spans=190, cosine=0.41, depth=1)
        session.ended()
        assert emitter.close()
        assert [event.type for event in events(emitter, path)] == ["session.started", "round.completed", "session.ended"]

    def test_only_tokens_are_needed(self, emitter: Emitter, path: Path) -> None:
        emitter.session("s").round(raw_tokens=10, summary_tokens=2)
        started, completed = events(emitter, path)
        assert started == SessionStarted(
            session_id="s", agent="coder", agent_version="2", started_at=START + timedelta(minutes=1)
        )
        assert completed == RoundCompleted(
            session_id="s",
            agent="coder",
            round=1,
            at=START + timedelta(minutes=2),
            after=Composition(raw_tokens=10, summary_tokens=2),
        )

    def test_rounds_number_themselves(self, emitter: Emitter, path: Path) -> None:
        session, other = emitter.session("s"), emitter.session("t")
        for handle in (session, session, other, emitter.session("s")):
            handle.round(raw_tokens=1, summary_tokens=0)
        assert [(event.session_id, event.round) for event in rounds(events(emitter, path))] == [
            ("s", 1),
            ("s", 2),
            ("t", 1),
            ("s", 3),
        ]
        assert session.last_round == 3

    def test_a_number_given_goes_on_from_there(self, emitter: Emitter, path: Path) -> None:
        session = emitter.session("s")
        session.round(round=0, raw_tokens=1, summary_tokens=0)
        session.round(raw_tokens=1, summary_tokens=0)
        session.round(round=7, raw_tokens=1, summary_tokens=0)
        session.round(raw_tokens=1, summary_tokens=0)
        assert [event.round for event in rounds(events(emitter, path))] == [0, 1, 7, 8]

    def test_a_round_that_cannot_be_reported_leaves_a_gap(self, emitter: Emitter, path: Path) -> None:
        session = emitter.session("s")
        for raw_tokens in (1, -1, 1):
            session.round(raw_tokens=raw_tokens, summary_tokens=0)
        assert [event.round for event in rounds(events(emitter, path))] == [1, 3]
        assert emitter.stats.dropped == {"invalid": 1}

    def test_the_start_is_repeated_and_stays_the_same(self, emitter: Emitter, path: Path) -> None:
        session = emitter.session("s", topology="tree", max_depth=3, token_budget=100)
        for _ in range(2 * REPEAT_START_EVERY + 1):
            session.round(raw_tokens=1, summary_tokens=0)
        found = events(emitter, path)
        places = [place for place, event in enumerate(found) if event.type == "session.started"]
        assert places == [0, REPEAT_START_EVERY + 1, 2 * (REPEAT_START_EVERY + 1)]
        assert len({found[place] for place in places}) == 1
        # And what a round can carry of it, it carries.
        assert {(event.topology, event.max_depth, event.token_budget) for event in rounds(found)} == {("tree", 3, 100)}

    def test_an_ended_session_is_forgotten(self, emitter: Emitter, path: Path) -> None:
        with emitter.session("s") as session:
            session.round(raw_tokens=1, summary_tokens=0)
        emitter.session("s").round(raw_tokens=1, summary_tokens=0)
        found = events(emitter, path)
        assert [event.round for event in rounds(found)] == [1, 1]
        assert found[3].occurred_at > found[0].occurred_at  # type: ignore[operator]

    def test_time_goes_forward_when_the_clock_does_not(self, path: Path) -> None:
        with Emitter(f"file:{path}", agent="coder", clock=lambda: START) as emitter:
            session = emitter.session("s")
            session.round(raw_tokens=1, summary_tokens=0)
            session.round(raw_tokens=1, summary_tokens=0)
            times = [event.occurred_at for event in events(emitter, path)]
        assert len(set(times)) == 3
        assert times == sorted(times, key=str)

    def test_every_kind_of_event(self, emitter: Emitter, path: Path) -> None:
        session = emitter.session("s", scorer={"name": "cosine", "depth_penalty": 0.0}, controller="expected")
        session.stated("p1", turn=30, span_id="span-30", pinned=True)
        session.checkpoint("m1", level=1, version=1, retained=["p1"], children=[{"node_id": "l1", "version": 2}])
        session.regenerated("m1", level=1, retained=[], trial_number=1, remediation_id="r")
        session.missed("m1", "p1", by="operator", symptom="constraint")
        session.round(
            raw_tokens=1,
            summary_tokens=2,
            cause="rehydration",
            before={"raw_tokens": 3, "summary_tokens": 4, "spans": 5},
            summaries=[{"summary_id": "m1", "depth": 1, "tokens": 2, "leaf_spans": 1, "expanded_tokens": 9}],
            remediation_id="r",
            basis="inferred",
        )
        session.ended()
        assert emitter.stats.lost == 0
        assert [event.type for event in events(emitter, path)] == [
            "session.started",
            "proposition.stated",
            "checkpoint.written",
            "checkpoint.regenerated",
            "proposition.missed",
            "round.completed",
            "session.ended",
        ]

    def test_numbers_of_array_libraries(self, emitter: Emitter, path: Path) -> None:
        session = emitter.session("s")
        for cosine in (Fraction(1, 2), 1.0 + 1e-9, -1.0 - 1e-9):
            session.round(raw_tokens=1, summary_tokens=0, cosine=cosine)  # type: ignore[arg-type]
        assert [event.after.query_cosine_retained for event in rounds(events(emitter, path))] == [0.5, 1.0, -1.0]

    @pytest.mark.parametrize(
        ("said", "model", "beside"),
        [
            (RoundFields, RoundCompleted, {"type", "session_id", "agent", "after"}),
            (CheckpointFields, CheckpointWritten, {"type", "session_id", "node_id"}),
            (RegeneratedFields, CheckpointRegenerated, {"type", "session_id", "node_id"}),
            (StartFields, SessionStarted, {"type", "session_id", "agent", "agent_version"}),
        ],
    )
    def test_a_session_can_say_what_the_contract_knows(self, said: Any, model: type[Fact], beside: set[str]) -> None:
        names = {SHORT.get(name, name) for name in get_type_hints(said)}
        composition = set(Composition.model_fields) if model is RoundCompleted else set()
        assert names == (set(model.model_fields) - beside) | composition


class TestNothingComesOut:
    def test_invalid_is_counted_and_told_once_without_its_text(
        self, emitter: Emitter, caplog: pytest.LogCaptureFixture, path: Path
    ) -> None:
        session = emitter.session("s")
        for _ in range(3):
            session.round(raw_tokens="a secret", summary_tokens=0)  # type: ignore[arg-type]
            session.round()  # type: ignore[call-arg]
        assert emitter.stats.dropped == {"invalid": 6}
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(told) == 2
        assert "raw_tokens" in told[0]
        assert "secret" not in caplog.text

    def test_a_misspelt_field_is_told_and_the_rest_is_sent(
        self, emitter: Emitter, caplog: pytest.LogCaptureFixture, path: Path
    ) -> None:
        emitter.session("s").round(raw_tokens=1, summary_tokens=0, cosin=0.5)  # type: ignore[call-arg]
        assert len(rounds(events(emitter, path))) == 1
        assert "RoundCompleted has no field cosin" in caplog.text

    def test_a_value_that_bites(self, emitter: Emitter) -> None:
        class Bites(dict[str, Any]):
            def __len__(self) -> int:
                raise RuntimeError("no")

            def items(self) -> Any:
                raise RuntimeError("no")

        emitter.session("s", scorer=Bites())
        assert emitter.stats.dropped.keys() <= {"invalid", "failed"}

    def test_not_an_agents_event(self, emitter: Emitter) -> None:
        assert not emitter.emit(next(event for event in EXAMPLES if event.type == "alert.raised"))
        assert not emitter.emit("a round")  # type: ignore[arg-type]
        assert emitter.stats.dropped == {"invalid": 2}

    def test_too_large(self, emitter: Emitter) -> None:
        long = ["é" * 256] * 1_000
        emitter.session("s").round(raw_tokens=1, summary_tokens=0, propositions_retained=long)
        assert emitter.stats.dropped == {"too_large": 1}

    def test_strict_says_all_that_is_wrong(self, path: Path) -> None:
        with Emitter(f"file:{path}", agent="coder", strict=True) as emitter:
            session = emitter.session("s")
            with pytest.raises(ContractError) as refused:
                session.round(raw_tokens=-1, summary_tokens=-1)
            assert [fault.field for fault in refused.value.faults] == ["after.raw_tokens", "after.summary_tokens"]
            with pytest.raises(ContractError, match="cosin"):
                session.round(raw_tokens=1, summary_tokens=1, cosin=0.5)  # type: ignore[call-arg]
            with pytest.raises(ContractError) as large:
                session.round(raw_tokens=1, summary_tokens=0, propositions_retained=["é" * 256] * 1_000)
            assert large.value.reason == Reason.record_too_large

    def test_after_the_end(self, emitter: Emitter) -> None:
        session = emitter.session("s")
        assert emitter.close()
        session.round(raw_tokens=1, summary_tokens=0)
        assert not emitter.close()
        assert emitter.stats == (2, 1, 0, {"closed": 1})

    def test_facts_made_by_hand(self, emitter: Emitter, path: Path) -> None:
        made = [event for event in EXAMPLES if not event.type.startswith(("alert.", "remediation.re", "remediation.w"))]
        assert all(emitter.emit(event) for event in made)
        assert events(emitter, path) == made

    def test_many_threads(self, path: Path) -> None:
        with Emitter(f"file:{path}", agent="coder", max_events=100_000) as emitter:
            session = emitter.session("s")

            def work() -> None:
                for _ in range(200):
                    session.round(raw_tokens=1, summary_tokens=0)

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found = rounds(events(emitter, path))
        assert [event.round for event in found] == list(range(1, 1_601))
        times = [event.at for event in found]
        assert times == sorted(times)


class TestTheTarget:
    @pytest.mark.parametrize("target", ["", " ", "file:"])
    def test_none(self, target: str) -> None:
        with pytest.raises(ValueError, match="allowed"):
            Emitter(target, agent="coder")

    @pytest.mark.parametrize("option", ["acks", "partitioner", "sasl_pasword"])
    def test_an_option_that_is_none(self, option: str) -> None:
        with pytest.raises(TypeError, match=option):
            Emitter("127.0.0.1:1", agent="coder", **cast("dict[str, Any]", {option: 0}))

    def test_a_file_has_no_options(self) -> None:
        with pytest.raises(TypeError, match="ssl_context"):
            Emitter("file:x", agent="coder", ssl_context=None)

    def test_a_clock_without_zone(self, path: Path) -> None:
        with pytest.raises(ValueError, match="zone"):
            Emitter(f"file:{path}", agent="coder", clock=datetime.now)

    def test_no_broker_to_be_had(self) -> None:
        emitter = Emitter("127.0.0.1:1", agent="coder")
        emitter.session("s").round(raw_tokens=1, summary_tokens=0)
        assert not emitter.flush(0)
        assert not emitter.close(timeout_s=0)
        assert emitter.stats == (2, 0, 0, {"unsent": 2})


class TestTheFile:
    def test_half_a_line_of_one_that_was_killed(self, path: Path) -> None:
        path.parent.mkdir()
        path.write_bytes(b'{"type":"session.sta')
        with Emitter(f"file:{path}", agent="coder") as emitter:
            emitter.session("s")
        assert [line[:8] for line in path.read_text().splitlines()] == ['{"type":', '{"type":']

    def test_deleted_under_way(self, emitter: Emitter, path: Path) -> None:
        session = emitter.session("s")
        assert emitter.flush(30)
        path.unlink()
        session.round(raw_tokens=1, summary_tokens=0)
        assert [event.type for event in events(emitter, path)] == ["round.completed"]

    def test_it_cannot_be_written_and_then_it_can(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        blocked = tmp_path / "sessions"
        blocked.write_text("a file where the folder should be")
        with Emitter(f"file:{blocked}/events.jsonl", agent="coder") as emitter:
            emitter.session("s")
            assert not emitter.flush(0)
            blocked.unlink()
            assert [event.type for event in events(emitter, blocked / "events.jsonl")] == ["session.started"]


SCRIPT = """
import os, sys
from compaction_events.emitter import Emitter
emitter = Emitter("file:" + sys.argv[1], agent="coder")
session = emitter.session("s")
session.round(raw_tokens=1, summary_tokens=0)
"""
FORKED = """
child = os.fork()
if child == 0:
    session.round(raw_tokens=2, summary_tokens=0)
    sys.exit(0 if emitter.stats.emitted == 1 else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(script: str, path: Path) -> None:
    # Forking with threads about is deprecated, and done; that is what is tested.
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreters_end_delivers(path: Path) -> None:
    run(SCRIPT, path)
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_has_its_own_books_and_thread(path: Path) -> None:
    run(SCRIPT + FORKED, path)
    found = [decode(line, check_key=False).event for line in path.read_bytes().splitlines()]
    assert sorted(event.after.raw_tokens for event in rounds(found)) == [1, 2]
    assert len(found) == 3


def test_a_file_needs_no_kafka_client(path: Path) -> None:
    run(SCRIPT + 'sys.exit("aiokafka" in sys.modules)', path)


def test_without_the_extra_the_error_names_it(path: Path) -> None:
    script = """
import sys
sys.modules["aiokafka"] = None
from compaction_events.emitter import Emitter
try:
    Emitter("127.0.0.1:9092", agent="coder")
except ImportError as error:
    sys.exit(0 if "compaction-monitor[emitter]" in str(error) else 3)
"""
    run(script, path)


def test_a_fact_made_without_checks_does_not_break_the_agent(emitter: Emitter) -> None:
    broken = builders.completed(1).model_copy(update={"session_id": None})
    assert not emitter.emit(broken)
    assert emitter.stats.dropped == {"failed": 1}
