"""The ids that lines of a log are about, bound to the task at hand (docs/observability.md).

`about` binds them for a block and all that it awaits or starts; a formatter reads them with `bound`. Ids only: nothing
that a card holds ever goes here. Costs a context variable's set and reset.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from turnstile.schema.turns import TurnRef

_BOUND: ContextVar[Mapping[str, object] | None] = ContextVar("turnstile_log_ids", default=None)
"""Values of the task at hand, not of the module."""


@contextmanager
def about(of: TurnRef | None = None, /, **ids: object) -> Generator[None]:
    """Lines logged in the block are about this turn and these ids, by their names in the protocol.

    project_id, agent_id, agent_turn_id, turn_epoch, step, tool_call_id, thread_id, message_id.
    """
    known: dict[str, object] = dict(_BOUND.get() or {})
    if of is not None:
        known |= {"project_id": of.project_id, "agent_id": of.agent_id}
        known |= {"agent_turn_id": of.agent_turn_id, "turn_epoch": of.turn_epoch}
    known |= {name: each for name, each in ids.items() if each is not None}
    token = _BOUND.set(known)
    try:
        yield
    finally:
        _BOUND.reset(token)


def bound() -> Mapping[str, object]:
    """The ids that the task at hand is about."""
    return _BOUND.get() or {}
