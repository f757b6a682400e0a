"""Chunks: what watchers get, how it is gathered, and that losing it costs nothing."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from turnstile.activities.prompt.chunks import CHUNK_LIMIT_BYTES, ChunkWriter
from turnstile.runtime.ports import ContentDelta, ReasoningDelta, ToolCallDelta
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, StepId
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk, Message, TurnAddress

ADDRESS = TurnAddress(ProjectId("p"), ChannelId("public"), AgentId("a"), AgentTurnId("t"), 1, {}, "worker")


class Recorder:
    """A publisher that keeps what it is given; `broken` makes it fail."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.arrived = asyncio.Event()
        self.failed = asyncio.Event()
        self.broken = False

    async def publish(self, messages: Sequence[Message]) -> None:
        raise AssertionError("chunks are never waited for")

    async def emit(self, message: Message) -> None:
        if self.broken:
            self.failed.set()
            raise ConnectionError("gone")
        self.sent.append(message)
        self.arrived.set()

    @property
    def chunks(self) -> list[Chunk]:
        return [Chunk.model_validate_json(message.payload) for message in self.sent]

    def brief(self) -> list[tuple[ChunkType, str]]:
        return [(chunk.chunk_type, chunk.content) for chunk in self.chunks]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(25):
            while len(self.sent) < count:
                self.arrived.clear()
                await self.arrived.wait()


def writer(publisher: Recorder, gather_seconds: float = 0.05) -> ChunkWriter:
    return ChunkWriter(publisher, ADDRESS, AgentTurnId("t"), StepId("t-s1"), 2, gather_seconds=gather_seconds)


async def test_the_first_delta_goes_out_at_once_and_others_are_gathered() -> None:
    publisher = Recorder()
    async with writer(publisher, gather_seconds=3600) as chunks:
        chunks.add(ContentDelta("Hel"))
        await publisher.until(2)
        chunks.add(ContentDelta("lo"))
        chunks.add(ContentDelta(" you"))
        chunks.add(ContentDelta(""))
        await asyncio.sleep(0)
        assert len(publisher.sent) == 2
        await chunks.end(usage={"prompt_tokens": 1}, response_cost=0.5)
        await chunks.end()
    assert publisher.brief() == [
        (ChunkType.START, ""),
        (ChunkType.CONTENT, "Hel"),
        (ChunkType.CONTENT, "lo you"),
        (ChunkType.END, ""),
    ]
    last = publisher.chunks[-1]
    assert (last.usage, last.response_cost) == ({"prompt_tokens": 1}, 0.5)
    assert [chunk.index for chunk in publisher.chunks] == [0, 1, 2, 3]
    assert {(chunk.agent_turn_id, chunk.step_id, chunk.attempt) for chunk in publisher.chunks} == {("t", "t-s1", 2)}
    assert {message.subject for message in publisher.sent} == {"cg.v1r4.p.public.str.agent.a.chunk"}


async def test_gathered_deltas_go_out_without_another_delta() -> None:
    publisher = Recorder()
    async with writer(publisher, gather_seconds=0.01) as chunks:
        chunks.add(ContentDelta("a"))
        await publisher.until(2)
        chunks.add(ContentDelta("b"))
        await publisher.until(3)
    assert publisher.brief()[1:] == [(ChunkType.CONTENT, "a"), (ChunkType.CONTENT, "b")]


async def test_without_gathering_each_delta_goes_out_by_itself() -> None:
    publisher = Recorder()
    async with writer(publisher, gather_seconds=0) as chunks:
        for number, word in enumerate(("a", "b", "c")):
            chunks.add(ContentDelta(word))
            await publisher.until(2 + number)
        await chunks.end()
    assert publisher.brief()[1:-1] == [(ChunkType.CONTENT, "a"), (ChunkType.CONTENT, "b"), (ChunkType.CONTENT, "c")]


async def test_kinds_and_calls_are_kept_apart() -> None:
    publisher = Recorder()
    async with writer(publisher) as chunks:
        for delta in (
            ReasoningDelta("h"),
            ReasoningDelta("m"),
            ContentDelta("x"),
            ToolCallDelta(0, "c0", "search"),
            ToolCallDelta(0, None, None, "{}"),
            ToolCallDelta(1, "c1", "n" * 1000, "{}"),
        ):
            chunks.add(delta)
        await chunks.end(error_code="rate_limited")
    assert publisher.brief() == [
        (ChunkType.START, ""),
        (ChunkType.REASONING, "hm"),
        (ChunkType.CONTENT, "x"),
        (ChunkType.TOOL_CALL, "{}"),
        (ChunkType.TOOL_CALL, "{}"),
        (ChunkType.END, ""),
    ]
    assert [chunk.metadata for chunk in publisher.chunks[3:]] == [
        {"call_index": 0, "tool_name": "search"},
        {"call_index": 1, "tool_name": "n" * 128},
        {"error_code": "rate_limited"},
    ]


@pytest.mark.parametrize("text", ["a" * 200_000, "\x01" * 50_000, "😀" * 50_000, "\ud83d\x00\ude00"])
async def test_no_chunk_is_too_large_and_none_is_lost(text: str) -> None:
    publisher = Recorder()
    async with writer(publisher) as chunks:
        chunks.add(ContentDelta(text))
        await chunks.end()
    assert max(len(message.payload) for message in publisher.sent) <= CHUNK_LIMIT_BYTES
    assert "".join(chunk.content for chunk in publisher.chunks).replace("😀", "?") == (
        text.replace("\ud83d\x00\ude00", "?").replace("😀", "?")
    )
    assert chunks.lost == 0


async def test_lost_chunks_are_counted_and_leave_a_gap() -> None:
    publisher = Recorder()
    async with writer(publisher, gather_seconds=0) as chunks:
        publisher.broken = True
        chunks.add(ContentDelta("a"))
        await publisher.failed.wait()
        publisher.broken = False
        chunks.add(ContentDelta("b"))
        await chunks.end()
    assert (chunks.lost, [chunk.index for chunk in publisher.chunks]) == (1, [0, 2, 3])


async def test_a_usage_that_is_too_large_loses_only_its_chunk() -> None:
    publisher = Recorder()
    async with writer(publisher) as chunks:
        await chunks.end(usage={"x": "y" * CHUNK_LIMIT_BYTES})
    assert (chunks.lost, publisher.brief()) == (1, [(ChunkType.START, "")])


async def test_leaving_early_sends_nothing_more() -> None:
    publisher = Recorder()

    async def write() -> None:
        async with writer(publisher, gather_seconds=3600) as chunks:
            chunks.add(ContentDelta("a"))
            await publisher.until(2)
            chunks.add(ContentDelta("b"))
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    task = asyncio.create_task(write())
    await publisher.until(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    assert json.loads(publisher.sent[-1].payload)["content"] == "a"
    assert len(publisher.sent) == 2
