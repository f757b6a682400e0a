"""A turn's text from a gateway's events, exact: what was streamed, and of a card what was not (protocol §14.2)."""

import re

from httpx_sse import ServerSentEvent
from pydantic import JsonValue, ValidationError

from turnstile.schema.base import Tolerant
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentTurnId, StepId, step_id
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk

_STEP = re.compile(r":(\d{1,6})\.")
"""The number of the step in an event's id."""


class _Card(Tolerant):
    type: str
    content: JsonValue = None


class StreamedText:
    """Makes chunks of a turn's events: those that came, and of a card the text that did not."""

    def __init__(self, turn: AgentTurnId) -> None:
        self._turn = turn
        self._begin(step_id(turn, 0), 0)

    def take(self, event: ServerSentEvent) -> list[Chunk]:
        """The chunks of an event; what is none of ours has none."""
        try:
            match event.event:
                case "chunk":
                    return [self._chunk(Chunk.model_validate_json(event.data))]
                case "card":
                    return self._card(_Card.model_validate_json(event.data), event.id)
                case _:
                    return []
        except ValidationError:  # a newer gateway's; its card or the result has the text
            return []

    def _begin(self, step: StepId, attempt: int) -> None:
        self._step, self._attempt = step, attempt
        self._index = -1
        self._said: list[str] = []
        """The text of the attempt that was given on."""

    def _chunk(self, chunk: Chunk) -> Chunk:
        if (chunk.step_id, chunk.attempt) != (self._step, self._attempt):
            self._begin(chunk.step_id, chunk.attempt)
        self._index = chunk.index
        if chunk.chunk_type is ChunkType.CONTENT:
            self._said.append(chunk.content)
        return chunk

    def _card(self, card: _Card, event_id: str) -> list[Chunk]:
        """A model's text that was not streamed, or not to its end, or not as it is."""
        match card.content, _STEP.search(event_id):
            case ({"text": str(whole)}, re.Match() as found) if card.type == CardType.THOUGHT:
                pass
            case _:
                return []
        if (step := step_id(self._turn, int(found[1]))) != self._step:
            self._begin(step, 1)
        said = "".join(self._said)
        if whole == said:
            return []
        if not whole.startswith(said):
            self._begin(step, self._attempt + 1)
            said = ""
        missing = [] if self._index >= 0 else [self._made(ChunkType.START)]
        return [*missing, self._made(ChunkType.CONTENT, whole[len(said) :]), self._made(ChunkType.END)]

    def _made(self, kind: ChunkType, text: str = "") -> Chunk:
        return self._chunk(
            Chunk(
                agent_turn_id=self._turn,
                step_id=self._step,
                attempt=self._attempt,
                index=self._index + 1,
                chunk_type=kind,
                content=text,
            )
        )
