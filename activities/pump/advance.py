"""The message pump's activities (protocol §9): they begin, handle and settle one message.

A handler runs at most once, unless its listener allows retries: the ledger records the begin before the handler runs
and the effect after it, so a run that finds the message begun knows that a worker died. A settled or canceled message
stays so. An agent's turn is enqueued with the message's id as correlation, so that a repeat finds it. Activities
return and raise only ids and codes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from turnstile.activities.cancellation import is_given_up
from turnstile.activities.heartbeat import beating
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.hops import ServedElsewhere, await_turn, begin_message, find_request, own_box, settle_message
from turnstile.ledger.pump.thread_views import ThreadTurn, list_ended_messages, list_replies, mark_replied
from turnstile.ledger.pump.threads import SHOWN, ThreadLimits, look_at_thread
from turnstile.ledger.turns.intake import Enqueued, enqueue
from turnstile.rules.hop import BegunMessage, Effect
from turnstile.rules.routing import (
    effect_of_response,
    effect_of_turn,
    huh,
    read_payload,
    timed_out,
    turn_settings,
    unreachable,
    unreadable,
    xml_of,
)
from turnstile.rules.thread_metrics import (
    HandlerOutcome,
    enqueue_traceparent,
    record_enqueue,
    record_handler,
    record_message,
    record_replies,
)
from turnstile.rules.turn_events import SENDER
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.handler_run import HandlerFailed, ignore_error, run_handler
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import Refused, ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, new_box_id, uuid7
from turnstile.schema.pump.listeners import Listener, Registry
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata
from turnstile.schema.pump.threads import AdvanceInput, MessageId, MessageKind, MessageStatus, ThreadAdvanced, ThreadRef
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.inbox import EnqueueRequest

log = logging.getLogger(__name__)
_LATE_TURN = "the message it worked for was ended"
_PAUSE_SECONDS = 1.0
_PASS_ON_SECONDS = 0.2
_PASS_ON_LONGEST_SECONDS = 5.0


class RunningMessages:
    """The messages that this process handles, one task each; several attempts of the activity may wait for one task.

    After missed heartbeats the engine takes the process for dead and retries the activity, perhaps in the same process:
    that attempt waits for the handler that still runs, instead of treating it as dead.
    """

    def __init__(self) -> None:
        self._tasks: dict[MessageId, asyncio.Task[None]] = {}

    async def settle(self, message: MessageId, handling: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the message's handling, unless it runs, and wait for it; raises what it raises.

        Cancelling this call cancels the handling, unless the engine only missed heartbeats.
        """
        task = self._tasks.get(message)
        if task is None:
            task = self._tasks[message] = asyncio.create_task(handling(), name=f"message {message}")
            task.add_done_callback(ignore_error)
            task.add_done_callback(lambda _: self._tasks.pop(message, None))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not is_given_up():
                task.cancel()
                await asyncio.wait({task})
            raise


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """The limits of `[pump]` and `[protocol]`."""

    thread: ThreadLimits = field(default_factory=ThreadLimits)
    recursion_depth: int = 20


@dataclass
class PumpActivities:
    """The activities and their dependencies: a registry, pools, clients. It holds no state of a thread.

    The constructor raises `BadListener` for an agent to which no turn could be enqueued.
    """

    pool: Pool
    publisher: Publisher
    registry: Registry
    limits: PumpLimits
    telemetry: Telemetry = SILENT

    def __post_init__(self) -> None:
        agents = {name: listener for name, listener in self.registry.listeners.items() if listener.agent_id is not None}
        self._settings = {name: turn_settings(self.registry, agent) for name, agent in agents.items()}
        self._running = RunningMessages()

    @activity.defn(name="look_at_thread")
    async def look_at_thread(self, thread: ThreadRef) -> ThreadAdvanced:
        """The thread's open messages."""
        return await self.pool.run(lambda conn: look_at_thread(conn, thread))

    @activity.defn(name="advance_message")
    async def advance_message(self, step_input: AdvanceInput) -> ThreadAdvanced:
        """Handle the message, or take the result of the turn that it waits for; returns the thread's open messages."""
        thread, message, run = step_input.thread, step_input.message_id, uuid7()
        with about(project_id=thread.project_id, thread_id=thread.thread_id, message_id=message):
            async with beating():
                try:
                    return await self._advance(thread, message, run)
                except ServedElsewhere as error:
                    raise _hand_back(error) from None

    async def _advance(self, thread: ThreadRef, message: MessageId, run: str) -> ThreadAdvanced:
        await self._running.settle(message, lambda: self._do(thread, message, run))
        canceled = await self._announce_replies(thread, message)
        hit(Fault.MESSAGE_PUBLISHED)
        return (await self.look_at_thread(thread)).model_copy(update={"canceled": canceled})

    async def _do(self, thread: ThreadRef, message: MessageId, run: str) -> None:
        """Begin, handle and settle the message; does nothing if it is settled or still waits for an agent's turn."""
        serves = self.registry.serves(thread.worker_target)
        begun = await self.pool.run(lambda conn: begin_message(conn, thread, message, run, serves))
        if begun is not None:
            hit(Fault.MESSAGE_BEGUN)
            effect = await self._handle(thread, begun)
            if effect is not None:
                await self._settle(thread, begun, effect)
                hit(Fault.MESSAGE_SETTLED)

    async def _settle(self, thread: ThreadRef, begun: BegunMessage, effect: Effect) -> None:
        """Settle the message, retrying while the ledger is down: the handler's result cannot be computed again."""
        limits = self.limits.thread
        while True:
            try:
                settled = await self.pool.transact(lambda conn: settle_message(conn, thread, begun, effect, limits))
            except ServerUnavailable as error:
                log.warning("message %s is not settled yet: %s", begun.message_id, error)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                known = begun.listener if self.registry.get(begun.listener) else None
                return record_message(self.telemetry, thread, begun, known, effect, settled)

    async def _handle(self, thread: ThreadRef, begun: BegunMessage) -> Effect | None:
        """Handle the message; returns the effect, or None while an agent's turn runs."""
        listener = self.registry.get(begun.listener)
        if begun.was is MessageStatus.WAITING and listener is not None:
            return await self._effect_of_turn(begun, listener)
        payload = read_payload(self.registry, listener, begun)
        if listener is None:
            log.warning("message %s from %s: no listener is named %r", begun.message_id, begun.from_id, begun.listener)
            return huh(begun)
        if payload is None:
            return unreadable(begun)
        if begun.depth > self.limits.thread.max_depth:
            return unreachable()
        if listener.handler is None:
            return await self._enqueue_turn(thread, begun, listener, payload)
        if begun.attempt > 1 + listener.retries:
            log.warning("message %s: %s died with its worker", begun.message_id, listener.name)
            return timed_out()
        return await self._call(thread, begun, listener, listener.handler, payload)

    async def _effect_of_turn(self, begun: BegunMessage, listener: Listener) -> Effect | None:
        """The effect of the agent's turn. If it ran out of steps, the requester gets `huh` with its own request."""
        if begun.outcome is TurnStatus.PARTIAL and begun.kind is not MessageKind.REQUEST:
            request = await self.pool.run(lambda conn: find_request(conn, begun))
            begun = begun.model_copy(update={"kind": MessageKind.REQUEST, "payload": request})
        return effect_of_turn(self.registry, listener, begun)

    async def _call(
        self,
        thread: ThreadRef,
        begun: BegunMessage,
        listener: Listener,
        handler: Callable[[Any, HandlerMetadata], Awaitable[object]],
        payload: Payload,
    ) -> Effect:
        """Run the handler within its deadline; its errors are logged as type and lines, without their messages."""
        metadata = HandlerMetadata(
            thread_id=begun.segment_id,
            from_id=begun.from_id,
            own_name=listener.name if listener.agent else None,
            is_self_call=begun.kind is MessageKind.SELF,
            usage_instructions=self.registry.usage_instructions(listener.name),
        )
        clock, outcome = time.monotonic(), HandlerOutcome.CANCELED
        try:
            response = await run_handler(handler(payload, metadata), listener.deadline_seconds, listener.name)
            outcome = HandlerOutcome.INVALID
            effect = effect_of_response(self.registry, listener, response, begun.message_id)
        except TimeoutError:
            outcome = HandlerOutcome.TIMEOUT
            log.warning("message %s: %s gave no answer in time", begun.message_id, listener.name)
        except HandlerFailed as error:
            outcome = HandlerOutcome.FAILED
            log.error("message %s: %s failed: %s", begun.message_id, listener.name, error)
        except Exception as error:  # noqa: BLE001 -- a handler may return anything; the text may quote a payload
            log.error("message %s: %s returned no message: %s", begun.message_id, listener.name, type(error).__name__)
        else:
            outcome = HandlerOutcome.RETURNED
            return effect
        finally:
            record_handler(self.telemetry, thread, begun, time.monotonic() - clock, outcome)
        return timed_out()

    async def _enqueue_turn(
        self, thread: ThreadRef, begun: BegunMessage, listener: Listener, payload: Payload
    ) -> Effect | None:
        """Enqueue the agent's turn under the message's id, in this segment's own output box."""
        started = datetime.now(UTC)
        try:
            enqueued = await self._enqueue(thread, begun, listener, payload)
        except Refused as error:
            log.warning("message %s: agent %s cannot be asked: %s", begun.message_id, listener.agent_id, error.code)
            # A worker of another version may have enqueued a turn with other choices before it died: that turn ends.
            enqueued_before = error.code == "correlation_conflict"
            return unreadable(begun) if error.code == "text_too_large" else unreachable(expired=enqueued_before)
        turn, box = enqueued.reply.agent_turn_id, enqueued.reply.output_box_id
        assert turn is not None  # noqa: S101 -- accepted replies have both
        assert box is not None  # noqa: S101
        hit(Fault.HOP_ENQUEUED)
        if not enqueued.reply.duplicate:
            record_enqueue(self.telemetry, thread, begun, turn, started)
        if enqueued.lease is not None:
            await self._publish(enqueued.lease.doorbell(SENDER, "enqueue"))
        seconds = listener.deadline_seconds
        message = begun.message_id
        if not await self.pool.run(lambda conn: await_turn(conn, thread, message, turn, box, deadline_seconds=seconds)):
            await self._stop(thread, [turn])
        return None

    async def _enqueue(self, thread: ThreadRef, begun: BegunMessage, listener: Listener, payload: Payload) -> Enqueued:
        box = begun.output_box_id
        if box is None:
            fresh = new_box_id()
            box = await self.pool.run(lambda conn: own_box(conn, thread.project_id, begun.segment_id, fresh))
        request = EnqueueRequest(
            agent_id=listener.agent_id or AgentId(""),
            instruction=f"Message from {begun.from_id}:\n{xml_of(payload)}",
            output_box_id=box,
            runtime_config=self._settings[listener.name],
            correlation_id=begun.message_id,
            metadata={"thread_id": thread.thread_id, "listener": listener.name},
        )
        return await enqueue(
            self.pool,
            thread.project_id,
            thread.channel_id,
            request,
            _lineage(thread, begun, enqueue_traceparent(self.telemetry, begun)),
            depth_limit=self.limits.recursion_depth,
            sender=f"listener.{begun.from_id}",
        )

    async def _announce_replies(self, thread: ThreadRef, message: MessageId) -> tuple[MessageId, ...]:
        """Publish what follows from the handling: answers to requesters, stops of turns. Idempotent.

        Returns the canceled messages whose handlers still run.
        """
        ended = await self.pool.run(lambda conn: list_ended_messages(conn, thread.project_id, message))
        await self._stop(thread, [e.agent_turn_id for e in ended if e.agent_turn_id is not None])
        replies = await self.pool.run(lambda conn: list_replies(conn, thread.thread_id))
        if replies and await self._publish(*(reply.event(SENDER) for reply in replies)):
            for copy in filter(None, (reply.copy_to_requester(SENDER) for reply in replies)):
                await self.publisher.emit(copy)
            marked = await self.pool.run(lambda conn: mark_replied(conn, [reply.request_id for reply in replies]))
            record_replies(self.telemetry, replies, marked)
            hit(Fault.REPLY_ANNOUNCED)
        return tuple(e.message_id for e in ended if e.is_in_hand)[:SHOWN]

    async def _stop(self, thread: ThreadRef, turns: list[AgentTurnId]) -> None:
        stops = [
            ThreadTurn(agent_turn_id=turn, project_id=thread.project_id, channel_id=thread.channel_id) for turn in turns
        ]
        await self._publish(*(stop.stop(_LATE_TURN) for stop in stops))

    async def _publish(self, *messages: Message) -> bool:
        """Publish; returns False if a required message was not acknowledged: the safety net then publishes it."""
        try:
            await self.publisher.publish(messages)
        except ServerUnavailable as error:
            log.warning("left to the safety net: %s", error)
            return False
        return True


def _hand_back(error: ServedElsewhere) -> ApplicationError:
    """The error after which the engine retries on any free worker; the delay grows from `_PASS_ON_SECONDS`."""
    attempt = activity.info().attempt
    log.debug("%s is left to another worker: attempt %d", error.listener, attempt)
    delay = min(max(_PASS_ON_SECONDS, attempt * _PASS_ON_SECONDS / 10), _PASS_ON_LONGEST_SECONDS)
    return ApplicationError(
        error.code,
        type=type(error).__name__,
        next_retry_delay=timedelta(seconds=delay),
        category=ApplicationErrorCategory.BENIGN,
    )


def _lineage(thread: ThreadRef, begun: BegunMessage, traceparent: str | None) -> dict[str, str]:
    """The headers of a hop's enqueue: the request's trace, and the calling agent's turn as the parent."""
    thread_headers = {headers.CONVERSATION_ID: thread.thread_id}
    kept = {**thread_headers, **begun.context_headers, headers.THREAD_ID: thread.thread_id}
    if traceparent is not None:
        kept[headers.TRACEPARENT] = traceparent
    turn: AgentTurnId | None = begun.caller_turn_id
    if turn is not None and begun.caller_agent_id is not None:
        kept |= {headers.PARENT_TURN_ID: turn, headers.PARENT_AGENT_ID: begun.caller_agent_id}
        kept.pop(headers.PARENT_STEP_ID, None)
    return kept
