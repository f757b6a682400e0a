"""Lines of standard input, read without holding up the event loop and without a thread that outlives the program."""

import asyncio
import os
from contextlib import suppress
from typing import TextIO

_PIECE = 65_536


class InputLines:
    """Reads lines from a stream's descriptor: a terminal, a pipe or a file."""

    def __init__(self, stream: TextIO) -> None:
        self._fd = stream.fileno()
        self._unread = b""
        self._ended = False

    async def next(self) -> str | None:
        """The next line without its end; None at the end of the input."""
        while b"\n" not in self._unread and not self._ended:
            await self._readable()
            piece = os.read(self._fd, _PIECE)
            self._unread += piece
            self._ended = not piece
        if not self._unread:
            return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    async def _readable(self) -> None:
        """Wait until there is something to read; a file always has."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        with suppress(PermissionError):  # epoll does not take files
            loop.add_reader(self._fd, lambda: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(self._fd)
