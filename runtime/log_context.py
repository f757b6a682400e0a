"""The ids that log lines carry, bound to the current task (docs/observability.md).

`about` binds ids for a block and for all that the block awaits or starts; a log formatter reads them with `bound`. Only
ids are bound, never the content of a card. Costs a context variable's set and reset.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from turnstile.schema.turns import TurnRef

_BOUND: ContextVar[Mapping[str, object] | None] = ContextVar("turnstile_log_ids", default=None)
"""Holds values of the current task, not of the module."""


@contextmanager
def about(of: TurnRef | None = None, /, **ids: object) -> Generator[None]:
    """Bind the ids of a turn, and `ids`, to all lines logged in the block.

    Names: project_id, agent_id, agent_turn_id, turn_epoch, step, tool_call_id, thread_id, message_id.
    """
    known: dict[str, object] = dict(_BOUND.get() or {})
    if of is not None:
        known |= {"project_id": of.project_id, "agent_id": of.agent_id}
        known |= {"agent_turn_id": of.agent_turn_id, "turn_epoch": of.turn_epoch}
    known |= {name: value for name, value in ids.items() if value is not None}
    token = _BOUND.set(known)
    try:
        yield
    finally:
        _BOUND.reset(token)


def bound() -> Mapping[str, object]:
    """The ids bound to the current task."""
    return _BOUND.get() or {}
