"""The events of one turn as the updates of a task's artifact, exact whenever a client joins (protocol §17.3). Pure.

The artifact is what the turn has said last: the text of its step as it streams, then what it delivers. Text that is
void, by another attempt or because the step's card says otherwise, is replaced by an update that does not append. So a
client that folds updates as A2A says has what `GetTask` answers. Of what was told, only a hash is kept.
"""

import hashlib
from collections.abc import Iterator, Sequence

from turnstile.gateway.a2a.objects import Artifact, ArtifactUpdate, text_part
from turnstile.gateway.a2a.tasks import ARTIFACT, answer
from turnstile.gateway.events.frames import ResetEvent
from turnstile.gateway.events.step_log import Event, Piece
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, TextContent, read_content
from turnstile.schema.states import ChunkType

_SAID = frozenset({CardType.THOUGHT, CardType.DELIVERABLE})


class AnswerStream:
    """What one client is told of a task's artifact."""

    def __init__(self, task_id: str, context_id: str) -> None:
        self._ids = {"task_id": task_id, "context_id": context_id}
        self._place: tuple[int, int] | None = None
        """The step and the attempt whose text is being told."""
        self._hash = hashlib.sha256()
        self._told = False

    def take(self, event: Event) -> Iterator[ArtifactUpdate]:
        """The updates for one of the turn's events; none for its outcome."""
        match event.data:
            case Piece(kind=ChunkType.CONTENT, text=text) if text:
                yield self._piece((event.position.step, event.position.a), text)
            case CardAnswer() as card:
                text = _text_of(card)
                if text and not self._has(text):
                    yield self._piece((event.position.step, -1), text)
            case ResetEvent():
                self._place = None
            case _:
                pass

    def end(self, delivered: Artifact | None) -> Iterator[ArtifactUpdate]:
        """The last update: the whole artifact, for clients that keep the last one alone."""
        if delivered is None:
            if self._told:
                void: JsonObject = {"void": True}
                empty = Artifact(artifact_id=ARTIFACT, name=ARTIFACT, parts=[text_part("")], metadata=void)
                yield ArtifactUpdate(**self._ids, artifact=empty, append=False, last_chunk=True)
            return
        yield ArtifactUpdate(**self._ids, artifact=delivered, append=False, last_chunk=True)

    def _piece(self, place: tuple[int, int], text: str) -> ArtifactUpdate:
        appends = self._told and place == self._place
        if not appends:
            self._hash = hashlib.sha256()
        self._hash.update(text.encode("utf-8", "surrogatepass"))
        self._place, self._told = place, True
        return ArtifactUpdate(**self._ids, artifact=answer([text_part(text)]), append=appends, last_chunk=False)

    def _has(self, text: str) -> bool:
        """Whether exactly this text was told."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return self._told and self._place is not None and digest == self._hash.digest()


def latest(events: Sequence[Event]) -> list[Event]:
    """Of the events that a client which joins has not had, those that still count: of the last step, or the outcome."""
    if events and isinstance(events[-1].data, Turn):
        return [events[-1]]
    last = max((event.position.step for event in events), default=0)
    return [event for event in events if event.position.step == last]


def _text_of(card: CardAnswer) -> str | None:
    if card.type not in _SAID or not isinstance(card.content, dict):
        return None
    content = read_content(card.content)
    return content.text if isinstance(content, TextContent) else None
