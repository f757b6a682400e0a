"""`MessageThread`: one conversation of the message pump as a workflow (protocol §9; ARCHITECTURE.md).

It holds ids only and decides nothing: the ledger keeps the chain, and `_thread` says which message to advance. It ends
when nothing is in flight; the next message from outside starts it again under the same id. The Web UI shows its chains.
"""

import asyncio
from collections import deque
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.exceptions import CancelledError as ActivityCancelledError

from schema.threads import AdvanceInput, MessageId, ThreadAdvanced, ThreadEnded, ThreadInput, ThreadRef
from workflows import _thread, options


@workflow.defn(name="MessageThread")
class MessageThread:
    """A root thread: one message from outside in, exactly one answer out, however many hops lie between."""

    @workflow.init
    def __init__(self, thread: ThreadInput) -> None:
        self._input = thread
        self._ref = ThreadRef.model_validate(thread.model_dump())
        self._events: deque[_thread.Event] = deque()
        self._state = _thread.ThreadState()
        self._running: dict[MessageId, asyncio.Task[None]] = {}
        self._broken: ActivityError | None = None
        self._looks = True

    @workflow.signal
    def wake(self, messages: list[MessageId]) -> None:
        """These messages are new, or what they wait for has happened."""
        self._events.append(_thread.Woken(tuple(messages)))

    @workflow.run
    async def run(self, thread: ThreadInput) -> ThreadEnded:
        """Advance messages until none is in flight."""
        while True:
            if self._looks:
                self._looks = False
                self._events.append(_thread.Advanced(None, await self._look()))
            self._take()
            if self._looks:
                continue
            if self._state.is_over:
                break
            self._show()
            if not self._running and workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(self._input)
            await self._wait()
        self._show()
        return ThreadEnded(thread_id=thread.thread_id, version=self._state.version)

    def _take(self) -> None:
        """Take in what happened, in order. A long history starts nothing more and is left as soon as nothing runs."""
        while self._events:
            self._state, actions = _thread.reduce(self._state, self._events.popleft())
            for action in actions:
                match action:
                    case _thread.Advance(message):
                        self._advance(message)
                    case _thread.LetGo(message):
                        if (task := self._running.get(message)) is not None:
                            task.cancel()
                    case _thread.Look():
                        self._looks = True

    def _advance(self, message: MessageId) -> None:
        if workflow.info().is_continue_as_new_suggested():
            self._state = _thread.put_back(self._state, message)
        else:
            self._running[message] = asyncio.create_task(self._advancing(message))

    async def _advancing(self, message: MessageId) -> None:
        answer: ThreadAdvanced | None = None
        try:
            answer = await workflow.execute_activity(
                "advance_message",
                AdvanceInput(thread=self._ref, message_id=message),
                result_type=ThreadAdvanced,
                start_to_close_timeout=options.STEP_START_TO_CLOSE,
                heartbeat_timeout=timedelta(seconds=self._input.heartbeat_timeout_seconds),
                retry_policy=options.STEP_RETRY,
                summary=self._summary(message),
            )
        except asyncio.CancelledError:
            pass
        except ActivityError as error:
            if not isinstance(error.cause, ActivityCancelledError):
                self._broken = error
        del self._running[message]
        self._events.append(_thread.Advanced(message, answer))

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
        """Until something happens, or a turn that is waited for is late."""
        deadline = self._state.deadline
        left = None if deadline is None else max(deadline - workflow.now(), timedelta())
        try:
            await workflow.wait_condition(
                lambda: bool(self._events), timeout=left, timeout_summary="an agent's deadline"
            )
        except TimeoutError:
            self._events.append(_thread.DeadlinePassed(workflow.now()))

    def _summary(self, message: MessageId) -> str:
        return next((each.listener for each in self._state.open if each.message_id == message), "a message")

    def _show(self) -> None:
        workflow.set_current_details(_details(self._ref, self._state))


def _details(thread: ThreadRef, state: _thread.ThreadState) -> str:
    """The thread in Markdown: chains, ids and codes, no content."""
    lines = [f"**{thread.thread_id}** in {thread.project_id}/{thread.channel_id}: {len(state.open)} in flight"]
    lines.extend(f"- {chain}" for chain in state.chains)
    lines.extend(f"- {each.listener}: {each.status.value}" for each in state.open)
    return "\n".join(lines)
