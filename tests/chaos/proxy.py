"""A proxy in front of the broker that delays what passes, or cuts every connection and takes no new one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

CHUNK_BYTES = 65_536


class Proxy:
    """Passes on to `upstream` what comes to `port`, both of 127.0.0.1.

    Attributes:
        delay_s: How long each chunk is held back, in either direction.
    """

    def __init__(self, port: int, upstream: int) -> None:
        self.delay_s = 0.0
        self._port, self._upstream = port, upstream
        self._refuses = False
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._passing, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection, and those to come until `heal`."""
        self._refuses = True
        for writer in list(self._open):
            writer.transport.abort()

    def heal(self) -> None:
        """Take connections again, and hold nothing back."""
        self._refuses = False
        self.delay_s = 0.0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._refuses:
                raise ConnectionRefusedError
            there, back = await asyncio.open_connection("127.0.0.1", self._upstream)
        except OSError:  # refused by us, or by a broker that is down
            writer.transport.abort()
            return
        self._open |= {writer, back}
        both = [asyncio.create_task(self._pass(reader, back)), asyncio.create_task(self._pass(there, writer))]
        self._passing.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in (writer, back):
            one.transport.abort()
            self._open.discard(one)
        await asyncio.wait(both)
        self._passing.difference_update(both)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)  # the fault itself
                writer.write(chunk)
                await writer.drain()
