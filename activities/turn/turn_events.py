"""Publishes the events of a turn: state, step and task events in this order, and the doorbell of the agent's next turn.

Only the `task` event is required: if it is not acknowledged, the outcome stays unannounced, and the safety net
publishes it again under the same message id (protocol §8). Worker, bridge and services announce an end by `announce`.
"""

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.marks import rings_of
from turnstile.ledger.turns.ends import mark_announced
from turnstile.rules.turn_ends import EndedTurn, FinishedTurn
from turnstile.rules.turn_step import StepRecord
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Span, Telemetry, nanoseconds, turn_attributes
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId, interrupt_id, step_id
from turnstile.schema.people.interrupts import InterruptEvent
from turnstile.schema.states import Activity, HeadStatus, SteerStatus, StepPhase
from turnstile.schema.step_metadata import StepMetadata, SuspendMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import Address, InboxProgress, Message, StateEvent, StepEvent, steer_events

log = logging.getLogger(__name__)
SENDER = "turnstile.worker"


@dataclass(frozen=True, slots=True)
class TurnEvents:
    """The events of one turn; each activity creates its own."""

    publisher: Publisher
    turn: TurnRef
    context: Mapping[str, str]
    """The turn's `context_headers`."""
    telemetry: Telemetry = SILENT
    sender: str = SENDER
    agent_name: str = ""
    """The profile by whose name people know the agent, for spans; empty if it is unknown."""

    @property
    def address(self) -> Address:
        """The project, channel, agent and turn that the messages are about."""
        return Address.of(self.turn, self.context, self.sender)

    def consumed(self) -> Message:
        """The `inbox_progress` event of the turn's own row, which its begin consumed."""
        return self.address.inbox_progress(InboxProgress(inbox_id=self.turn.inbox_id, status="consumed"))

    def state(self, status: HeadStatus, updated_at: datetime, **metadata: str | int) -> Message:
        """A `state` event of this turn."""
        event = StateEvent(
            agent_id=self.turn.agent_id,
            agent_turn_id=self.turn.agent_turn_id,
            status=status,
            turn_epoch=self.turn.turn_epoch,
            updated_at=updated_at,
            output_box_id=self.turn.output_box_id,
            metadata=dict(metadata),
        )
        return self.address.state(event)

    def step(self, step: StepId, phase: StepPhase, metadata: JsonObject, cards: list[CardId] | None = None) -> Message:
        """A `step` event of this turn."""
        event = StepEvent(
            agent_turn_id=self.turn.agent_turn_id,
            step_id=step,
            phase=phase,
            metadata=metadata,
            new_card_ids=cards or [],
        )
        return self.address.step(event)

    def completed(self, number: int, recorded: StepMetadata) -> Message:
        """The `step` event of a committed step, from its recorded metadata."""
        return self.step(
            step_id(self.turn.agent_turn_id, number),
            StepPhase.COMPLETED if recorded.error_code is None else StepPhase.FAILED,
            recorded.model_dump(mode="json", include={"timing", "finish_reason", "truncated", "error_code"}),
            list(recorded.new_card_ids),
        )

    def steers(self, steers: Iterable[str], status: SteerStatus, step: StepId) -> list[Message]:
        """`steer` events of this turn."""
        return steer_events(self.address, self.turn.agent_turn_id, steers, status, step)

    def waiting(self, tools: Sequence[str], updated_at: datetime) -> Message:
        """The `state` event of a suspended turn; `tools` has the tool of each call that it waits for."""
        return self.state(
            HeadStatus.SUSPENDED,
            updated_at,
            activity=Activity.AWAITING_TOOL_RESULT,
            current_tool=", ".join(dict.fromkeys(tools)),
            waiting_tool_count=len(tools),
        )

    def suspended(
        self, number: int, recorded: StepMetadata, waiting: Collection[ToolCallId] | None, updated_at: datetime | None
    ) -> list[Message]:
        """The step's commands, then its events; a repeat has the same commands under the same message ids.

        Calls that wait for a person have no command here. `waiting` are the calls that still wait, None for all of the
        step. Without `updated_at` the turn has resumed.
        """
        commands = recorded.commands if isinstance(recorded, SuspendMetadata) else ()
        held = recorded.held if isinstance(recorded, SuspendMetadata) else ()
        sent = [each for each in commands if each.tool_call_id not in held]
        left = [each.tool_name for each in commands if waiting is None or each.tool_call_id in waiting]
        key = step_id(self.turn.agent_turn_id, number)
        doing: JsonObject = {
            "activity": Activity.EXECUTING_TOOL,
            "tools": [command.tool_name for command in sent],
        }
        return [
            *(self.address.tool_command(command, key) for command in sent),
            *([] if updated_at is None else [self.waiting(left, updated_at)]),
            *([self.step(key, StepPhase.EXECUTING, doing)] if sent or not held else []),
            self.completed(number, recorded),
        ]

    def asked(self, number: int, record: StepRecord, opened_at: datetime) -> list[Message]:
        """The `interrupt` events of a step whose commit opened its questions at that moment."""
        return [
            self.address.interrupt(
                InterruptEvent(
                    interrupt_id=interrupt_id(call.tool_call_id),
                    agent_id=self.turn.agent_id,
                    agent_turn_id=self.turn.agent_turn_id,
                    step_id=step_id(self.turn.agent_turn_id, number),
                    tool_call_id=call.tool_call_id,
                    tool_name=call.tool_name,
                    reason=hold.reason,
                    action_digest=hold.action_digest,
                    expires_at=opened_at + timedelta(seconds=hold.expires_after_seconds),
                )
            )
            for call, hold in zip(record.calls, record.holds, strict=False)
            if hold is not None
        ]

    async def publish(self, *messages: Message) -> None:
        """Publish best-effort messages; errors are logged."""
        try:
            await self.publisher.publish(messages)
        except ServerUnavailable as error:
            log.warning("turn %s: events not published: %s", self.turn.agent_turn_id, error)

    async def finished(self, pool: Pool, done: FinishedTurn, *before: Message) -> None:
        """Announce the end of this worker's turn after its last events, and record the span of the announcement."""
        hit(Fault.TURN_FINISHED)
        announced = await self.ended(pool, done, *before)
        if done.is_new:
            self._finish_span(done, None if announced else ServerUnavailable.code)

    async def ended(self, pool: Pool, done: EndedTurn, *before: Message) -> bool:
        """Publish the end of the turn and the doorbell of the agent's next turn; returns as `announce` does.

        In order: the head's `state`, the status of inbox rows, these messages, the `task` event, the next lease.
        """
        if done.is_new:
            figures = (done.status, done.error_code, done.stats, done.ended_at)
            self.telemetry.turn_ended(self.turn, self.context, *figures, self.agent_name)
        messages = [] if done.idle_since is None else [self.state(HeadStatus.IDLE, done.idle_since)]
        messages += [self.address.inbox_progress(row) for row in done.settled]
        messages += [*before, *done.announcement(self.address)]
        if (lease := done.next_lease(self.turn)) is not None:
            messages += [lease.dispatched(self.sender), lease.doorbell(self.sender, "next_turn")]
        if done.is_new and done.in_tree:  # the end may have answered a parent, or marked others
            rings = await pool.run(lambda conn: rings_of(conn, [self.turn.agent_turn_id]))
            messages += [ring.doorbell(self.sender, "tree") for ring in rings]
        return await announce(pool, self.publisher, self.turn.agent_turn_id, messages)

    def _finish_span(self, done: FinishedTurn, error_code: str | None) -> None:
        """Record the span from the end in the ledger to its announcement."""
        if not self.telemetry.tracer.enabled:
            return
        under = self.context.get(headers.TRACEPARENT, "")
        if (own := headers.derived_span(under, f"{self.turn.agent_turn_id}-finish")) is None:
            return
        attributes = turn_attributes(self.turn, self.context, self.agent_name) | {
            "turnstile.turn.status": done.status.value
        }
        ended = nanoseconds(done.ended_at)
        times = (ended, max(ended, time.time_ns()))
        self.telemetry.tracer.record(
            Span("finish", own, headers.span_id(under), *times, attributes, error_code, "producer")
        )


async def announce(pool: Pool, publisher: Publisher, turn: AgentTurnId, messages: Sequence[Message]) -> bool:
    """Publish the end of a turn, and have it marked as announced soon; False if that is left to the safety net.

    A mark that is lost is mended: the safety net publishes the end again, under the same message id.
    """
    try:
        await publisher.publish(messages)
    except ServerUnavailable as error:
        log.warning("turn %s: its task event is left to the safety net: %s", turn, error)
        return False
    hit(Fault.TURN_PUBLISHED)
    pool.soon.add(_mark, turn)
    return True


async def _mark(conn: Connection, turns: Sequence[str]) -> None:
    await mark_announced(conn, [AgentTurnId(turn) for turn in turns])
    hit(Fault.TURN_ANNOUNCED)


async def announce_all(
    pool: Pool, publisher: Publisher, turns: Sequence[AgentTurnId], messages: Sequence[Message]
) -> None:
    """Publish the ends of these turns, and mark them as announced; raises `ServerUnavailable`, and marks none then."""
    await publisher.publish(messages)
    hit(Fault.TURN_PUBLISHED)
    await pool.run(lambda conn: mark_announced(conn, turns))
