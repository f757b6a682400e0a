"""The end of a turn: how it ends, its deliverable, its record and what is published of it (protocol §3, §4, §8). Pure.

A turn that made no deliverable gets a fallback, so that every end has one. The end may lease the agent's next turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import Field, Json

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.budgets.lacks import BudgetLack
from turnstile.schema.cards import (
    SYSTEM_AUTHOR,
    TOO_LONG,
    TOO_SMALL,
    Card,
    CardType,
    FallbackDeliverable,
    JsonContent,
    Role,
    TextContent,
    make_card,
    readable_content,
)
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    SteerId,
    ToolCallId,
    turn_card_id,
)
from turnstile.schema.states import HeadStatus, SteerStatus, TurnStatus
from turnstile.schema.step_metadata import StepMetadata
from turnstile.schema.turns import Outcome, TurnRef
from turnstile.schema.wire.events import InboxProgress, Message, StateEvent, TaskEvent, TurnAddress, steer_events
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.ui_actions import StoredAction


class Lease(Tolerant):
    """A turn that its agent was leased to, with its inbox row. The caller must ring the doorbell."""

    project_id: ProjectId
    agent_id: AgentId
    channel_id: ChannelId
    agent_turn_id: AgentTurnId
    inbox_id: InboxId
    turn_epoch: int
    worker_target: str
    context_headers: ContextHeaders

    def address(self, sender: str) -> TurnAddress:
        """The address of messages about the leased turn."""
        return TurnAddress.of(self, self.context_headers, sender)

    def doorbell(self, sender: str, reason: str, *, claimed: bool = False) -> Message:
        """The doorbell of the turn's inbox row, which the sender may have claimed already."""
        return self.address(sender).wakeup(self.worker_target, self.inbox_id, reason, claimed=claimed)


class NewLease(Lease):
    """A lease of the statement that just ran, with what it put on the head."""

    output_box_id: BoxId
    leased_at: datetime

    def dispatched(self, sender: str) -> Message:
        """The `state` event of the head's change."""
        event = StateEvent(
            agent_id=self.agent_id,
            agent_turn_id=self.agent_turn_id,
            status=HeadStatus.DISPATCHED,
            turn_epoch=self.turn_epoch,
            updated_at=self.leased_at,
            output_box_id=self.output_box_id,
        )
        return self.address(sender).state(event)


LIVE = (HeadStatus.DISPATCHED, HeadStatus.RUNNING, HeadStatus.SUSPENDED)
STOPPED = "stopped"
"""`error_code` of a turn that was stopped."""
STOP_REASON = "the turn was stopped"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends: its status, its deliverable (one of the cards), codes and figures."""

    status: TurnStatus
    deliverable_card_id: CardId
    error_code: str | None = None
    error: str | None = None
    tool_result_card_id: CardId | None = None
    stats: JsonObject | None = None


class EndedTurn(Tolerant):
    """A recorded outcome, from which the end of a turn is announced."""

    status: TurnStatus
    deliverable_card_id: CardId
    tool_result_card_id: CardId | None = None
    output_box_id: BoxId
    error_code: str | None
    error: str | None
    stats: Json[JsonObject]
    ended_at: datetime
    context_headers: ContextHeaders
    ui_action: StoredAction = None
    skipped_steers: list[SteerId] = Field(default_factory=list[SteerId])
    """What was said to the turn that no step asked with: it ended first (protocol §6, steer)."""
    in_tree: bool = False
    """Whether the turn's end may have decided or marked something: then there is someone to ring."""

    @property
    def is_new(self) -> bool:
        """Whether the statement that returned this ended the turn; False for a repeat."""
        return True

    @property
    def idle_since(self) -> datetime | None:
        """When the head became idle; None if it did not, or is not any more."""
        return None

    @property
    def settled(self) -> Sequence[InboxProgress]:
        """The new status of inbox rows that the end of the turn settled."""
        return ()

    def next_lease(self, turn: TurnRef) -> NewLease | None:
        """The lease of the agent's next turn, whose doorbell the caller must ring; None if there is none."""
        return None

    def announcement(self, address: TurnAddress) -> list[Message]:
        """The `task` event and, for a UI action, the final ack, with the message ids that every repeat uses.

        Before them, which steers were skipped.
        """
        event = TaskEvent.model_validate(self.model_dump() | {"agent_turn_id": address.agent_turn_id})
        skipped = steer_events(address, event.agent_turn_id, self.skipped_steers, SteerStatus.SKIPPED)
        return [*skipped, *address.ended(event, self.ui_action)]


class FinishedTurn(EndedTurn):
    """The result of `finish_turn`: the recorded outcome, and the head afterwards."""

    result: Literal["done", "already"]
    step_metadata: Json[StepMetadata] | None
    head_status: HeadStatus
    head_epoch: int
    updated_at: datetime
    next_inbox_id: InboxId | None
    next_turn_id: AgentTurnId | None
    next_channel_id: ChannelId | None
    next_output_box_id: BoxId | None
    next_context_headers: ContextHeaders
    worker_target: str | None
    rows: Json[list[InboxProgress]] = Field(default_factory=list[InboxProgress])

    @property
    def is_new(self) -> bool:
        """Whether this statement ended the turn."""
        return self.result == "done"

    @property
    def idle_since(self) -> datetime | None:
        """When the head became idle; None if it did not, or is not any more."""
        return self.updated_at if self.head_status is HeadStatus.IDLE else None

    @property
    def settled(self) -> Sequence[InboxProgress]:
        """The turn's own row if it was never begun, and the request to stop it."""
        return self.rows

    def outcome(self, turn: AgentTurnId) -> Outcome:
        """The outcome in ids and codes."""
        return Outcome(
            agent_turn_id=turn,
            status=self.status,
            deliverable_card_id=self.deliverable_card_id,
            output_box_id=self.output_box_id,
            error_code=self.error_code,
            tool_result_card_id=self.tool_result_card_id,
        )

    def next_lease(self, turn: TurnRef) -> NewLease | None:
        """The lease of the agent's next turn, whose doorbell the caller must ring; None if there is none."""
        if self.next_inbox_id is None or self.next_turn_id is None:
            return None
        return NewLease.model_validate(
            {
                "project_id": turn.project_id,
                "agent_id": turn.agent_id,
                "channel_id": self.next_channel_id,
                "agent_turn_id": self.next_turn_id,
                "inbox_id": self.next_inbox_id,
                "turn_epoch": self.head_epoch,
                "worker_target": self.worker_target or turn.worker_target,
                "context_headers": self.next_context_headers,
                "output_box_id": self.next_output_box_id,
                "leased_at": self.updated_at,
            }
        )


class RecalledStep(Tolerant):
    """The recorded state of a turn whose gate is closed; `gate`: its agent's head still has this turn and epoch."""

    gate: bool
    stopping: bool
    """Whether the turn is marked and not over: its gates stay closed, so it must be ended (protocol §6, join)."""
    step: int | None
    """The number of the recorded step, if there is one."""
    step_metadata: Json[StepMetadata] | None
    status: TurnStatus | None
    deliverable_card_id: CardId | None
    tool_result_card_id: CardId | None
    output_box_id: BoxId | None
    error_code: str | None
    error: str | None
    stats: Json[JsonObject] | None
    ended_at: datetime | None
    head_status: HeadStatus | None
    head_epoch: int | None
    updated_at: datetime | None
    next_inbox_id: InboxId | None
    next_turn_id: AgentTurnId | None
    next_channel_id: ChannelId | None
    next_output_box_id: BoxId | None
    worker_target: str | None
    resume_deadline: datetime | None
    waiting: list[ToolCallId]
    context_headers: ContextHeaders
    next_context_headers: ContextHeaders
    ui_action: StoredAction

    def finished(self) -> FinishedTurn | None:
        """The recorded end of the turn; None while there is no outcome."""
        if self.status is None:
            return None
        return FinishedTurn.model_validate(self.model_dump(round_trip=True) | {"result": "already"})


def fallback_ending(
    turn: TurnRef,
    cards: Sequence[Card],
    status: TurnStatus,
    error_code: str,
    reason: str,
    stats: JsonObject | None = None,
    lack: BudgetLack | None = None,
    quoted: str | None = None,
) -> tuple[Card, Ending]:
    """The end of a turn without a deliverable of its own: the fallback card, and the ending that names it.

    With `lack` both say of which budget there was not enough. What is `quoted` behind the reason is content: the card
    alone has it.
    """
    skipped = error_code if error_code in (TOO_LONG, TOO_SMALL) else None
    card = fallback_card(turn, cards, status, reason if quoted is None else f"{reason}; {quoted}", lack, skipped)
    if lack is not None:
        stats = {**(stats or {}), "budget": lack.model_dump(mode="json")}
    return card, Ending(status, card.card_id, error_code, reason, stats=stats)


def fallback_card(
    turn: TurnRef,
    cards: Sequence[Card],
    status: TurnStatus,
    reason: str,
    lack: BudgetLack | None = None,
    error_code: str | None = None,
) -> Card:
    """The deliverable of a turn that made none, from the cards that it has written (protocol §4)."""
    turn_cards = [card for card in cards if card.metadata.agent_turn_id == turn.agent_turn_id]
    fallback = FallbackDeliverable(
        reason=reason,
        last_thought=_last_thought(turn_cards),
        tool_results=[
            {"tool_call_id": card.tool_call_id, "card_id": card.card_id}
            for card in turn_cards
            if card.type == CardType.TOOL_RESULT
        ],
        terminal_status=status,
        error_code=error_code,
        budget=lack,
    )
    return make_card(
        turn_card_id(turn.agent_turn_id, "deliverable"),
        CardType.DELIVERABLE,
        Role.ASSISTANT,
        JsonContent(data=fallback.model_dump(mode="json")),
        author=SYSTEM_AUTHOR,
        turn=turn.agent_turn_id,
        trace=turn.trace_id,
        partial=True,
    )


def _last_thought(cards: Sequence[Card]) -> str | None:
    for card in reversed(cards):
        if card.type == CardType.THOUGHT:
            content = readable_content(card)
            return content.text if isinstance(content, TextContent) else None
    return None
