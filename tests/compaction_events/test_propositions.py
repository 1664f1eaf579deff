"""What counts as a constraint, how it is named, and when a text still states it."""

from __future__ import annotations

import pytest

from compaction_events.measures import anchors
from compaction_events.propositions import MAX_CHARS, Proposition, Tracked, name, propositions


def made(*found: str, digits: str = "", pinned: bool = False) -> Proposition:
    return Proposition(name(frozenset({*found, *digits})), frozenset(found), pinned)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Never edit conf/app.toml", [made("conf/app.toml", pinned=True)], id="a rule"),
        pytest.param("You must use `ruff` here", [made("ruff", pinned=True)], id="a rule with a quoted word"),
        pytest.param("Please keep it under 4000 lines", [made("4000")], id="a wish"),
        pytest.param("At most 3 retries in fetch_page", [made("fetch_page", digits="3")], id="a digit beside a name"),
        pytest.param("At most 3 retries", [], id="a digit alone is everywhere"),
        pytest.param("Always be kind", [], id="no anchor, no proposition"),
        pytest.param("I looked at conf/app.toml", [], id="it constrains nothing"),
        pytest.param("Thorough knowledge of conf/app.toml", [], id="a word inside another is none"),
        pytest.param(
            "Serve port 8417. Never use conf/old.toml; only conf/new.toml\n- avoid a_b",
            [made("conf/old.toml", pinned=True), made("conf/new.toml"), made("a_b")],
            id="sentence by sentence",
        ),
        pytest.param("never a_b. never a_b", [made("a_b", pinned=True)] * 2, id="said twice"),
        pytest.param("never a_b " + "x" * 2_000, [], id="a sentence that is none"),
        pytest.param("never a_b. " + "x. " * MAX_CHARS, [], id="a pasted file"),
    ],
)
def test_propositions(text: str, expected: list[Proposition]) -> None:
    assert list(propositions(text)) == expected


def test_the_same_rule_in_other_words_is_the_same() -> None:
    texts = ("Never write to conf/app.toml on port 8417", "port 8417: conf/app.toml must not be written")
    assert len({found.id for text in texts for found in propositions(text)}) == 1


def test_a_text_states_what_it_has_all_anchors_of() -> None:
    tracked = Tracked()
    new = [*tracked.state("Never a_1 with b_1. Only c_1"), *tracked.state("never A_1 with B_1; avoid d_1")]
    both, one, other = made("a_1", "b_1", pinned=True), made("c_1"), made("d_1")
    assert new == [both, one, other]
    assert [
        tracked.stated_by(frozenset(anchors(text)) for text in texts)
        for texts in (["d_1 and a_1 b_1"], ["a_1", "b_1"], ["c_1", "b_1 a_1 x_1"], [])
    ] == [(both.id, other.id), (), (both.id, one.id), ()]


def test_no_more_than_a_thousand_are_tracked() -> None:
    tracked = Tracked()
    assert len([tracked.state(f"never a_{number}") for number in range(1_100)]) == 1_100
    assert len(tracked) == 1_000
    assert tracked.state("never a_0") == []
