"""The reducer of `MessageThread`: `(state, event) -> (state, actions)`, pure, so that every order can be tested.

It knows message ids and codes only. The handling of a message decides where it goes next, and the ledger records that;
the reducer decides only what to run. One activity advances each message that is due. A message that waits for an
agent's turn is left alone until the turn is over or its deadline passes. A handler whose message was canceled is
cancelled.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from turnstile.schema.pump.threads import MessageId, OpenMessage, ThreadAdvanced


@dataclass(frozen=True, slots=True)
class ThreadState:
    """The thread's open messages, as of a version, and what runs here.

    `running` are the messages being advanced; those in `again` are advanced once more after that.
    """

    version: int = -1
    open: tuple[OpenMessage, ...] = ()
    open_count: int = 0
    chains: tuple[str, ...] = ()
    running: frozenset[MessageId] = frozenset()
    again: frozenset[MessageId] = frozenset()

    @property
    def is_over(self) -> bool:
        """Whether no message is open and none is being advanced."""
        return not self.open and not self.running

    @property
    def deadline(self) -> datetime | None:
        """The earliest deadline of the agents' turns that messages wait for; None if there is none."""
        idle = (m for m in self.open if m.message_id not in self.running)
        return min((m.deadline for m in idle if m.deadline is not None), default=None)


@dataclass(frozen=True, slots=True)
class MessagesWoken:
    """Something may have happened to these messages, or to any message if the tuple is empty."""

    messages: tuple[MessageId, ...]


@dataclass(frozen=True, slots=True)
class Advanced:
    """An activity returned; `message` is the one it advanced, None after `Look`."""

    message: MessageId | None
    answer: ThreadAdvanced | None
    """None if the activity was cancelled."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The next deadline has passed."""

    now: datetime


Event = MessagesWoken | Advanced | DeadlinePassed


@dataclass(frozen=True, slots=True)
class Advance:
    """Advance this message."""

    message: MessageId


@dataclass(frozen=True, slots=True)
class CancelHandler:
    """The message was canceled: cancel the activity that handles it."""

    message: MessageId


@dataclass(frozen=True, slots=True)
class Look:
    """Read the thread's open messages from the ledger."""


Action = Advance | CancelHandler | Look


def reduce(state: ThreadState, event: Event) -> tuple[ThreadState, tuple[Action, ...]]:
    """The next state and the actions to carry out."""
    match event:
        case MessagesWoken(()):
            return state, (Look(),)
        case MessagesWoken(messages):
            return _start(replace(state, again=state.again | (state.running & set(messages))), messages)
        case DeadlinePassed(now):
            late = [m.message_id for m in state.open if m.deadline is not None and m.deadline <= now]
            return _start(state, late)
        case Advanced(message, answer):
            return _advanced(state, message, answer)
        case _:
            assert_never(event)


def put_back(state: ThreadState, message: MessageId) -> ThreadState:
    """Take back the start of a message: a later run of the workflow advances it."""
    return replace(state, running=state.running - {message})


def _advanced(
    state: ThreadState, message: MessageId | None, answer: ThreadAdvanced | None
) -> tuple[ThreadState, tuple[Action, ...]]:
    cancels: list[Action] = []
    if message is not None:
        state = replace(state, running=state.running - {message})
    if answer is not None:
        cancels = [CancelHandler(m) for m in answer.canceled if m in state.running]
        if answer.version >= state.version:
            state = replace(
                state, version=answer.version, open=answer.open, open_count=answer.open_count, chains=answer.chains
            )
    due = [m.message_id for m in state.open if m.is_due]
    if message is not None and message in state.again:
        state = replace(state, again=state.again - {message})
        due.append(message)
    state, actions = _start(state, due)
    return state, (*cancels, *actions)


def _start(
    state: ThreadState, messages: tuple[MessageId, ...] | list[MessageId]
) -> tuple[ThreadState, tuple[Action, ...]]:
    fresh = tuple(m for m in dict.fromkeys(messages) if m not in state.running)
    return replace(state, running=state.running.union(fresh)), tuple(Advance(m) for m in fresh)
