"""Which partition a key belongs to: murmur2, as the Java client and aiokafka have it.

Written out, because the pure middle imports no Kafka client and aiokafka's own is slower; a test holds the two
against each other.
"""

from __future__ import annotations

import struct

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition number of a key.

    >>> partition_of(b"session-1", 8)
    4
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """32-bit murmur2 with Kafka's seed, unsigned."""
    length = len(key)
    whole = length // 4
    h = 0x9747B28C ^ length
    for k in struct.unpack_from(f"<{whole}I", key):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if rest := key[whole * 4 :]:
        h = ((h ^ int.from_bytes(rest, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)
