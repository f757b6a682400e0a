"""The order of a feed: the text of a step comes after everything before it; how a stream ends, and who learns of it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from starlette.types import Message

from turnstile.gateway.events.feed import Sources, TurnFeed
from turnstile.gateway.events.positions import BEGIN
from turnstile.gateway.events.stream import EventStream, Streaming
from turnstile.ledger.access.pages import TurnCard
from turnstile.schema.cards import CardType, Role, ToolResultContent, make_card
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId, step_id
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.events import Chunk


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
    async with asyncio.timeout(25):
        await stream({"type": "http", "method": "GET", "client": ("c", 1)}, client.receive, client.send)
    assert sorted(heard) == sorted(called)
    if got is not None:
        assert [piece for piece in client.got if piece != b"one" or not closes] == got


TURN = AgentTurnId("t-1")
VIEW = TurnView.model_validate(
    {
        **dict.fromkeys(TurnView.model_fields),
        "agent_turn_id": TURN,
        "project_id": "p",
        "agent_id": "a",
        "channel_id": "c",
        "inbox_id": "i",
        "inbox_status": "consumed",
        "status": "running",
        "created_at": datetime.now(UTC),
        "steps": 1,
        "reruns": (),
    }
)


class NoServers:
    """A connection that is there, and a ledger whose rows the test gives."""

    reconnects = -1

    def __init__(self) -> None:
        self.rows: list[TurnCard] = []

    async def run(self, _: object) -> Any:
        self.asked = not getattr(self, "asked", False)
        return None if self.asked else self.rows


async def test_a_steps_text_waits_for_the_results_before_it() -> None:
    servers = NoServers()
    feed = TurnFeed(Sources(cast("Any", servers), cast("Any", servers), 1000), VIEW)
    own = {"agent_turn_id": TURN, "step_id": StepId(step_id(TURN, 2)), "attempt": 1}
    chunk = Chunk.model_validate({**own, "index": 0, "chunk_type": ChunkType.CONTENT, "content": "found"})
    await feed._on_chunk("", chunk.model_dump_json().encode())
    assert feed.after(BEGIN) == []
    assert feed._hint.is_set()
    content = ToolResultContent(status=TurnStatus.SUCCESS, result=1)
    call = ToolCallId("t-1-s1-c0")
    card = make_card(CardId("r"), CardType.TOOL_RESULT, Role.TOOL, content, author="tool.x", tool_call=call)
    first = StepId(step_id(TURN, 1))
    servers.rows = [TurnCard(first, 1, 0, 0, None, "completed", None), TurnCard(first, 3, 1, 0, card, None, None)]
    await feed._look()
    assert [(each.position.step, each.position.part) for each in feed.after(BEGIN)] == [(1, 2), (1, 3), (2, 0)]
