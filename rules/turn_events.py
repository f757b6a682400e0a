"""The messages of a turn: state, step and task events, commands, and the doorbells that its end implies. Pure.

A repeat of a transition has the same messages under the same ids (protocol §5). `turnstile.ledger.turns.turn_publisher`
publishes them.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from turnstile.rules.turn_ends import EndedTurn, Lease
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import CardId, StepId, ToolCallId, interrupt_id, step_id
from turnstile.schema.people.interrupts import InterruptEvent
from turnstile.schema.states import Activity, HeadStatus, SteerStatus, StepPhase
from turnstile.schema.step_metadata import StepMetadata, SuspendMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.events import InboxProgress, Message, StateEvent, StepEvent, TurnAddress, steer_events

log = logging.getLogger(__name__)
SENDER = "turnstile.worker"


@dataclass(frozen=True, slots=True)
class TurnEvents:
    """The events of one turn."""

    turn: TurnRef
    context: Mapping[str, str]
    """The turn's `context_headers`."""
    sender: str = SENDER
    agent_name: str = ""
    """The profile by whose name people know the agent, for spans; empty if it is unknown."""

    @property
    def address(self) -> TurnAddress:
        """The project, channel, agent and turn that the messages are about."""
        return TurnAddress.of(self.turn, self.context, self.sender)

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
        sent = [c for c in commands if c.tool_call_id not in held]
        left = [c.tool_name for c in commands if waiting is None or c.tool_call_id in waiting]
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

    def ended(self, end: EndedTurn, before: Sequence[Message] = (), rings: Sequence[Lease] = ()) -> list[Message]:
        """The messages of the end of the turn, doorbells included.

        In order: the head's `state`, the status of inbox rows, the messages `before`, the `task` event, the doorbells
        of the agent's next turn and of `rings`, the turns that the end has answered or stopped.
        """
        messages = [] if end.idle_since is None else [self.state(HeadStatus.IDLE, end.idle_since)]
        messages += [self.address.inbox_progress(row) for row in end.settled]
        messages += [*before, *end.announcement(self.address)]
        if (lease := end.next_lease(self.turn)) is not None:
            messages += [lease.dispatched(self.sender), lease.doorbell(self.sender, "next_turn")]
        return [*messages, *(ring.doorbell(self.sender, "tree") for ring in rings)]
