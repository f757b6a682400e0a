"""How a stream ends, and who learns of it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from turnstile.gateway.events.stream import EventStream, Streaming


class Client:
    """The other end of a stream: how it behaves, and what it was sent."""

    def __init__(self, *, takes: bool = True, leaves: bool = False) -> None:
        self.takes, self.leaves = takes, leaves
        self.got: list[bytes] = []
        self.ended = False

    async def receive(self) -> Message:
        if not self.leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            if not self.takes:
                await asyncio.Event().wait()
            self.got.append(message["body"])
            self.ended = not message["more_body"]


async def pieces(*, endless: bool = True) -> AsyncGenerator[bytes]:
    yield b"one"
    if endless:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("client", "closes", "endless", "called", "got"),
    [
        (Client(), False, False, [], [b"one", b""]),
        (Client(leaves=True), False, True, ["gone"], None),
        (Client(takes=False), False, True, ["cut", "aborted"], []),
        (Client(), True, True, ["cut"], [b"farewell"]),
    ],
    ids=["over", "gone", "slow", "stopping"],
)
async def test_whoever_opened_a_stream_learns_how_it_ended(
    client: Client, closes: bool, endless: bool, called: list[str], got: list[bytes] | None
) -> None:
    heard: list[str] = []

    async def gone() -> None:
        heard.append("gone")

    async def cut() -> None:
        heard.append("cut")

    closing = asyncio.Event()
    streaming = Streaming(closing, 0.05, lambda _: heard.append("aborted"))
    if closes:
        closing.set()
    stream = EventStream(pieces(endless=endless), streaming, contextlib.nullcontext(), gone, cut, b"farewell")
    async with asyncio.timeout(5):
        await stream({"type": "http", "method": "GET", "client": ("c", 1)}, client.receive, client.send)
    assert sorted(heard) == sorted(called)
    if got is not None:
        assert [piece for piece in client.got if piece != b"one" or not closes] == got
