"""The reducer of `MessageThread`: `(state, event) -> (state, actions)`, pure, so that every order can be tested.

It knows message ids and codes only. Where a message goes is decided by its handling and kept in the ledger; here is
only what to run: every message that is due is advanced by one activity, what waits for an agent's turn is left alone
until that is over or its deadline passes, and a handler whose message was canceled is let go.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from turnstile.schema.pump.threads import MessageId, OpenMessage, ThreadAdvanced


@dataclass(frozen=True, slots=True)
class ThreadState:
    """What is open, as of a version; what is being advanced here, and which of that must be looked at once more."""

    version: int = -1
    open: tuple[OpenMessage, ...] = ()
    open_count: int = 0
    chains: tuple[str, ...] = ()
    running: frozenset[MessageId] = frozenset()
    again: frozenset[MessageId] = frozenset()

    @property
    def is_over(self) -> bool:
        """Whether nothing is in flight."""
        return not self.open and not self.running

    @property
    def deadline(self) -> datetime | None:
        """When the next of the turns that are waited for is due; None if none is."""
        idle = (each for each in self.open if each.message_id not in self.running)
        return min((each.deadline for each in idle if each.deadline is not None), default=None)


@dataclass(frozen=True, slots=True)
class MessagesWoken:
    """Something may have happened to these messages; none are named where it may be any."""

    messages: tuple[MessageId, ...]


@dataclass(frozen=True, slots=True)
class Advanced:
    """An activity answered; `message` is the one it advanced, None for a look."""

    message: MessageId | None
    answer: ThreadAdvanced | None
    """None where it was let go."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The time of the next deadline has come."""

    now: datetime


Event = MessagesWoken | Advanced | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Advance:
    """Advance this message."""

    message: MessageId


@dataclass(frozen=True, slots=True)
class CancelHandler:
    """The message was canceled: whoever handles it may stop."""

    message: MessageId


@dataclass(frozen=True, slots=True)
class Look:
    """See what is open."""


Action = Advance | CancelHandler | Look


def reduce(state: ThreadState, event: Event) -> tuple[ThreadState, tuple[Action, ...]]:
    """The next state, and what to do."""
    match event:
        case MessagesWoken(()):
            return state, (Look(),)
        case MessagesWoken(messages):
            return _start(replace(state, again=state.again | (state.running & set(messages))), messages)
        case DeadlinePassed(now):
            late = [each.message_id for each in state.open if each.deadline is not None and each.deadline <= now]
            return _start(state, late)
        case Advanced(message, answer):
            return _advanced(state, message, answer)
        case _:
            assert_never(event)


def put_back(state: ThreadState, message: MessageId) -> ThreadState:
    """A message that is not advanced after all: a later run does it."""
    return replace(state, running=state.running - {message})


def _advanced(
    state: ThreadState, message: MessageId | None, answer: ThreadAdvanced | None
) -> tuple[ThreadState, tuple[Action, ...]]:
    let_go: list[Action] = []
    if message is not None:
        state = replace(state, running=state.running - {message})
    if answer is not None:
        let_go = [CancelHandler(each) for each in answer.canceled if each in state.running]
        if answer.version >= state.version:
            state = replace(
                state,
                version=answer.version,
                open=answer.open,
                open_count=answer.open_count,
                chains=answer.chains,
            )
    due = [each.message_id for each in state.open if each.is_due]
    if message is not None and message in state.again:
        state = replace(state, again=state.again - {message})
        due.append(message)
    state, actions = _start(state, due)
    return state, (*let_go, *actions)


def _start(
    state: ThreadState, messages: tuple[MessageId, ...] | list[MessageId]
) -> tuple[ThreadState, tuple[Action, ...]]:
    fresh = tuple(each for each in dict.fromkeys(messages) if each not in state.running)
    return replace(state, running=state.running.union(fresh)), tuple(Advance(each) for each in fresh)
