"""Derived ids are part of the contract: they must come out the same in every release, from every path."""

from __future__ import annotations

import uuid
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction_events import builders
from compaction_events.codec import ce_id, decode, encode
from compaction_events.examples import EXAMPLES
from compaction_events.facts import Fact
from compaction_events.ids import NAMESPACE, derived, finding_id, publication_id, text_hash

GOLDEN = {
    "session.started": "b3ca6513-676f-5a8c-a894-b99839491817",
    "round.completed": "181183c9-32f1-5af7-9e01-eb7af769f360",
    "session.ended": "6221ce11-b2e7-5c60-8711-8f3291ca5125",
    "checkpoint.written": "e9c2790f-31b5-5557-a8f8-7ded9deb4deb",
    "checkpoint.regenerated": "3c385dc1-8c67-5536-855f-b9a273ce5445",
    "proposition.stated": "b0ca2bbd-9308-5655-906d-c165561752f7",
    "proposition.missed": "17945ab7-630a-562f-9765-4e9491d5497c",
    "remediation.acknowledged": "0fadaa2b-3ec6-56e8-9212-2271a9b89880",
    "alert.raised": "b63b9ebc-ffbb-5bdc-911a-1d3efe47a23a",
    "alert.resolved": "bee1d18e-780c-5ea5-b6c0-1c86c2d032f6",
    "remediation.requested": "0bc1221a-ed14-568f-af60-7bcd3b4bf3a8",
    "remediation.withdrawn": "12397652-a100-5866-9289-52ef620e42b8",
}


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_golden(event: Fact) -> None:
    assert ce_id(event) == GOLDEN[event.type]


@given(st.lists(st.text()))
def test_it_is_the_standard_librarys_uuid5(parts: list[str]) -> None:
    assert derived(*parts) == str(uuid.uuid5(NAMESPACE, "".join(f"{len(part)}:{part}" for part in parts)))


def test_golden_parts() -> None:
    assert derived() == "5a748d79-bd86-55b2-9f84-baa16d5f7757"
    assert derived("a", "bc") == "b0368c38-b2b9-576f-8540-11d328491466"
    assert finding_id("s", "salience_inversion", "", "opened-by", 0) == "146e3e5d-aa0b-5a6d-aba0-be581557ade9"
    assert publication_id("finding", "alert.raised", 2) == "6ab828f5-a963-5ae3-9a56-ee491f0fa5a2"
    assert text_hash("must use TLS 1.3") == "6f12069693029757"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_no_two_lists_of_parts_meet(one: list[str], other: list[str]) -> None:
    assert (derived(*one) == derived(*other)) == (one == other)


def test_the_zone_of_a_time_is_not_its_identity() -> None:
    utc = builders.ended(90)
    elsewhere = utc.model_copy(update={"ended_at": utc.ended_at.astimezone(timezone(timedelta(hours=5, minutes=30)))})
    assert ce_id(elsewhere) == ce_id(utc)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (builders.completed(1), builders.completed(2)),
        (builders.completed(1), builders.completed(1, at=builders.at(61))),
        (builders.completed(1), builders.completed(1, "another")),
        (builders.written("n", 1, 5), builders.written("n", 2, 5)),
        (builders.written("n", 1, 5), builders.written("m", 1, 5)),
        (
            builders.regenerated("n", 5, trial_number=1, remediation_id="r"),
            builders.regenerated("n", 5, trial_number=2, remediation_id="r"),
        ),
        (builders.stated("p", 1), builders.stated("q", 1)),
        (builders.stated("p", 1), builders.stated("p", 2)),
        (builders.acknowledged("r", "accepted", 5), builders.acknowledged("r", "completed", 5)),
    ],
)
def test_different_facts_have_different_ids(one: Fact, other: Fact) -> None:
    assert ce_id(one) != ce_id(other)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_the_same_from_a_file_and_from_a_record(event: Fact) -> None:
    record = encode(event)
    assert decode(record.value, check_key=False).ce_id == decode(record.value, record.headers, record.key).ce_id == ce_id(event)


def test_a_text_cut_inside_an_emoji_still_has_a_hash() -> None:
    assert text_hash("ok \ud83d") != text_hash("ok ")
