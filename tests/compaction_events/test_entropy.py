"""One compressor for joint entropy, redundancy and bits per token: properties that hold whatever its version."""

from __future__ import annotations

import random

import pytest

from compaction_events.entropy import bits, entropy


def noise(seed: int) -> str:
    return random.Random(seed).randbytes(2_000).hex()


def test_two_children_that_say_the_same_hold_half_of_what_they_hold_apart() -> None:
    found = entropy([noise(1), noise(1)], noise(1), 1_000)
    assert found is not None
    assert found.redundancy == pytest.approx(0.5, abs=0.02)
    assert found.joint_bits == pytest.approx(bits(noise(1)), rel=0.02)
    assert found.bits_per_token == bits(noise(1)) / 1_000


def test_two_children_that_share_nothing_are_not_redundant() -> None:
    found = entropy([noise(1), noise(2)], noise(3), 1_000)
    assert found is not None
    assert 0 <= found.redundancy < 0.05
    # 2,000 random bytes are 16,000 bits; written as hexadecimal a little more.
    assert found.joint_bits == pytest.approx(2 * 16_000, rel=0.2)


@pytest.mark.parametrize(
    ("children", "written", "tokens"), [([], "x", 1), (["", ""], "x", 1), (["a", "b"], "", 0), (["a", "b"], "x", 0)]
)
def test_of_nothing_there_is_no_measure(children: list[str], written: str, tokens: int) -> None:
    assert entropy(children, written, tokens) is None


def test_half_an_emoji_is_text_too() -> None:
    assert bits("\ud800") > 0
