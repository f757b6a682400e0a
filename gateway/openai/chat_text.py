"""The text of a turn as it is told to a client that cannot take back what it was told. Pure.

A step that begins anew must say again what was told of it; then the text goes on where it was. The texts of several
steps are set apart by a blank line, and the deliverable follows if the last step did not say it.
"""

from collections.abc import Sequence
from typing import Final

from turnstile.gateway.events.frames import ResetEvent, StepDone
from turnstile.gateway.events.step_log import Event, Piece
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.cards import CardType
from turnstile.schema.errors import TurnstileError
from turnstile.schema.states import ChunkType

_APART: Final = "\n\n"


class StreamVoided(TurnstileError):
    """What was streamed is no longer what the turn says."""

    code: str = "stream_voided"


class ToldText:
    """What a client was told of one turn."""

    def __init__(self) -> None:
        self._step: int = 0
        self._attempt: int = 0
        self._told: list[str] = []
        """Of the step."""
        self._again = ""
        """What the step must still say again."""
        self._any = False

    def take(self, events: Sequence[Event]) -> str:
        """The text to tell after these events; raises `StreamVoided`."""
        return "".join(self._take(event) for event in events)

    def deliver(self, text: str) -> str:
        """The text to tell after all, for the deliverable to have been told."""
        streamed = "".join(self._told)
        if text == streamed or not text:
            return ""
        if streamed and text.startswith(streamed):
            return text[len(streamed) :]
        return _APART + text if self._any else text

    def _take(self, event: Event) -> str:
        match event.data:
            case Piece() as piece:
                self._enter(event.position.step, event.position.a)
                return self._say(piece.text) if piece.kind is ChunkType.CONTENT else ""
            case ResetEvent():
                self._again = "".join(self._told)
                return ""
            case CardAnswer(type=CardType.THOUGHT, content=content):
                self._enter(event.position.step, self._attempt)
                text = content.get("text") if isinstance(content, dict) else None
                if not isinstance(text, str) or (self._told and not self._again):
                    return ""
                self._again = "".join(self._told)  # the card has the whole text
                return self._say(text)
            case StepDone():
                if self._again:
                    raise _voided()
                return ""
            case CardAnswer() | Turn():
                return ""

    def _enter(self, step: int, attempt: int) -> None:
        if step != self._step:
            self._step, self._attempt, self._again = step, attempt, ""
            self._told = []
        elif attempt != self._attempt:
            self._attempt, self._again = attempt, "".join(self._told)

    def _say(self, text: str) -> str:
        if self._again:
            known = min(len(text), len(self._again))
            if text[:known] != self._again[:known]:
                raise _voided()
            self._again, text = self._again[known:], text[known:]
        if not text:
            return ""
        apart = _APART if self._any and not self._told else ""
        self._told.append(text)
        self._any = True
        return apart + text


def _voided() -> StreamVoided:
    return StreamVoided("a step was retried, and its text differs from what was streamed; request it without stream")
