"""Wakes the workflows of the message pump's threads, on `send` and when a turn ends (protocol §9).

The ledger holds a thread's state; its workflow only drives it. A wake is a signal that starts the workflow if it does
not run. If a wake is lost, the safety net wakes the thread some seconds later.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from nats.aio.msg import Msg
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.engine import declare_search_attributes
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import TurnMessage, messages_of_turns
from turnstile.runtime.log_context import about
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.pump.threads import MessageId, ThreadInput, ThreadRef, thread_workflow_id
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import TaskEvent
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import THREAD_TURNS_CONSUMER, declare_thread_turns
from turnstile.workflows import options
from turnstile.workflows.message_thread import MessageThread

log = logging.getLogger(__name__)
_RPC_TIMEOUT = timedelta(seconds=2)
"""A sender waits at most this long for Temporal; then the wake is left to the safety net."""


class ThreadStarter:
    """Wakes threads; holds a client and one setting."""

    def __init__(self, client: Client, *, heartbeat_timeout_seconds: float) -> None:
        self._client = client
        self._heartbeat_timeout = heartbeat_timeout_seconds

    async def wake(self, thread: ThreadRef, messages: Sequence[MessageId] = ()) -> bool:
        """Signal these messages to the thread's workflow, and start it if needed; False if Temporal is away."""
        with about(project_id=thread.project_id, thread_id=thread.thread_id):
            return await self._wake(thread, messages)

    async def _wake(self, thread: ThreadRef, messages: Sequence[MessageId]) -> bool:
        try:
            try:
                await self._signal(thread, messages)
            except RPCError as error:
                if error.status != RPCStatusCode.INVALID_ARGUMENT or "no mapping" not in error.message:
                    raise
                await declare_search_attributes(self._client)  # Temporal's data was wiped, and they with it
                await self._signal(thread, messages)
        except (RPCError, OSError) as error:
            log.warning("thread %s was not woken: %s", thread.thread_id, type(error).__name__)
            return False
        return True

    async def _signal(self, thread: ThreadRef, messages: Sequence[MessageId]) -> None:
        attributes = TypedSearchAttributes(
            [
                SearchAttributePair(options.TURN_PROJECT, thread.project_id),
                SearchAttributePair(options.TURN_CHANNEL, thread.channel_id),
                SearchAttributePair(options.WORKER_TARGET, thread.worker_target),
            ]
        )
        await self._client.start_workflow(
            MessageThread.run,
            ThreadInput(**thread.model_dump(), heartbeat_timeout_seconds=self._heartbeat_timeout),
            id=thread_workflow_id(thread.thread_id),
            task_queue=options.task_queue(thread.worker_target),
            id_reuse_policy=options.THREAD_ID_REUSE,
            id_conflict_policy=options.TURN_ID_CONFLICT,
            task_timeout=options.WORKFLOW_TASK_TIMEOUT,
            search_attributes=attributes,
            priority=options.priority(thread.project_id),
            static_summary=f"thread in {thread.project_id}",
            start_signal="wake",
            start_signal_args=[list(messages)],
            rpc_timeout=_RPC_TIMEOUT,
        )


class ThreadTurns:
    """Consumes the `task` events of turns that work for a thread, and wakes the thread."""

    def __init__(self, conn: NatsConnection, pool: Pool, threads: ThreadStarter) -> None:
        self._pool = pool
        self._threads = threads
        ensure = partial(declare_thread_turns, conn)
        self._pull = ContinuousPull(conn, subjects.EVT_STREAM, THREAD_TURNS_CONSUMER, ensure)

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; raises `ServerUnavailable` when the connection is closed for good."""
        await self._pull.run(self._handle, stop)

    async def _handle(self, messages: list[Msg]) -> None:
        turns = [turn for message in messages if (turn := _turn(message)) is not None]
        for message in messages:
            try:
                await message.ack()
            except NATS_TROUBLE as error:
                log.debug("an event was not acknowledged: %s", type(error).__name__)
        if not turns:
            return
        try:
            turn_messages = await self._pool.run(lambda conn: messages_of_turns(conn, turns))
        except ServerUnavailable as error:
            log.warning("ends of turns are left to the watchdog: %s", error)
            return
        await asyncio.gather(*map(self._wake, turn_messages))

    async def _wake(self, message: TurnMessage) -> None:
        await self._threads.wake(ThreadRef.model_validate(message.model_dump()), [message.message_id])


def _turn(message: Msg) -> AgentTurnId | None:
    """The turn of a `task` event that works for a thread; None for any other event."""
    if headers.THREAD_ID not in (message.headers or {}):
        return None
    try:
        return TaskEvent.model_validate_json(message.data).agent_turn_id
    except ValidationError:
        return None
