"""A receiver of push notifications that a test controls: a real HTTP server on loopback."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.conditions import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


@dataclass(frozen=True)
class Note:
    """A notification as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Its id."""
        return self.headers["webhook-id"]

    @property
    def update(self) -> dict[str, Any]:
        """What it tells."""
        return json.loads(self.body)["statusUpdate"]

    @property
    def state(self) -> str:
        """The state that it tells of."""
        return self.update["status"]["state"].removeprefix("TASK_STATE_")


@dataclass
class Receiver:
    """What came, and what is answered."""

    port: int = 0
    notes: list[Note] = field(default_factory=list[Note])
    answer: Callable[[Note], bytes] = lambda _: OK
    hangs: bool = False
    floods: bool = False

    @property
    def url(self) -> str:
        """Where it receives."""
        return f"http://127.0.0.1:{self.port}/hook?n=1"

    def states(self, turn: str) -> list[str]:
        """The states that it was told of a turn, in order."""
        return [note.state for note in self.notes if note.update["taskId"] == turn]

    async def told(self, turn: str, state: str, timeout: float = 25.0) -> Note:
        """The first notification of a turn in a state."""

        async def there() -> Note | None:
            return next((n for n in self.notes if n.update["taskId"] == turn and n.state == state), None)

        return await until(there, timeout, f"{turn} is told to be {state}")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            note = Note(first.split()[1], headers, body)
            self.notes.append(note)
            if self.hangs:
                await reader.read()
            writer.write(self.answer(note))
            while self.floods:
                writer.write(b"x" * 65536)
                await writer.drain()
            await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving() -> AsyncGenerator[Receiver]:
    """A receiver."""
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
