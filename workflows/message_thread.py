"""`MessageThread`: one thread of the message pump as a workflow (protocol §9; ARCHITECTURE.md).

It holds ids only. The ledger keeps the chain, and `_thread` decides which message to advance. It ends when no message
is open; the next message from outside starts it again under the same id. The Web UI shows its chains.
"""

import asyncio
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.exceptions import CancelledError as ActivityCancelledError

from turnstile.schema.pump.threads import AdvanceInput, MessageId, ThreadAdvanced, ThreadEnded, ThreadInput, ThreadRef
from turnstile.workflows import _thread, options


@workflow.defn(name="MessageThread")
class MessageThread:
    """A root thread: each message from outside gets exactly one answer, however many hops lie between."""

    @workflow.init
    def __init__(self, thread: ThreadInput) -> None:
        self._input = thread
        self._ref = ThreadRef.model_validate(thread.model_dump())
        self._events: deque[_thread.Event] = deque()
        self._state = _thread.ThreadState()
        self._running: dict[MessageId, asyncio.Task[ThreadAdvanced | None]] = {}
        self._failure: BaseException | None = None
        self._must_look = True
        self._starts_no_more = False
        self._asked_at = datetime.min.replace(tzinfo=UTC)
        self._asked_for: datetime | None = None
        self._early_looks = 0
        """How often in a row this deadline was looked at, when it had passed by the engine's clock only."""

    @workflow.signal
    def wake(self, messages: list[MessageId]) -> None:
        """Advance these messages: each is new, or what it waited for has happened."""
        self._events.append(_thread.MessagesWoken(tuple(messages)))

    @workflow.run
    async def run(self, thread: ThreadInput) -> ThreadEnded:
        """Advance messages until none is open."""
        while True:
            self._reduce_events()
            if self._must_look:
                self._must_look = False
                self._events.append(_thread.Advanced(None, await self._look()))
                continue
            if not self._running:
                if self._failure is not None:
                    raise self._failure
                if self._starts_no_more or (self._is_long() and not self._state.is_over):
                    workflow.continue_as_new(self._input)
            if self._state.is_over:
                break
            self._show()
            await self._wait()
        self._show()
        return ThreadEnded(thread_id=thread.thread_id, version=self._state.version)

    def _reduce_events(self) -> None:
        """Reduce the events, in order, and start the actions."""
        while self._events:
            self._state, actions = _thread.reduce(self._state, self._events.popleft())
            for action in actions:
                match action:
                    case _thread.Advance(message):
                        self._advance(message)
                    case _thread.CancelHandler(message):
                        if (task := self._running.get(message)) is not None:
                            task.cancel()
                    case _thread.Look():
                        self._must_look = True

    def _advance(self, message: MessageId) -> None:
        """Start the activity, unless the history is long or an activity has failed: then start no more."""
        if self._is_long() or self._failure is not None:
            self._state = _thread.put_back(self._state, message)
            self._starts_no_more = True
        else:
            self._running[message] = task = asyncio.create_task(self._advancing(message))
            task.add_done_callback(partial(self._advanced, message))  # called even if the task is cancelled at once

    def _advanced(self, message: MessageId, task: asyncio.Task[ThreadAdvanced | None]) -> None:
        del self._running[message]
        answer = None
        if not task.cancelled():
            self._failure = task.exception() or self._failure
            answer = None if self._failure else task.result()
        self._events.append(_thread.Advanced(message, answer))

    def _is_long(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    async def _advancing(self, message: MessageId) -> ThreadAdvanced | None:
        """Run the activity; returns None if it was cancelled."""
        try:
            return await workflow.execute_activity(
                "advance_message",
                AdvanceInput(thread=self._ref, message_id=message),
                result_type=ThreadAdvanced,
                start_to_close_timeout=options.STEP_START_TO_CLOSE,
                heartbeat_timeout=timedelta(seconds=self._input.heartbeat_timeout_seconds),
                retry_policy=options.STEP_RETRY,
                summary=self._summary(message),
            )
        except ActivityError as error:
            if isinstance(error.cause, ActivityCancelledError):
                return None
            raise

    async def _look(self) -> ThreadAdvanced:
        return await workflow.execute_local_activity(
            "look_at_thread",
            self._ref,
            result_type=ThreadAdvanced,
            start_to_close_timeout=options.SETTLE_START_TO_CLOSE,
            retry_policy=options.SETTLE_RETRY,
            summary="look at the thread",
        )

    async def _wait(self) -> None:
        """Sleep until an event, or until the deadline of a turn that a message waits for."""
        deadline = None if self._starts_no_more else self._state.deadline
        pause = options.DEADLINE_LOOK
        if self._early_looks > 1 and deadline == self._asked_for and workflow.patched("look-ever-more-seldom"):
            pause = options.look_again(self._early_looks)
        left = None if deadline is None else max(deadline, self._asked_at + pause) - workflow.now()
        if left is None or left > timedelta():
            try:
                await workflow.wait_condition(
                    lambda: bool(self._events), timeout=left, timeout_summary="an agent's deadline"
                )
            except TimeoutError:
                pass
            else:
                return
        self._early_looks = self._early_looks + 1 if deadline == self._asked_for else 1
        self._asked_at, self._asked_for = workflow.now(), deadline
        self._events.append(_thread.DeadlinePassed(self._asked_at))

    def _summary(self, message: MessageId) -> str:
        return next((m.listener for m in self._state.open if m.message_id == message), "a message")

    def _show(self) -> None:
        workflow.set_current_details(_details(self._ref, self._state))


def _details(thread: ThreadRef, state: _thread.ThreadState) -> str:
    """The thread in Markdown: chains, ids and codes, no content."""
    lines = [f"**{thread.thread_id}** in {thread.project_id}/{thread.channel_id}: {state.open_count} in flight"]
    lines.append("")  # without it, the Web UI would join the list to the sentence
    lines.extend(f"- {chain}" for chain in state.chains)
    lines.extend(f"- {m.listener}: {m.status.value}" for m in state.open)
    return "\n".join(lines)
