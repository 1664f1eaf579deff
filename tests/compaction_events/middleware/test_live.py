"""What all middlewares share: passes of many sessions, summaries of summaries, and no fault that reaches the agent."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from compaction_events.facts import SessionEnded
from compaction_events.recorder import Message
from tests.compaction_events.middleware.collected import RULE, Collected


def said(name: str, text: str = "Reply", *, typed: bool = False) -> Message:
    return Message(name, text, typed=typed)


def summary(name: str, text: str = "port 8417, conf/app.toml") -> Message:
    return Message(name, text, depth=1)


def test_a_second_summary_is_written_from_the_first() -> None:
    found = Collected()
    live = found.live("test")
    rule, reply, more = said("m1", RULE, typed=True), said("m2"), said("m3", "More of a_b and c_d", typed=True)
    live.passed("s", [rule, reply], [summary("s1"), reply])
    live.passed("other", [rule], [summary("o1")])
    live.passed("s", [summary("s1"), reply, more], [summary("s2", "so far")])
    live.ended("s")
    live.ended("unknown")
    assert found.rounds == [
        ("s", 1, 1, 1, "ok", 1, [1]),
        ("other", 1, 1, 1, "ok", 1, [1]),
        ("s", 2, 2, 3, "ok", 2, [2]),
    ]
    assert found.edges == [("s1", []), ("o1", []), ("s2", ["s1"])]
    assert isinstance(found[-1], SessionEnded)
    assert found.types.count("proposition.stated") == 2


@pytest.mark.parametrize(("after", "kind"), [([], "none"), ([summary("s1", " ")], "empty")])
def test_what_kind_of_summary(after: list[Message], kind: str) -> None:
    found = Collected()
    found.live("test").passed("s", [said("m1", RULE, typed=True)], after)
    assert [one[4] for one in found.rounds] == [kind]


def test_a_fault_is_logged_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    live = Collected().live("test")

    def fail(_: Any) -> None:
        raise RuntimeError("secret text")

    live.emit = fail
    with caplog.at_level(logging.WARNING):
        live.passed("s", [said("m1")], [])
    assert caplog.messages == ["a compaction pass was not reported: RuntimeError"]
