"""docs/sizing.md against what computes it, and against the overlay; what of its figures takes a moment is measured."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import math
import re
import shlex
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from bench import cost, sizing
from bench.load import event
from compaction_events.codec import encode
from compaction_monitor.core import CACHED_SESSIONS
from compaction_monitor.shell.settings import Settings
from compaction_monitor.shell.transport import MAX_OUTSTANDING
from compaction_monitor.state.cache import row_key
from compaction_monitor.state.session import Session
from tests.natively import ROOT
from tests.test_kubernetes import container, one, settings_of
from tests.test_readme import parsed

DOCUMENT = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
UNITS = {"Mi": 1, "Gi": 1024}


def test_its_tables_are_those_that_are_computed() -> None:
    assert f"\n\n{sizing.table()}\n\n" in DOCUMENT
    assert f"\n\n{sizing.measured()}\n\n" in DOCUMENT
    twenty = sizing.row(sizing.Fleet(1_000_000, checkpoints=20))
    assert "\n".join([*sizing.table().splitlines()[:2], twenty]) in DOCUMENT


def test_the_sum_for_a_million_sessions() -> None:
    """By hand: 10^6 / 60 = 16,667 events/s at 50 us are 0.83 cores, half busy 2 workers, and a third."""
    figures = {
        "event_cpu_us": 50.0, "event_bytes": 400.0, "changelog_bytes": 800.0, "store_bytes": 1_000.0, "rows_per_s": 50_000.0,
        "idle_mib": 100.0, "decoded_bytes": 1024.0**2 / CACHED_SESSIONS, "row_bytes": 1024.0**2 / CACHED_SESSIONS,
        "record_bytes": 1024.0**2 / (MAX_OUTSTANDING + 2**20 / 400),
    }  # fmt: skip
    made = sizing.plan(sizing.Fleet(1_000_000), figures)
    assert (round(made.events_per_s), made.workers, made.partitions) == (16_667, 3, 16)
    assert made.memory_mib == math.ceil(1.2 * (100 + 64 + 8 * (1 + 1 + 5 + 16)))  # two workers have all 16 partitions
    assert (made.recovery_s, made.gauges_s) == (10.0, 31.25)
    assert made.volume_gib == 1 + 1  # half a million rows, twice, and the rest
    assert made.changelog_gib == pytest.approx((2 * 800e6 + 2 * 16 * 64 * 2**20) / 2**30)
    assert made.events_gib == pytest.approx(1e6 / 60 * 400 * 7 * 86_400 / 2**30)


@pytest.mark.parametrize("per_minute", sizing.PER_MINUTE)
def test_more_sessions_never_need_less(per_minute: float) -> None:
    plans = [sizing.plan(sizing.Fleet(sessions, per_minute)) for sessions in range(10_000, 2_000_000, 10_000)]
    for fewer, more in itertools.pairwise(plans):
        assert (more.workers, more.partitions) >= (fewer.workers, fewer.partitions)
        assert more.workers <= more.partitions
        assert more.events_gib > fewer.events_gib


def test_the_figures_come_from_commands_that_there_are() -> None:
    for figure in sizing.MEASURED.values():
        if module := re.match(r"python -m ([\w.]+)", figure.command):
            assert importlib.util.find_spec(module[1])
        else:
            assert (ROOT / figure.command).is_file()
    parts = {part for figure in sizing.MEASURED.values() for part in re.findall(r"--part (\w+)", figure.command)}
    assert parts <= set(cost.PARTS)


def test_a_row_and_a_decoded_session_are_no_larger_than_it_says() -> None:
    row = cost.full_session().to_bytes()
    assert len(row) <= sizing.MEASURED["row_bytes"].value
    each = traced(lambda number: (row_key(f"session-{number:032}"), Session.from_bytes(bytes(row))))
    assert each <= sizing.MEASURED["decoded_bytes"].value * 1.1  # Python's releases differ by a little


def test_an_event_is_no_larger_than_it_says_in_the_log_and_in_memory() -> None:
    logged = []

    def fetched(number: int) -> Any:
        sent = encode(event(number, 5), source="bench")
        headers = tuple((name, bytes(bytearray(value))) for name, value in sent.headers)
        # Two lengths for each header, and what a record begins with.
        logged.append(10 + len(sent.key) + len(sent.value) + sum(2 + len(name) + len(value) for name, value in headers))
        sizes = len(sent.key), len(sent.value)
        return ConsumerRecord("t", 0, number, 0, 1, bytes(sent.key), bytes(sent.value), None, *sizes, headers)

    assert traced(fetched) <= sizing.MEASURED["record_bytes"].value * 1.1
    assert sum(logged) / len(logged) <= sizing.MEASURED["event_bytes"].value


def traced(make: Callable[[int], Any], count: int = 1_000) -> float:
    """Bytes that one of many such objects takes; of three times the least, because other threads take memory too."""
    return min(_traced(make, count) for _ in range(3))


def _traced(make: Callable[[int], Any], count: int) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        kept = [make(number) for number in range(count)]
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()


def mebibytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


@pytest.mark.parametrize("fleet", [sizing.Fleet(100_000, 6), sizing.Fleet(500_000, 1)])
def test_the_overlay_for_production_is_large_enough_for_what_is_said_of_it(fleet: sizing.Fleet) -> None:
    made, spec = sizing.plan(fleet), one("prod", "StatefulSet")["spec"]
    assert spec["replicas"] >= made.workers
    assert settings_of("prod", spec["template"]).partitions >= made.partitions
    assert mebibytes(container(spec["template"])["resources"]["limits"]["memory"]) >= 1.5 * made.memory_mib
    (claim,) = spec["volumeClaimTemplates"]
    assert mebibytes(claim["spec"]["resources"]["requests"]["storage"]) >= made.volume_gib * 1024


def test_its_commands_are_commands() -> None:
    (block,) = re.findall(r"^ *```console\n(.*?)```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    words = shlex.split(block.strip().removeprefix("$ ").replace("\\\n", " "))
    assert words[0] == "compaction-monitor"
    parsed(tuple(words[1:]))


def test_no_app_id_in_the_documents_lets_readers_of_one_monitor_into_another_ones_group() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {word for page in pages for word in re.findall(r"\bapp_id=([\w.-]+)", page.read_text(encoding="utf-8"))}
    everywhere = {*named, Settings().app_id}
    assert {(one, other) for one in everywhere for other in everywhere if other.startswith(f"{one}-")} == set()
    assert named


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", DOCUMENT)
    assert {link for link in links if not link.startswith("#")} == {"../bench/README.md"}
    assert "## More partitions" in DOCUMENT


@pytest.mark.parametrize("overlay", ["dev", "prod"])
def test_no_worker_is_ended_for_memory_with_all_partitions_that_can_be_its_own(overlay: str) -> None:
    spec = one(overlay, "StatefulSet")["spec"]
    partitions, others = settings_of(overlay, spec["template"]).partitions, max(1, spec["replicas"] - 1)
    one_partition = sizing.plan(sizing.Fleet(1)).memory_mib / sizing.FEWEST_PARTITIONS  # its share of eight
    assert (
        mebibytes(container(spec["template"])["resources"]["limits"]["memory"])
        >= math.ceil(partitions / others) * one_partition
    )
