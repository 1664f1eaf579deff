"""The documentation's tables and pictures are what the command makes, and the figures are within what is stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction_monitor.simulate.figures import HELD_OUT, every, near, within
from compaction_monitor.simulate.markdown import markdown
from compaction_monitor.simulate.pictures import picture

DOCS = Path(__file__).parents[3] / "docs" / "simulate"
Documents = dict[str, dict[str, Any]]
# What falls short, and by how much at most.
SHORT = {
    "raw_ratio in round 28": 0.01,
    "rounds to 28 in which a session's own rose": 6,
    "raw_ratio in round 40 less that in round 28": 0.01,
}


@pytest.mark.parametrize("run", ["inversion", "saturation"])
def test_tables_and_picture_regenerate_equal(documents: Documents, run: str) -> None:
    again = (
        f"regenerate: compaction-monitor simulate {run} --markdown --picture docs/simulate/{run}.svg > docs/simulate/{run}.md"
    )
    assert (DOCS / f"{run}.md").read_text(encoding="utf-8") == markdown(documents[run]), again
    assert (DOCS / f"{run}.svg").read_text(encoding="utf-8") == picture(documents[run]), again


def test_every_observed_figure_is_met_but_those_that_are_told(documents: Documents) -> None:
    figures = [figure for document in documents.values() for figure in document["figures"]]
    short = {figure["name"]: figure for figure in figures if not figure["met"]}
    assert set(short) == set(SHORT)
    for name, figure in short.items():
        assert figure["short_by"] <= SHORT[name]
        assert figure["why"]


def test_the_seeds_are_held_out(documents: Documents) -> None:
    assert all(document["seeds"] == list(range(HELD_OUT, HELD_OUT + 20)) for document in documents.values())


def test_decay_brings_the_inversion_forward_in_every_session(documents: Documents) -> None:
    (table,) = [t for t in documents["inversion"]["tables"] if t["title"].startswith("When a recency decay")]
    later = {row["loop and work"]: row["later without"] for row in table["rows"]}
    assert later["rewrites; relevance differs between sub-topics"] == "20 of 20"


def test_decay_puts_it_off_where_what_is_fresh_is_raw(documents: Documents) -> None:
    (table,) = [t for t in documents["inversion"]["tables"] if t["title"].startswith("When a recency decay")]
    (row,) = [row for row in table["rows"] if row["loop and work"].startswith("the same, decay strong")]
    assert row["brought forward by"].startswith("-")


def test_a_figure_and_its_verdict() -> None:
    assert near("x", 1.0, [0.9, 1.3]).short_by == 0
    assert near("x", 1.0, [1.2, 1.2]).short_by == pytest.approx(0.195)
    assert within("x", 0.18, 0.24, [0.1], "18 to 24 %").short_by == pytest.approx(0.08)
    assert every("x", [True, False]).document()["met"] is False
