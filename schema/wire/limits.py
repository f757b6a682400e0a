"""Limits of one project's live turns, and the errors for exceeding them (docs/limits.md)."""

from dataclasses import dataclass
from typing import Final

from turnstile.schema.errors import Limited

PROJECT_FULL_FOR_CHILDREN: Final = 2
"""Factor of the project's limit for children of active turns. If these were refused, their parents could not end, and
the project would stay full."""


SIZE_LIMITS: Final = frozenset({"text_too_large", "result_too_large", "recursion_depth_exceeded"})
"""Refusals for which waiting does not help: the request itself is too large."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The limits that a request is checked against; 0 is no limit."""

    max_queued_turns: int = 0
    """Queued turns of one agent."""
    max_live_turns: int = 0
    """Queued and active turns of one project."""
    max_instances: int = 0
    """Instances of profiles that one project may have awake."""
    max_unused_conversations: int = 0
    """Conversations of one project that clients made and that are no agent's yet."""
    wait_seconds: float = 0.0
    """Above 0, the project exceeds its rate limit for so long: only a repeat is accepted."""


UNLIMITED = Admission()
"""For requests that were admitted before, and for operators."""


def rate_limited(wait_seconds: float) -> Limited:
    """The refusal of a request beyond the rate limit."""
    message = f"the project asks too often: again in {wait_seconds:.2f} s"
    return Limited("rate_limited", message, retry_after=round(wait_seconds, 3))
