"""The same job in every contender, on the same core, one after the other: `python -m bench` (`make bench`).

Prints a line for each run and a table at the end; the last line of stdout is one JSON object with every figure.

    python -m bench                     everything: three loads, three repeats, about three quarters of an hour
    python -m bench --quick             ours, Quix Streams, stock Faust and the aiokafka ceiling on the first load
    python -m bench --only ours quix --load 500x200 --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import cluster, machine
from bench.contenders import ALL, QUICK, Contender, UnavailableError
from bench.jobs.job import Job
from bench.load import LOADS, STEADY, Load, events
from bench.run import FailedError, Input, Result, measure
from compaction_events.codec import Encoded
from compaction_monitor.effects import Outgoing
from compaction_monitor.state.session import Session

Runs = dict[str, list[Result]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--quick", action="store_true", help="four contenders, the first load, once, under a minute")
    names = [contender.name for contender in ALL]
    who.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--load", nargs="+", choices=list(LOADS), metavar="LOAD", help=", ".join(LOADS))
    parser.add_argument("--repeats", type=int, help="3, with --quick 1")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each load, for trying things out")
    return parser.parse_args()


def ready(wanted: Sequence[Contender]) -> tuple[dict[Contender, list[str]], dict[str, str]]:
    """The commands of those that can run here, and why the others cannot."""
    commands, missing = {}, {}
    for contender in wanted:
        try:
            commands[contender] = contender.command()
        except UnavailableError as unavailable:
            missing[contender.name] = str(unavailable)
            say(f"{contender.name} is left out: {unavailable}")
    return commands, missing


async def fill(address: str, load: Load) -> Input:
    topic = f"load-{load.name}-{load.records}"
    await cluster.create(address, [cluster.input_topic(topic)])
    alerts: list[Outgoing] = []
    records = await cluster.preload(address, topic, judged(load, alerts))
    return Input(topic, records, await cluster.ends(address, topic), len(alerts))


def judged(load: Load, alerts: list[Outgoing]) -> Iterator[Encoded]:
    """The events of a load; what the pure functions alone make of them is put beside: the alerts."""
    job, now_ms = Job(), int(time.time() * 1000)
    sessions: dict[bytes, Session | None] = {}
    for sent in events(load):
        sessions[sent.key], found = job.fold(sessions.get(sent.key), sent.value, sent.headers, sent.key, now_ms)
        alerts += [finding for finding in found if cluster.is_alert(finding.headers)]
        yield sent


async def compare(
    load: Load,
    commands: dict[Contender, list[str]],
    repeats: int,
    address: str,
    cores: tuple[int, int] | None,
    disagreements: list[str],
) -> Runs:
    """Every contender once, then all again: what changes on the machine meanwhile falls on all alike.

    Each time another one begins. With repeats the first one has run before, and does not count: a broker is slow at first.
    """
    inputs: dict[Load, Input] = {}
    for contender in commands:
        part = load.scaled(contender.share)
        if part not in inputs:
            inputs[part] = await fill(address, part)
    runs: Runs = {contender.name: [] for contender in commands}
    core, broker_core = cores or (None, None)
    order = list(commands.items())
    turns = [(number, order[number % len(order) :] + order[: number % len(order)]) for number in range(repeats)]
    if repeats > 1:
        turns.insert(0, (-1, order[:1]))
    with machine.on_core(broker_core):
        for number, contenders in turns:
            for contender, command in contenders:
                where = f"{load.name} {number + 1}/{repeats} {contender.name}"
                source = inputs[load.scaled(contender.share)]
                try:
                    result = await measure(contender, command, address, source, core)
                except FailedError as failed:
                    say(f"{where}: failed, {failed}")
                    continue
                say(
                    f"{where}: {result.per_second:,.0f} events/s, {result.cpu_us:.1f} µs CPU an event, "
                    f"{result.findings} findings, {result.rss_mb:.0f} MiB"
                )
                if number >= 0:
                    runs[contender.name].append(result)
                if not contender.ceiling and result.alerts != source.alerts:
                    disagreements.append(f"{where}: {result.alerts} alerts, the functions alone make {source.alerts}")
    return runs


def summary(runs: Runs) -> dict[str, Any]:
    """Medians and spreads, and ours against each."""
    found: dict[str, Any] = {}
    for name, results in runs.items():
        if not results:
            continue
        rates = [result.per_second for result in results]
        cpu = [result.cpu_us for result in results]
        found[name] = {
            "events_per_s": round(statistics.median(rates)),
            "lowest": round(min(rates)),
            "highest": round(max(rates)),
            "cpu_us_per_event": round(statistics.median(cpu), 2),
            "findings": results[-1].findings,
            "alerts": results[-1].alerts,
            "records": results[-1].records,
            "rss_mb": round(statistics.median(result.rss_mb for result in results)),
            "runs": [round(rate) for rate in rates],
        }
    if "ours" in found:
        ours = found["ours"]
        for other in found.values():
            other["ours_to_this"] = round(ours["events_per_s"] / other["events_per_s"], 3)
            if other["cpu_us_per_event"]:
                other["ours_to_this_by_cpu"] = round(other["cpu_us_per_event"] / ours["cpu_us_per_event"], 3)
    return found


def table(load: str, found: dict[str, Any]) -> None:
    print(f"\n{load}: events a second on one core, from the first record to the last one committed")
    print(f"{'':28} {'median':>9} {'lowest':>9} {'highest':>9} {'CPU µs':>8} {'ours is':>9} {'by CPU':>8}")
    for name, row in found.items():
        ratio, by_cpu = row.get("ours_to_this"), row.get("ours_to_this_by_cpu")
        print(
            f"{name:28} {row['events_per_s']:>9,} {row['lowest']:>9,} {row['highest']:>9,} {row['cpu_us_per_event']:>8} "
            f"{f'{ratio:.2f} x' if ratio else '':>9} {f'{by_cpu:.2f} x' if by_cpu else '':>8}"
        )


async def main() -> None:
    given = arguments()
    wanted = [contender for contender in ALL if contender.name in given.only] if given.only else QUICK if given.quick else ALL
    loads = [LOADS[name] for name in given.load] if given.load else [STEADY] if given.quick else list(LOADS.values())
    repeats = given.repeats or (1 if given.quick else 3)
    commands, missing = ready(wanted)
    if not commands:
        sys.exit("nobody can run here")
    cores = machine.cores()
    if cores is None:
        say("processes cannot be pinned here: broker and contender share what cores there are")
    document: dict[str, Any] = {
        "machine": machine.describe(),
        "pinned": cores is not None,
        "repeats": repeats,
        "settings": {contender.name: contender.settings for contender in commands},
        "versions": {contender.name: contender.versions for contender in commands},
        "left_out": missing,
        "disagreements": [],
        "loads": {},
    }
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, cluster.Broker(Path(folder), cores and cores[1]) as broker:
        for load in loads:
            wrong = document["disagreements"]
            found = summary(await compare(load.scaled(given.scale), commands, repeats, broker.address, cores, wrong))
            document["loads"][load.name] = found
            table(load.name, found)
    for line in document["disagreements"]:
        print(f"NOT THE SAME JOB: {line}")
    print(json.dumps(document))


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
