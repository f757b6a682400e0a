"""The message pump's activities (protocol §9): one message is begun, handled and settled.

A handler runs at most once, unless its listener says that repeating does no harm: it is begun in the ledger before and
settled after, so that a run which finds it begun knows that a worker died with it. A message that was settled, or
canceled, is settled for good. An agent's turn is an enqueue under the message's id, so that a repeat finds it. Only ids
and codes are returned or raised.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity

from activities.heartbeat import beating
from activities.routing import (
    choices,
    effect_of_response,
    effect_of_turn,
    huh,
    read_payload,
    text_of,
    timed_out,
    unreachable,
)
from activities.telling import SENDER
from ledger.intake import Enqueued, enqueue
from ledger.pool import Pool
from ledger.threads import (
    BegunMessage,
    Effect,
    ThreadLimits,
    await_turn,
    begin_message,
    look_at_thread,
    settle_message,
)
from ledger.threadviews import ThreadTurn, list_ended_turns, list_replies, mark_replied
from schema import headers
from schema.errors import Refused, ServerUnavailable
from schema.events import Message
from schema.faults import Fault, hit
from schema.ids import AgentId, AgentTurnId
from schema.inbox import EnqueueRequest
from schema.listeners import Listener, Registry
from schema.payloads import Payload
from schema.ports import Publisher
from schema.primitives import HandlerMetadata
from schema.profiles import RuntimeConfig
from schema.threads import AdvanceInput, MessageId, MessageKind, MessageStatus, ThreadAdvanced, ThreadRef

log = logging.getLogger(__name__)
_LATE_TURN = "the message it worked for was ended"


@dataclass(frozen=True, slots=True)
class PumpLimits:
    """What `[pump]` and `[protocol]` bound."""

    thread: ThreadLimits = field(default_factory=ThreadLimits)
    recursion_depth: int = 20


class PumpActivities:
    """The activities and what they need: a registry, pools, clients; nothing of any thread."""

    def __init__(self, pool: Pool, publisher: Publisher, registry: Registry, limits: PumpLimits) -> None:
        self._pool = pool
        self._publisher = publisher
        self._registry = registry
        self._limits = limits

    @activity.defn(name="look_at_thread")
    async def look_at_thread(self, thread: ThreadRef) -> ThreadAdvanced:
        """Where the thread stands."""
        return await self._pool.run(lambda conn: look_at_thread(conn, thread.thread_id))

    @activity.defn(name="advance_message")
    async def advance_message(self, given: AdvanceInput) -> ThreadAdvanced:
        """Handle the message, or hear of the turn that it waits for; answers where the thread stands then."""
        async with beating():
            thread, message = given.thread, given.message_id
            begun = await self._pool.run(lambda conn: begin_message(conn, message))
            if begun is not None:
                hit(Fault.MESSAGE_BEGUN)
                effect = await self._handle(thread, begun)
                if effect is not None:
                    limits = self._limits.thread
                    await self._pool.transact(lambda conn: settle_message(conn, thread, begun, effect, limits))
                    hit(Fault.MESSAGE_SETTLED)
            await self._tell(thread, message)
            hit(Fault.MESSAGE_TOLD)
            return await self.look_at_thread(thread)

    async def _handle(self, thread: ThreadRef, begun: BegunMessage) -> Effect | None:
        """What the message's handling comes to; None while an agent's turn is out."""
        listener = self._registry.get(begun.listener)
        if listener is None:
            return huh(begun)
        if begun.was is MessageStatus.WAITING:
            return effect_of_turn(self._registry, listener, begun)
        payload = read_payload(self._registry, listener, begun)
        if payload is None:
            return huh(begun)
        if begun.depth > self._limits.thread.max_depth:
            return unreachable()
        if listener.handler is None:
            return await self._ask(thread, begun, listener, payload)
        if begun.attempt > 1 + listener.retries:
            log.warning("message %s: %s died with its worker", begun.message_id, listener.name)
            return timed_out()
        return await self._call(begun, listener, listener.handler, payload)

    async def _call(
        self,
        begun: BegunMessage,
        listener: Listener,
        handler: Callable[[Any, HandlerMetadata], Awaitable[object]],
        payload: Payload,
    ) -> Effect:
        """Run the handler within its deadline. What it raises stays in the log, as places without words."""
        metadata = HandlerMetadata(
            thread_id=begun.segment_id,
            from_id=begun.from_id,
            own_name=listener.name if listener.agent else None,
            is_self_call=begun.kind is MessageKind.SELF,
            usage_instructions=self._registry.usage_instructions(listener.name),
        )
        try:
            async with asyncio.timeout(listener.deadline_seconds):
                response = await handler(payload, metadata)
            return effect_of_response(self._registry, listener, response)
        except TimeoutError:
            log.warning("message %s: %s gave no answer in time", begun.message_id, listener.name)
        except Exception as error:  # noqa: BLE001 -- a stranger's code; its words may quote a payload
            frames = traceback.extract_tb(error.__traceback__)
            where = ", ".join(f"{frame.name}:{frame.lineno}" for frame in frames[-5:])
            log.error("message %s: %s raised %s at %s", begun.message_id, listener.name, type(error).__name__, where)
        return timed_out()

    async def _ask(self, thread: ThreadRef, begun: BegunMessage, listener: Listener, payload: Payload) -> Effect | None:
        """Enqueue the agent's turn under the message's id, in this segment's own output box."""
        try:
            made = await self._enqueue(thread, begun, listener, payload)
        except Refused as error:
            log.warning("message %s: agent %s cannot be asked: %s", begun.message_id, listener.agent_id, error.code)
            return huh(begun) if error.code == "text_too_large" else unreachable()
        turn, box = made.reply.agent_turn_id, made.reply.output_box_id
        assert turn is not None  # noqa: S101 -- accepted replies name both
        assert box is not None  # noqa: S101
        hit(Fault.HOP_ENQUEUED)
        if made.lease is not None:
            await self._publish(made.lease.doorbell(SENDER, "enqueue"))
        seconds = listener.deadline_seconds
        message = begun.message_id
        if not await self._pool.run(lambda conn: await_turn(conn, message, turn, box, deadline_seconds=seconds)):
            await self._stop(
                [ThreadTurn(agent_turn_id=turn, project_id=thread.project_id, channel_id=thread.channel_id)]
            )
        return None

    async def _enqueue(self, thread: ThreadRef, begun: BegunMessage, listener: Listener, payload: Payload) -> Enqueued:
        request = EnqueueRequest(
            agent_id=listener.agent_id or AgentId(""),
            instruction=text_of(payload),
            output_box_id=begun.output_box_id,
            runtime_config=RuntimeConfig(
                choices=choices(self._registry, listener),
                instructions=self._registry.usage_instructions(listener.name),
            ),
            correlation_id=begun.message_id,
            metadata={"thread_id": thread.thread_id, "listener": listener.name},
        )
        return await enqueue(
            self._pool,
            thread.project_id,
            thread.channel_id,
            request,
            _lineage(thread, begun),
            depth_limit=self._limits.recursion_depth,
            sender=f"listener.{begun.from_id}",
        )

    async def _tell(self, thread: ThreadRef, message: MessageId) -> None:
        """What the handling of the message means for others: answers for requesters, ends of turns. Harmless twice."""
        ended = await self._pool.run(lambda conn: list_ended_turns(conn, thread.thread_id, message))
        await self._stop(ended)
        replies = await self._pool.run(lambda conn: list_replies(conn, thread=thread.thread_id))
        if not replies:
            return
        told = [each for reply in replies for each in reply.messages(SENDER)]
        if await self._publish(*told):
            await self._pool.run(lambda conn: mark_replied(conn, [reply.request_id for reply in replies]))
            hit(Fault.REPLY_ANNOUNCED)

    async def _stop(self, turns: list[ThreadTurn]) -> None:
        await self._publish(*(turn.stop(_LATE_TURN) for turn in turns))

    async def _publish(self, *messages: Message) -> bool:
        """Publish; False if a required one was not acknowledged: the safety net makes good for it."""
        try:
            await self._publisher.publish(messages)
        except ServerUnavailable as error:
            log.warning("left to the safety net: %s", error)
            return False
        return True


def _lineage(thread: ThreadRef, begun: BegunMessage) -> dict[str, str]:
    """The headers of a hop's enqueue: the thread's trace, and the agent's turn above as its parent."""
    kept = {**begun.context_headers, headers.THREAD_ID: thread.thread_id}
    turn: AgentTurnId | None = begun.caller_turn_id
    if turn is not None and begun.caller_agent_id is not None:
        kept |= {headers.PARENT_TURN_ID: turn, headers.PARENT_AGENT_ID: begun.caller_agent_id}
        kept.pop(headers.PARENT_STEP_ID, None)
    return kept
