"""`dead-letters`: records that broke the contract; what was wrong with them, sending them again, dropping them."""

from __future__ import annotations

import asyncio
import uuid
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from compaction_events.errors import ContractError, Reason
from compaction_events.facts import RemediationAcknowledged
from compaction_monitor.cli import options, output
from compaction_monitor.cli.broker import Broker, Set, broker_problems, client_settings
from compaction_monitor.cli.exits import Code, Problem
from compaction_monitor.cli.sources import shown
from compaction_monitor.cli.wording import counted
from compaction_monitor.dead_letters import DROPPED, NO_EFFECT, REPLAYED, Again, Letter, Name, Receipt, fault, sent_again

if TYPE_CHECKING:
    from compaction_monitor.shell.letters import Entry, Index, Letters
    from compaction_monitor.shell.settings import Settings

app = typer.Typer(help="Records that broke the contract: what is wrong, replay, drop.", no_args_is_help=True)
SOURCE: Final = "compaction-monitor"
SHOWN_ROWS: Final = 100
# Sent and settled together: so many are in memory, and sent twice by a run that dies in between.
AT_ONCE: Final = 200
# The worker's message for these holds no value of a field.
_CONTENT_FREE: Final = frozenset(
    {Reason.record_too_large, Reason.wrong_topic, Reason.wrong_partition, Reason.undecodable_record, Reason.internal_error}
)
_OPEN: Final = "open"
T = TypeVar("T")

Names = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="As list names them.", show_default=False)
]
One = Annotated[str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET", help="As list names it.")]
OfReason = Annotated[Reason | None, typer.Option("--reason", help="Only those refused for this.", show_default=False)]
OfTopic = Annotated[str | None, typer.Option("--topic", help="Only those that came on this topic.", show_default=False)]
Every = Annotated[bool, typer.Option("--all", help="Every one that is open.")]


@app.command("list")
def list_(
    reason: OfReason = None,
    topic: OfTopic = None,
    everything: Annotated[bool, typer.Option("--settled", help="Also those that were replayed or dropped.")] = False,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """List dead letters that are open, each once, oldest first within a partition. Exits 0 also if there are none."""

    async def run(letters: Letters) -> Index:
        return await letters.index()

    index = _with_letters(client_settings(broker, settings), run)
    found = _matching(index, reason, topic, settled=everything)
    if json:
        output.json_document({"letters": [_row(entry) for entry in found], "repeats": index.repeats})
        return
    _table(found)


@app.command("show")
def show(
    name: One,
    value: Annotated[bool, typer.Option("--value", help="Its value and the values found at fault; they may be text.")] = False,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write its value, as it came, there.")] = None,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Show one: the reason, every fault, its headers. Exits 3 if there is none of that name."""
    wanted = _named([name])

    async def run(letters: Letters) -> tuple[Entry, Letter]:
        (entry,) = _select(await letters.index(), wanted, None, None, everything=False)
        return entry, await _whole(letters, entry)

    entry, letter = _with_letters(client_settings(broker, settings), run)
    if save is not None:
        _save(save, letter)
    document = _document(entry, letter, value=value)
    if json:
        output.json_document(document)
    else:
        _show(document)


@app.command("replay")
def replay(
    names: Names = None,
    reason: OfReason = None,
    topic: OfTopic = None,
    everything: Every = False,
    value: Annotated[
        Path | None, typer.Option("--value", metavar="FILE", help="Send this JSON event in its place; for one letter.")
    ] = None,
    rekey: Annotated[bool, typer.Option("--rekey", help="Key it by its session, whatever its key was.")] = False,
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for the worker's next answer.")] = 30.0,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Send dead letters again, to the topic they came on and by the same way as any record, and say what became of each.

    `late: no effect`: its session has moved on. Nothing is sent that breaks the contract as it is.
    Exits 4 if one cannot be sent or was refused again, 1 if no worker has read one in time (it will), 3 for no such letter.
    """
    wanted = _named(names)
    if value is not None and len(wanted) != 1:
        raise Problem(Code.usage, "--value puts one letter right: name it.")
    fixed = None if value is None else _read(value)
    chosen = client_settings(broker, settings)

    async def run(letters: Letters) -> list[dict[str, Any]]:
        entries = _select(await letters.index(), wanted, reason, topic, everything=everything)
        return await _replay(letters, chosen, entries, fixed, rekey=rekey, wait_s=wait)

    results = _with_letters(chosen, run)
    if json:
        output.json_document({"replayed": results})
    else:
        for result in results:
            typer.echo(f"{result['id']}  {_said(result)}")
    outcomes = Counter(result["outcome"] for result in results)
    if outcomes["refused"]:
        raise typer.Exit(int(Code.invalid))
    if outcomes["unread"]:
        raise typer.Exit(int(Code.failed))


@app.command("drop")
def drop(
    names: Names = None,
    reason: OfReason = None,
    topic: OfTopic = None,
    everything: Every = False,
    broker: Broker = None,
    settings: Set = None,
    json: options.Json = False,
) -> None:
    """Take dead letters off the list. The topic keeps them as long as its retention says. Exits 3 for no such letter."""
    wanted = _named(names)

    async def run(letters: Letters) -> list[Entry]:
        entries = _select(await letters.index(), wanted, reason, topic, everything=everything)
        await letters.settle(dict.fromkeys(entries, DROPPED))
        return entries

    dropped = _with_letters(client_settings(broker, settings), run)
    if json:
        output.json_document({"dropped": [str(entry.name) for entry in dropped]})
    else:
        typer.echo(f"Dropped {counted(len(dropped), 'dead letter')}.")


def _with_letters(settings: Settings, work: Callable[[Letters], Coroutine[Any, Any, T]]) -> T:
    with broker_problems():
        from compaction_monitor.shell.letters import letters

        async def run() -> T:
            async with letters(settings) as opened:
                return await work(opened)

        return asyncio.run(run())


def _named(names: Sequence[str] | None) -> list[Name]:
    found = []
    for name in names or ():
        try:
            found.append(Name.parse(name))
        except ValueError:
            raise Problem(
                Code.usage, f"{name}: no TOPIC/PARTITION/OFFSET.", todo="compaction-monitor dead-letters list"
            ) from None
    return found


def _select(index: Index, names: list[Name], reason: Reason | None, topic: str | None, *, everything: bool) -> list[Entry]:
    """Those named, whatever became of them; else the open ones that match."""
    if names and (reason or topic or everything):
        raise Problem(Code.usage, "Either names, or --reason, --topic and --all.")
    if names:
        missing = [str(name) for name in names if name not in index.entries]
        if missing:
            raise Problem(Code.not_found, f"No dead letter {', '.join(missing)}.", todo="compaction-monitor dead-letters list")
        return [index.entries[name] for name in dict.fromkeys(names)]
    if not (reason or topic or everything):
        raise Problem(Code.usage, "Which ones? Name them, or --reason, --topic or --all.")
    return _matching(index, reason, topic, settled=False)


def _matching(index: Index, reason: Reason | None, topic: str | None, *, settled: bool) -> list[Entry]:
    found = [
        entry
        for entry in index.entries.values()
        if (settled or entry.state == _OPEN) and reason in (None, entry.reason) and topic in (None, entry.name.topic)
    ]
    return sorted(found, key=lambda entry: entry.name)


async def _whole(letters: Letters, entry: Entry) -> Letter:
    letter = await letters.letter(entry)
    if letter is None:
        raise Problem(Code.not_found, f"{entry.name} has left the topic: its retention has passed.")
    return letter


async def _replay(
    letters: Letters, settings: Settings, entries: Sequence[Entry], fixed: bytes | None, *, rekey: bool, wait_s: float
) -> list[dict[str, Any]]:
    """Send what keeps to the contract; a result for each, in order. Once nobody reads in time, no more is sent."""
    results: list[dict[str, Any]] = []
    while len(results) < len(entries) and all(result["outcome"] != "unread" for result in results):
        some = entries[len(results) : len(results) + AT_ONCE]
        results += await _replay_some(letters, settings, some, fixed, rekey=rekey, wait_s=wait_s)
    unsent = entries[len(results) :]
    return results + [{"id": str(entry.name), "sent": False, **_became(None)} for entry in unsent]


async def _replay_some(
    letters: Letters, settings: Settings, entries: Sequence[Entry], fixed: bytes | None, *, rekey: bool, wait_s: float
) -> list[dict[str, Any]]:
    ready: dict[str, tuple[str, Again]] = {}
    results: dict[Name, dict[str, Any]] = {}
    marks: dict[str, Entry] = {}
    for entry in entries:
        mark = str(uuid.uuid4())
        try:
            again = _prepared(await _whole(letters, entry), mark, fixed, rekey=rekey)
            ready[mark] = (_topic(settings, entry, again), again)
            marks[mark] = entry
        except ContractError as error:
            results[entry.name] = {"id": str(entry.name), "sent": False, **_refused(error.reason.value, error)}
    answers = await letters.replay(ready, wait_s) if ready else {}
    for mark, entry in marks.items():
        results[entry.name] = {"id": str(entry.name), "sent": True, **_became(answers.get(mark))}
    read = {entry: REPLAYED for mark, entry in marks.items() if mark in answers}
    if read:
        await letters.settle(read)
    return [results[entry.name] for entry in entries]


def _prepared(letter: Letter, mark: str, fixed: bytes | None, *, rekey: bool) -> Again:
    if letter.truncated and (fixed is None or "key" in letter.truncated):
        raise fault(
            Reason.record_too_large, "record", f"cut: {', '.join(letter.truncated)}", "a whole one; --value FILE gives it"
        )
    return sent_again(letter, mark, SOURCE, fixed, rekey=rekey)


def _topic(settings: Settings, entry: Entry, again: Again) -> str:
    """The one it came on, unless just that was wrong."""
    answers = isinstance(again.event, RemediationAcknowledged)
    allowed = (settings.outcomes_topic,) if answers else settings.events_topics
    if entry.name.topic not in settings.input_topics:
        raise Problem(
            Code.invalid, f"{entry.name.topic} is no input of this monitor.", f"its inputs: {', '.join(settings.input_topics)}",
            "Name the topics in the settings, as the worker has them.",
        )  # fmt: skip
    return entry.name.topic if entry.name.topic in allowed else allowed[0]


def _refused(reason: str, error: ContractError) -> dict[str, Any]:
    faults = [{"field": fault.field, "found": shown(fault.value), "allowed": fault.allowed} for fault in error.faults]
    return {"outcome": "refused", "effect": False, "reason": reason, "faults": faults}


def _became(answer: Letter | Receipt | None) -> dict[str, Any]:
    match answer:
        case None:
            return {"outcome": "unread", "effect": None}
        case Letter():
            return {"outcome": "refused", "effect": False, "reason": answer.reason, "again": str(answer.name)}
    return {"outcome": answer.outcome, "effect": answer.outcome not in NO_EFFECT}


def _said(result: dict[str, Any]) -> str:
    match result["outcome"]:
        case "refused" if not result["sent"]:
            faults = "; ".join(
                f"{fault['field']}: {fault['found']} (allowed: {fault['allowed']})" for fault in result["faults"]
            )
            return f"not sent, it still breaks the contract: {result['reason']}: {faults}"
        case "refused":
            return f"refused again: {result['reason']}; now {result['again']}"
        case "unread" if not result["sent"]:
            return "not sent: no worker has read those before it"
        case "unread":
            return "sent; no worker has read it yet"
    return result["outcome"] if result["effect"] else f"{result['outcome']}: no effect"


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "id": str(entry.name),
        "reason": entry.reason,
        "key": None if entry.key is None else _escaped(entry.key),
        "bytes": entry.size,
        "at": datetime.fromtimestamp(entry.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "truncated": list(entry.truncated),
        "state": entry.state,
    }


def _document(entry: Entry, letter: Letter, *, value: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        **_row(entry),
        "headers": [
            [_escaped(name.encode()), None if content is None else _escaped(content)] for name, content in letter.headers
        ],
        "replay": letter.replay,
    }
    faults = letter.faults
    if faults is not None:
        found["faults"] = [
            {"field": fault.field, "found": fault.value if value else shown(fault.value), "allowed": fault.allowed}
            for fault in faults
        ]
    if value or letter.reason in _CONTENT_FREE:
        found["message"] = letter.message
    if value:
        found["value"] = None if letter.value is None else letter.value.decode(errors="backslashreplace")
        found["value_base64"] = None if letter.value is None else b64encode(letter.value).decode()
    return found


def _escaped(content: bytes) -> str:
    """Printable whatever it holds: a record's bytes must not steer a terminal."""
    text = content.decode(errors="backslashreplace")
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def _table(found: Sequence[Entry]) -> None:
    out = output.console()
    if not found:
        out.print(Text("No dead letters.", style="green"))
        return
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("id", "reason", "key", "bytes", "at", "state"):
        table.add_column(column, justify="right" if column == "bytes" else "left", overflow="fold")
    for row in map(_row, found[:SHOWN_ROWS]):
        cells = (
            row["id"],
            row["reason"],
            row["key"] or "-",
            f"{row['bytes']:,}",
            row["at"][:19].replace("T", " "),
            row["state"],
        )
        table.add_row(*map(Text, cells))
    out.print(table)
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in Counter(entry.reason for entry in found).most_common())
    out.print(Text(f"{counted(len(found), 'dead letter')}: {reasons}", style="dim"))
    if len(found) > SHOWN_ROWS:
        output.warn(f"the first {SHOWN_ROWS}; --json lists all")


def _show(document: dict[str, Any]) -> None:
    out = output.console()
    for name in ("id", "reason", "state", "at", "key", "bytes"):
        out.print(Text.assemble((f"{name}: ", "dim"), str(document[name])), soft_wrap=True)
    for found in document.get("faults", ()):
        out.print(
            Text.assemble(("fault: ", "dim"), f"{found['field']}: {found['found']} (allowed: {found['allowed']})"),
            soft_wrap=True,
        )
    if "message" in document:
        out.print(Text.assemble(("message: ", "dim"), _escaped(document["message"].encode())), soft_wrap=True)
    elif "faults" not in document:
        out.print(Text("This release finds no fault in it; what the worker found may be text: --value shows it.", style="dim"))
    for name, content in document["headers"]:
        out.print(Text.assemble(("header: ", "dim"), f"{name}={content}"), soft_wrap=True)
    if "value" in document:
        value = document["value"]
        out.print(Text.assemble(("value: ", "dim"), "-" if value is None else _escaped(value.encode())), soft_wrap=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Problem(Code.not_found, f"Cannot read {path}", error.strerror or "") from None


def _save(path: Path, letter: Letter) -> None:
    try:
        path.write_bytes(letter.value or b"")
    except OSError as error:
        raise Problem(Code.failed, f"Cannot write {path}", error.strerror or "") from None
