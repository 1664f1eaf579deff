"""The hook as Claude Code runs it: events out, a halt obeyed, and never a reason for the agent to stop."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from compaction_events import claude_hook
from compaction_events.codec import ce_id, decode
from compaction_events.facts import Fact
from compaction_events.findings import RemediationRequested, RemediationWithdrawn
from compaction_monitor import golden
from compaction_monitor.report.document import SessionReport
from compaction_monitor.rules import Rules
from tests.compaction_events.adapters.test_following import transcript, whole


def call(path: Path, event: str = "PreCompact", session: str = golden.SESSION) -> str:
    told = {"session_id": session, "transcript_path": str(path), "hook_event_name": event, "trigger": "auto", "cwd": "/"}
    return orjson.dumps(told).decode()


def published(*facts: Fact) -> list[Any]:
    report = SessionReport(facts[0].session_id, "events")
    return [finding for fact in facts for finding in report.add(fact, Rules())]


def halts() -> list[Any]:
    """What the golden series leads to: a halt, then other findings."""
    found = published(*golden.series(rounds=14))
    assert [one.action for one in found if isinstance(one, RemediationRequested)] == ["halt_and_rehydrate"]
    return found


def orders(path: Path, *findings: Fact) -> Path:
    lines = [orjson.dumps({"ce_id": ce_id(one), **one.model_dump(mode="json", exclude_none=True)}) for one in findings]
    path.write_bytes(b"\n".join([b"not JSON", *lines]))
    return path


def test_events_go_to_a_file_once(tmp_path: Path) -> None:
    path, log = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    lines = transcript(passes=2)
    arguments = ["--to", f"file:{log}", "--cursor", str(tmp_path / "cursor")]
    for number in (9, len(lines)):
        path.write_bytes(b"".join(lines[:number]))
        assert claude_hook.main(arguments, call(path)) == ""
        assert claude_hook.main(arguments, call(path, "SessionStart")) == ""
    assert [decode(line, check_key=False).ce_id for line in log.read_bytes().splitlines()] == whole(path)


def test_a_halt_holds_a_pass_back_while_it_is_open(tmp_path: Path) -> None:
    [halt] = [one for one in halts() if isinstance(one, RemediationRequested)]
    arguments = ["--orders", str(orders(tmp_path / "findings", *halts()))]
    now = halt.expires_at - timedelta(seconds=1)
    answer = orjson.loads(claude_hook.main(arguments, call(tmp_path), now))
    expected = f"Compaction is halted by order {halt.id} (salience_inversion) until {halt.expires_at.isoformat()}."
    assert answer == {"decision": "block", "reason": expected}
    others = [
        claude_hook.main(arguments, call(tmp_path, "SessionStart"), now),
        claude_hook.main(arguments, call(tmp_path, session="another"), now),
        claude_hook.main(arguments, call(tmp_path), halt.expires_at),
    ]
    assert others == ["", "", ""]


def test_a_halt_that_was_called_back_or_resumed_is_over(tmp_path: Path) -> None:
    [halt] = [one for one in halts() if isinstance(one, RemediationRequested)]
    at = halt.requested_at
    told = {"session_id": halt.session_id, "agent": halt.agent, "subject": ""}
    withdrawn = RemediationWithdrawn.model_validate(
        {**told, "id": halt.id, "action": "halt_and_rehydrate", "because": "resolved", "withdrawn_at": at}
    )
    plan = {"action": "resume", "halted_by": halt.id, "because": "resolved"}
    resumed = RemediationRequested.model_validate({**halt.model_dump(), "id": "r", "action": "resume", "plan": plan})
    for ending in (withdrawn, resumed):
        arguments = ["--orders", str(orders(tmp_path / "findings", *halts(), ending))]
        assert claude_hook.main(arguments, call(tmp_path), at) == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--orders", "gone"], "{}"),
        (["--orders", "gone"], call(Path("gone"))),
        (["--to", "file:/no/such/folder/x"], call(Path("gone"))),
        (["--to", "127.0.0.1:1"], "not JSON"),
        (["--to", "127.0.0.1:1"], "[]"),
    ],
)
def test_whatever_fails_the_agent_goes_on(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert claude_hook.main(arguments, text) == ""


def test_what_the_broker_did_not_take_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude_hook, "FLUSH_S", 0.05)
    path, log = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(b"".join(transcript(passes=1)))
    cursor = ["--cursor", str(tmp_path / "cursor")]
    with pytest.raises(TimeoutError):
        claude_hook.report(path, "127.0.0.1:1", tmp_path / "cursor")
    assert claude_hook.main(["--to", f"file:{log}", *cursor], call(path)) == ""
    assert [decode(line, check_key=False).ce_id for line in log.read_bytes().splitlines()] == whole(path)


def test_as_a_command(tmp_path: Path) -> None:
    """The default time is the machine's: an order of long ago is over."""
    found = orders(tmp_path / "findings", *halts())
    command = [sys.executable, "-m", "compaction_events.claude_hook", "--orders", str(found)]
    ran = subprocess.run(command, input=call(tmp_path), capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
