"""`sequence_number`: where a client is in a response's stream (protocol §14.4). Pure.

A number is made of the event's place in the turn (`positions`) and of what its client holds then, so that any gateway
goes on behind it, knowing nothing else. Numbers rise, have gaps, and are below 2^53. An event whose place has no
number, such as the 262,143rd chunk of an answer, is left out; the final response has everything.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from turnstile.gateway.events.positions import BEGIN, END, Position, reset_position
from turnstile.gateway.http.problems import BadField

_STEP, _PART, _A, _B, _SUB, _VOIDS = 12, 2, 9, 18, 3, 8
MOST: Final = (1 << 53) - 1


class Sub(IntEnum):
    """The events of one place, in their order."""

    VOIDED = 0
    """The item that was open is closed as incomplete: its text is void."""
    ADDED = 1
    PART_ADDED = 2
    DELTA = 3
    TOLD = 4
    """The whole text, or the arguments."""
    PART_DONE = 5
    DONE = 6
    RESPONSE = 7
    """The last event, with the whole response."""


CREATED: Final = Sub.VOIDED
QUEUED: Final = Sub.ADDED
IN_PROGRESS: Final = Sub.PART_ADDED


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: after this event."""

    position: Position
    sub: Sub
    voids: int = 0
    """The number of items that were voided before it, itself included."""
    is_open: bool = False
    """Whether an item's text has begun and not ended."""

    @property
    def number(self) -> int | None:
        """The sequence number; None if the place has none."""
        if self.position == END:
            step, part, a, b = (1 << _STEP) - 1, (1 << _PART) - 1, (1 << _A) - 1, (1 << _B) - 1
        else:
            step, part, a, b = self.position.step, self.position.part, self.position.a, self.position.b
            if self.position == reset_position(step):
                a, b = (1 << _A) - 1, (1 << _B) - 1
            elif a >= (1 << _A) - 1 or b >= (1 << _B) - 1:
                return None
            if step >= (1 << _STEP) - 1:
                return None
        number = 0
        voids = min(self.voids, (1 << _VOIDS) - 1)
        for value, bits in ((step, _STEP), (part, _PART), (a, _A), (b, _B), (self.sub, _SUB), (voids, _VOIDS)):
            number = number << bits | value
        return number << 1 | self.is_open


FIRST: Final = Mark(BEGIN, CREATED)


def read_number(number: int) -> Mark:
    """The place of a sequence number; raises `BadField` (starting_after) for one that no event has."""
    if not 0 <= number <= MOST:
        raise BadField("starting_after: the response has no event with this number", "starting_after")
    is_open, rest = bool(number & 1), number >> 1
    values: list[int] = []
    for bits in (_VOIDS, _SUB, _B, _A, _PART, _STEP):
        values.append(rest & ((1 << bits) - 1))
        rest >>= bits
    voids, sub, b, a, part, step = values
    position = Position(step, part, a, b)
    if step == (1 << _STEP) - 1:
        position = END
    elif (a, b) == ((1 << _A) - 1, (1 << _B) - 1):
        position = reset_position(step)
    return Mark(position, Sub(sub), voids, is_open)
