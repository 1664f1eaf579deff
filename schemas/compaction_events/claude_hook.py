"""A hook for Claude Code: reports a session at every compaction, and can hold one back while a halt is ordered.

In `.claude/settings.json`:

```json
{"hooks": {
  "PreCompact": [{"hooks": [{"type": "command", "command": "python -m compaction_events.claude_hook --to HOST:PORT"}]}],
  "SessionStart": [{"matcher": "compact",
                    "hooks": [{"type": "command", "command": "python -m compaction_events.claude_hook --to HOST:PORT"}]}]}}
```

`--to file:PATH` needs no broker; one that asks who this is wants `--security FILE` (TOML with the fields of
`compaction_events.security.Security`). With `--orders FILE` (what `compaction-monitor watch --json` writes) an automatic
or manual pass is blocked while an order `halt_and_rehydrate` for this session is open: neither withdrawn, nor resumed, nor
expired.
Whatever goes wrong in here, the agent goes on: the exit code is always 0, and what failed is said on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from compaction_events.codec import decode
from compaction_events.errors import ContractError
from compaction_events.findings import RemediationRequested, RemediationWithdrawn, Resume
from compaction_events.ids import text_hash

AGENT: Final = "claude-code"
FLUSH_S: Final = 3.0


def main(arguments: Sequence[str] | None = None, text: str | None = None, now: datetime | None = None) -> str:
    """What the hook prints: a decision to block, or nothing.

    Args:
        arguments: As on the command line.
        text: What Claude Code sends on stdin.
        now: The time; by default the machine's.
    """
    given = _parser().parse_args(arguments)
    try:
        call = orjson.loads(sys.stdin.read() if text is None else text)
        if given.to and isinstance(call.get("transcript_path"), str):
            report(Path(call["transcript_path"]), given.to, given.cursor, given.security)
        if given.orders is None or call.get("hook_event_name") != "PreCompact":
            return ""
        halt = open_halt(given.orders.read_bytes().splitlines(), call["session_id"], now or datetime.now(UTC))
    except Exception as error:  # noqa: BLE001 - a hook that fails must not stop the agent
        sys.stderr.write(f"compaction hook: {type(error).__name__}: {error}\n")
        return ""
    return "" if halt is None else blocked(halt)


def report(transcript: Path, target: str, cursor: Path | None = None, security: Path | None = None) -> None:
    """Send what is new in a session, as far as later lines cannot change it.

    Raises:
        ImportError: An extra is missing.
        OSError, ValueError: The file with the security settings cannot be used.
        TimeoutError: The broker does not answer; the next hook sends it again.
    """
    from compaction_events.adapters.following import Follower
    from compaction_events.emitter import Emitter
    from compaction_events.security import Security

    name = text_hash(f"{target}\n{transcript}")
    default = Path.home() / ".local" / "state" / "compaction-monitor" / f"hook-{name}.json"
    follower = Follower([transcript], cursor or default)
    shown = None if security is None else Security.read(security)
    with Emitter(target, agent=AGENT, security=shown) as emitter:
        for news in follower.poll():
            for fact in news.facts:
                emitter.emit(fact)
            if not emitter.flush(FLUSH_S):
                raise TimeoutError(f"{target} does not answer")
            follower.delivered(news)


def open_halt(lines: Iterable[bytes], session_id: str, now: datetime) -> RemediationRequested | None:
    """The order of a halt that is open in this session, the last one; None if there is none."""
    halts: dict[str, RemediationRequested] = {}
    for line in lines:
        try:
            event = decode(line, check_key=False).event
        except ContractError:
            continue
        if event.session_id != session_id:
            continue
        if isinstance(event, RemediationWithdrawn):
            halts.pop(event.id, None)
        elif isinstance(event, RemediationRequested) and isinstance(event.plan, Resume):
            halts.pop(event.plan.halted_by, None)
        elif isinstance(event, RemediationRequested) and event.action == "halt_and_rehydrate":
            halts[event.id] = event
    still = [halt for halt in halts.values() if halt.expires_at > now]
    return still[-1] if still else None


def blocked(halt: RemediationRequested) -> str:
    """The answer that holds a pass back, in Claude Code's form."""
    reason = f"Compaction is halted by order {halt.id} ({halt.reason.check}) until {halt.expires_at.isoformat()}."
    answer: dict[str, Any] = {"decision": "block", "reason": reason}
    return orjson.dumps(answer).decode()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compaction_events.claude_hook", description="A hook for Claude Code.")
    parser.add_argument("--to", metavar="TARGET", help="HOST:PORT of a broker, or file:PATH")
    parser.add_argument("--security", metavar="FILE", type=Path, help="how the broker knows this client")
    parser.add_argument("--orders", metavar="FILE", type=Path, help="findings, one a line: block while a halt is open")
    parser.add_argument("--cursor", metavar="FILE", type=Path, help="remembers what was sent")
    return parser


if __name__ == "__main__":
    sys.stdout.write(main())
