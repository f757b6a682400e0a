"""Where a client is in a turn's events: the ids of server-sent events, and their order (protocol §14.2). Pure.

An id is `{turn}:{step}.{part}.{a}.{b}` or `{turn}:end`. It derives from the step and the chunk's attempt and index, or
from the place of the card, so that every gateway gives the same event the same id.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId

_ID = re.compile(r"([A-Za-z0-9_-]{1,128}):(?:(end)|(\d{1,6})\.([0-4])\.(\d{1,9})\.(\d{1,9}))\Z", re.ASCII)
_LAST = 999_999_999
_STEPS = 1_000_000


class EventPart(IntEnum):
    """The parts of a step's events, in their order."""

    CHUNKS = 0
    CARDS = 1
    STEP = 2
    RESULTS = 3


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place among the events of one turn: after the event of this id."""

    step: int
    part: int
    a: int
    """Of a chunk its attempt, of a card or a result its place in the step."""
    b: int
    """Of a chunk its index."""

    def id(self, turn: AgentTurnId) -> str:
        """The id of its event."""
        return f"{turn}:end" if self == END else f"{turn}:{self.step}.{self.part}.{self.a}.{self.b}"

    @property
    def in_chunks(self) -> bool:
        """Whether its client has begun to hear the text of a step, and not heard of its end."""
        return self.part == EventPart.CHUNKS and 0 < self.a < _LAST


BEGIN = Position(0, EventPart.CHUNKS, 0, 0)
END = Position(_LAST, EventPart.RESULTS, _LAST, _LAST)


def are_places(step: int, attempt: int, index: int) -> bool:
    """Whether a chunk of this step, attempt and index has a position."""
    return 0 < step < _STEPS and 0 <= attempt < _LAST and 0 <= index < _LAST


def reset_position(step: int) -> Position:
    """The place after a reset of a step's text: behind all its chunks."""
    return Position(step, EventPart.CHUNKS, _LAST, _LAST)


def read_id(text: str) -> tuple[AgentTurnId, Position]:
    """The turn and the place that a `Last-Event-ID` names; raises `Refused` (wrong_event_id)."""
    match = _ID.match(text)
    if match is None:
        raise Refused("wrong_event_id", "Last-Event-ID: no event has this id; omit it to read from the beginning")
    turn = AgentTurnId(match[1])
    if match[2]:
        return turn, END
    return turn, Position(int(match[3]), int(match[4]), int(match[5]), int(match[6]))
