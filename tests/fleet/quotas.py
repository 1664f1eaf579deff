"""A quota of the broker's for all who read: how a cluster slows a client that asks for too much."""

from __future__ import annotations

import socket
import struct

_ALTER_CLIENT_QUOTAS = 49
_KEY = "consumer_byte_rate"


class QuotaRefusedError(Exception):
    """The broker did not take it."""


def reading(address: str, bytes_per_s: float | None) -> None:
    """Let every client read so many bytes a second and no more; None: as many as it likes.

    No client library here speaks this request (AlterClientQuotas, version 0), so it is written by hand.

    Raises:
        QuotaRefusedError: The broker refused.
    """
    host, _, port = address.rpartition(":")
    default_client = _array(_string("client-id") + _string(None))
    change = _array(_string(_KEY) + struct.pack(">d?", bytes_per_s or 0.0, bytes_per_s is None))
    body = _array(default_client + change) + struct.pack(">?", False)  # not only validated
    request = struct.pack(">hhi", _ALTER_CLIENT_QUOTAS, 0, 1) + _string("fleet") + body
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        answer = _read(connection, size)
    # Correlation id, throttle time, one entry: its error comes first.
    _, _, entries, error = struct.unpack_from(">iiih", answer)
    if (entries, error) != (1, 0):
        raise QuotaRefusedError(f"error {error}: {answer!r}")


def _array(one: bytes) -> bytes:
    return struct.pack(">i", 1) + one


def _string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    return struct.pack(">h", len(text)) + text.encode()


def _read(connection: socket.socket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        if not (more := connection.recv(size - len(read))):
            raise QuotaRefusedError("the broker hung up")
        read += more
    return read
