"""How much one project may have under way at once, and what refuses more (docs/limits.md)."""

from dataclasses import dataclass
from typing import Final

from turnstile.schema.errors import Limited

PROJECT_FULL_FOR_CHILDREN: Final = 2
"""Children of a turn in hand may take their project to so many times its limit: refused, they would keep their parents
from ending, and the project full."""


SIZE_LIMITS: Final = frozenset({"text_too_large", "result_too_large", "recursion_depth_exceeded"})
"""Refusals that no waiting helps: what was sent is itself too much."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What an enqueue is held against; 0 is no limit."""

    max_queued_turns: int = 0
    """Turns that wait for one agent."""
    max_live_turns: int = 0
    """Turns of one project, queued and in hand."""
    wait_seconds: float = 0.0
    """The project is over its rate until then: only a repeat is answered."""


UNLIMITED = Admission()
"""For what was let in before, and for operators."""


def rate_limited(wait_seconds: float) -> Limited:
    """The refusal of what comes too fast."""
    told = f"the project asks too often: again in {wait_seconds:.2f} s"
    return Limited("rate_limited", told, retry_after=round(wait_seconds, 3))
