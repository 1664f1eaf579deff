"""How much is in a text, and how much of several texts is the same: one compressor for all of it.

The compressor is LZMA2 from the standard library, without container, so that a short text is not all header, and with a
window wider than any set of summaries, so that what two children share is found wherever it stands.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from typing import Final, NamedTuple

METHOD: Final = "lzma2"
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 22}]


class Entropy(NamedTuple):
    """What children hold together.

    Args:
        joint_bits: All of them compressed as one text.
        redundancy: 1 - joint / the sum of each alone, 0..1.
        bits_per_token: Of the text written from them, by the same compressor: what a budget in tokens is worth in bits.
    """

    joint_bits: float
    redundancy: float
    bits_per_token: float


def bits(text: str) -> int:
    """The compressed size of a text, in bits; 0 of nothing.

    >>> bits("") == 0 < bits("tide tables") <= bits("tide tables, tide tables, tide tables") < 3 * bits("tide tables")
    True
    """
    if not text:
        return 0
    raw = lzma.compress(text.encode("utf-8", "replace"), format=lzma.FORMAT_RAW, filters=_FILTERS)
    return 8 * len(raw)


def entropy(children: Sequence[str], written: str, written_tokens: int) -> Entropy | None:
    """Measure a summary's children and the summary itself; None where there is nothing to measure.

    Args:
        children: Their texts, in the order in which they were read.
        written: The text written from them.
        written_tokens: How many tokens that has.
    """
    alone = sum(map(bits, children))
    own = bits(written)
    if not alone or not own or not written_tokens:
        return None
    # A compressor's joint size can exceed the sum by some bits of framing: no information is shared then, not less than none.
    joint = min(bits("\n".join(children)), alone)
    return Entropy(float(joint), 1 - joint / alone, own / written_tokens)
