"""What is known of one step of a turn: the text as it streams, then its cards and results. Pure.

Chunks are kept in their order without gaps; one that comes early waits for those before it. A higher attempt voids the
lower ones. `finish` says whether what was streamed is what the step's cards say: only then may a client that heard a
part of it go on with the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from turnstile.gateway.events.frames import ResetEvent, StepDone, chunk_frame
from turnstile.gateway.events.positions import EventPart, Position
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk

_EARLY = 1000


class ChunkPiece(NamedTuple):
    """What a chunk says; its position has step, attempt and index."""

    kind: ChunkType
    text: str


class Event(NamedTuple):
    """An event: the place after it, its bytes in `/v1`, and its meaning."""

    position: Position
    frame: bytes
    data: ChunkPiece | ResetEvent | CardAnswer | StepDone | Turn


@dataclass(slots=True)
class StepLog:
    """One step."""

    number: int
    looked: bool = True
    """Whether the ledger was read since the step's first chunk: then the results before it are known."""
    attempt: int = 0
    chunks: list[Event] = field(default_factory=list[Event])
    """Of the highest attempt, from index `dropped` on."""
    dropped: int = 0
    size: int = 0
    text: list[str] = field(default_factory=list[str])
    early: dict[int, Chunk] = field(default_factory=dict[int, Chunk])
    ended: bool = False
    """Whether the attempt's last chunk is there, and all before it."""
    committed: bool = False
    complete: bool = False
    """Whether the chunks are the whole text of the committed step."""
    cards: list[Event] = field(default_factory=list[Event])
    """And the event of the step's end."""
    results: list[Event] = field(default_factory=list[Event])

    @property
    def has_gap(self) -> bool:
        """Whether a chunk came whose predecessor did not."""
        return bool(self.early)

    def take(self, chunk: Chunk) -> bool:
        """Take a chunk; returns whether there are new ones in order."""
        if self.committed or chunk.attempt < max(self.attempt, 1):
            return False
        if chunk.attempt > self.attempt:
            self.attempt, self.chunks, self.dropped, self.size = chunk.attempt, [], 0, 0
            self.text, self.early, self.ended = [], {}, False
        if chunk.index >= self._next and len(self.early) < _EARLY:
            self.early[chunk.index] = chunk
        before = self._next
        while (event := self.early.pop(self._next, None)) is not None:
            self._append(event)
        return self._next > before

    def shrink(self, most: int) -> None:
        """Drop the oldest chunks until at most so many bytes are kept."""
        while self.size > most and self.chunks:
            gone = self.chunks[: max(1, len(self.chunks) // 4)]
            del self.chunks[: len(gone)]
            self.dropped += len(gone)
            self.size -= sum(len(entry.frame) for entry in gone)

    def finish(self, texts: list[str]) -> None:
        """The step is committed, with these texts on its cards; empty if nothing is known of its text."""
        text = "".join(self.text)
        self.complete = self.ended and (not texts or text in texts)
        self.committed = True
        self.early = {}
        self.text = []

    def after(self, cursor: Position, reset: Callable[[int], Event]) -> list[Event]:
        """The events that a client at `cursor` has not had; `reset` makes the one that voids the text of a step."""
        begun = cursor.step == self.number and cursor.in_chunks
        if not self.committed:
            return self._chunks_after(cursor)
        events: list[Event] = []
        if begun:
            events = self._chunks_after(cursor) if self.complete else []
            if not self.complete or not self._reaches(cursor):
                events = [reset(self.number)]
        return events + [card for card in (*self.cards, *self.results) if card.position > cursor]

    @property
    def _next(self) -> int:
        return self.dropped + len(self.chunks)

    def _append(self, chunk: Chunk) -> None:
        position = Position(self.number, EventPart.CHUNKS, chunk.attempt, chunk.index)
        event = Event(position, chunk_frame(chunk, position), ChunkPiece(chunk.chunk_type, chunk.content))
        self.chunks.append(event)
        self.size += len(event.frame)
        if chunk.chunk_type is ChunkType.CONTENT:
            self.text.append(chunk.content)
        self.ended = self.ended or chunk.chunk_type is ChunkType.END

    def _reaches(self, cursor: Position) -> bool:
        """Whether the chunks go on where the cursor is."""
        if cursor.a == self.attempt:
            return self.dropped <= cursor.b + 1 <= self._next
        return cursor.a < self.attempt and self.dropped == 0

    def _chunks_after(self, cursor: Position) -> list[Event]:
        if cursor.step == self.number and cursor.in_chunks:
            if not self._reaches(cursor):
                return []
            first = cursor.b + 1 - self.dropped if cursor.a == self.attempt else 0
            return self.chunks[first:]
        return self.chunks[:] if self.dropped == 0 and cursor < Position(self.number, EventPart.CHUNKS, 1, 0) else []
