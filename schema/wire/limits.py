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
    """Conversations that one caller made and no agent has."""
    max_unused_boxes: int = 0
    """Boxes that one caller made and no turn or conversation has used."""
    max_unused_cards: int = 0
    """Cards in these boxes."""
    max_agents: int = 0
    """Agents that one caller put on the roster."""
    max_open_pushes: int = 0
    """Receivers that one caller set and that still get notifications."""
    wait_seconds: float = 0.0
    """Above 0, the project exceeds its rate limit for so long: only a repeat is accepted."""


UNLIMITED = Admission()
"""For requests that were admitted before, and for operators."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Who makes something that counts against limits of its own (docs/limits.md), and these limits."""

    name: str | None
    """As the subject's end names the caller; empty: callers of the project whom no subject names, together."""
    limits: Admission = UNLIMITED


UNCOUNTED = Maker(None)
"""A program that has the database."""

_USE = "use some, or wait until `turnstile prune` removes them"
_MADE: Final = {
    "agents_full": ("max_agents", "agents on the roster", "remove some (`turnstile agent remove`)"),
    "boxes_full": ("max_unused_boxes", "boxes that no turn or conversation has used", _USE),
    "cards_full": ("max_unused_cards", "cards in boxes that no turn or conversation has used", _USE),
    "conversations_full": ("max_unused_conversations", "conversations that no agent has", _USE),
    "pushes_full": (
        "max_open_pushes",
        "receivers of turns that are not over",
        "remove some, or wait for their ends",
    ),
}
MADE_LIMITS: Final = frozenset(_MADE)
"""The limits of what one caller makes."""


def made_limited(code: str, maker: Maker) -> Limited:
    """The refusal of a request beyond one of `MADE_LIMITS`."""
    setting, things, cure = _MADE[code]
    most: int = getattr(maker.limits, setting)
    return Limited(
        code,
        f"one token may have {most} {things}, as [limits].{setting} says, and this would be more: {cure};"
        " an operator can raise the limit",
    )


def rate_limited(wait_seconds: float) -> Limited:
    """The refusal of a request beyond the rate limit."""
    message = f"the project asks too often: again in {wait_seconds:.2f} s"
    return Limited("rate_limited", message, retry_after=round(wait_seconds, 3))
