"""Publishes a model's stream as chunks while it arrives (protocol §5). They are for people; no code decides by them.

A delta is published at once if none was published in the last `gather_seconds` (50 ms), else with what comes until
they are over, as one message per kind; a reader that gathers itself never waits here. A separate task publishes, so
that a slow or dead NATS never slows the model's stream; with 0 each delta is a message, unless it comes while one is
sent. A chunk that cannot be published is counted as lost; no error is raised. Costs at most some 22 messages a second
per stream at 50 ms, each below 64 KiB.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, assert_never

from turnstile.rules.answer import Delta
from turnstile.runtime.ports import ContentDelta, Publisher, ReasoningDelta, ToolCallDelta
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, StepId
from turnstile.schema.json_reading import storable
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk, TurnAddress

CHUNK_LIMIT_BYTES = 65_536
GATHER_SECONDS = 0.05

_PIECE_CHARACTERS = 10_000  # JSON takes at most 6 bytes for a character, so a piece and its envelope stay below 64 KiB
_NAME_CHARACTERS = 128
_EARLY = 0.9
"""The share of `gather_seconds` after which a delta need not wait: what is read at intervals comes unevenly."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    """Consecutive deltas of one kind, gathered for one message."""

    chunk_type: ChunkType
    call_index: int | None
    texts: list[str]
    tool_name: str | None = None


@dataclass(slots=True)
class ChunkWriter:
    """Publishes one attempt of one step as `start`, content, reasoning and tool_call chunks, and `end`.

    An async context manager: entering publishes `start`, `add` takes deltas, `end` publishes the rest and `end`.
    Leaving without `end` drops the gathered deltas and publishes nothing more.
    """

    publisher: Publisher
    address: TurnAddress
    turn: AgentTurnId
    step: StepId
    attempt: int
    gather_seconds: float = GATHER_SECONDS
    lost: int = 0
    """Chunks that could not be published."""
    _index: int = 0
    _runs: list[_Run] = field(default_factory=list[_Run])
    _due: float = 0.0
    """When the next deltas may be published, by the loop's clock."""
    _timer: asyncio.TimerHandle | None = None
    """Wakes the sender when they are due, if deltas wait for that."""
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: bool = False
    _sender: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._emit(ChunkType.START)
        self._sender = asyncio.create_task(self._send_gathered(), name=f"chunks-{self.step}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
        if self.lost:
            _log.warning("%d of %d chunks of step %s were lost", self.lost, self._index, self.step)

    def add(self, delta: Delta) -> None:
        """Take a delta, which the sender publishes now or when the next ones are due."""
        run = _run_of(delta)
        if not run.texts[0] and run.tool_name is None:
            return
        last = self._runs[-1] if self._runs else None
        if last is None or (last.chunk_type, last.call_index) != (run.chunk_type, run.call_index):
            self._runs.append(run)
        else:
            last.texts += run.texts
            last.tool_name = last.tool_name or run.tool_name
        if self._timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._due:
                self._filled.set()
            else:
                self._timer = loop.call_at(self._due, self._filled.set)

    async def end(
        self,
        *,
        usage: JsonObject | None = None,
        response_cost: float | None = None,
        error_code: str | None = None,
        truncated: str | None = None,
    ) -> None:
        """Publish the gathered deltas and the `end` chunk: usage and cost of the answer, or why there is none."""
        if self._ending:
            return
        self._ending = True
        self._filled.set()
        if self._sender is not None:
            await self._sender
        codes = {"error_code": error_code, "truncated": truncated}
        metadata: JsonObject = {name: code for name, code in codes.items() if code is not None}
        await self._emit(ChunkType.END, metadata=metadata, usage=usage, response_cost=response_cost)

    async def _send_gathered(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._filled.wait()
            self._filled.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._due = loop.time() + _EARLY * self.gather_seconds
            runs, self._runs = self._runs, []
            for run in runs:
                await self._send(run)
            if self._ending and not self._runs:
                return

    async def _send(self, run: _Run) -> None:
        metadata: JsonObject = {}
        if run.call_index is not None:
            metadata["call_index"] = run.call_index
        if run.tool_name is not None:
            metadata["tool_name"] = storable(run.tool_name[:_NAME_CHARACTERS])
        text = storable("".join(run.texts))
        for start in range(0, max(len(text), 1), _PIECE_CHARACTERS):
            await self._emit(run.chunk_type, text[start : start + _PIECE_CHARACTERS], metadata)

    async def _emit(
        self,
        chunk_type: ChunkType,
        content: str = "",
        metadata: JsonObject | None = None,
        usage: JsonObject | None = None,
        response_cost: float | None = None,
    ) -> None:
        index = self._index
        self._index += 1
        try:
            chunk = Chunk(
                agent_turn_id=self.turn,
                step_id=self.step,
                attempt=self.attempt,
                index=index,
                chunk_type=chunk_type,
                content=content,
                metadata=metadata or {},
                usage=usage,
                response_cost=response_cost,
            )
            message = self.address.chunk(chunk)
            if len(message.payload) <= CHUNK_LIMIT_BYTES:
                await self.publisher.emit(message)
                return
        except Exception as error:  # noqa: BLE001 -- no failure to publish a chunk may end the attempt
            # Log only the type: the text of an error may quote the model's answer (protocol §7.9).
            _log.debug("could not send a chunk of step %s: %s", self.step, type(error).__name__)
        self.lost += 1


def _run_of(delta: Delta) -> _Run:
    match delta:
        case ContentDelta(text):
            return _Run(ChunkType.CONTENT, None, [text])
        case ReasoningDelta(text):
            return _Run(ChunkType.REASONING, None, [text])
        case ToolCallDelta(index, _, name, arguments):
            return _Run(ChunkType.TOOL_CALL, index, [arguments], name or None)
        case _:
            assert_never(delta)
