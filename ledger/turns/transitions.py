"""A leased turn from begin to end: begin_step, retry_step, commit_step, finish_turn, fence (protocol §3, §7).

Guarantees: every write passes the CAS gate in its own statement; a repeat finds its own effect and answers what is
recorded; a finish frees the agent and leases its next turn in one transaction. Each is one round trip. Never publishes.
A gate that is gone raises `StaleTurn`; `recall_step` then says what stands there.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Json

from turnstile.ledger.pool import Again, Pool
from turnstile.ledger.queries import Connection, Row, query
from turnstile.ledger.turns.cards import BoxCache, box_cards, card_columns
from turnstile.ledger.turns.lease import Lease
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import (
    SYSTEM_AUTHOR,
    Card,
    CardType,
    CardUnreadable,
    FallbackDeliverable,
    JsonContent,
    Role,
    TextContent,
    content_of,
    make_card,
)
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import (
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    StepId,
    ToolCallId,
    step_id,
    turn_card_id,
)
from turnstile.schema.profiles import STORED, RuntimeConfig
from turnstile.schema.states import HeadStatus, MessageType, StepStatus, TurnStatus
from turnstile.schema.step_metadata import StepMetadata, SuspendMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.turns import Outcome, TurnRef
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.ui_actions import StoredAction

LIVE = (HeadStatus.DISPATCHED, HeadStatus.RUNNING, HeadStatus.SUSPENDED)


class AnsweredCall(Tolerant):
    """A call whose report was applied; `after_execution` is the report's, if it said one."""

    tool_call_id: ToolCallId
    tool_name: str
    tool_result_card_id: CardId
    after_execution: str | None


class StepHead(Tolerant):
    """The head as a step begins."""

    message_type: MessageType = MessageType.TURN
    status: HeadStatus
    step_count: int
    step_attempt: int
    model_failures: int
    output_position: int
    trace_id: str
    parent_step_id: str | None
    updated_at: datetime
    started_at: datetime
    enqueued_at: datetime
    due_at: datetime
    """When the turn was leased, or when its row was last made due again."""
    suspended_at: datetime | None = None
    """Since when it slept, where the step before this one sent calls."""
    context_headers: ContextHeaders
    runtime_config: RuntimeConfig
    profile_box_id: BoxId
    context_box_id: BoxId
    output_box_id: BoxId
    tools: list[JsonObject]
    """The project's `resource.tools` rows, raw; only for a turn's first step."""
    turn_config: JsonObject | None
    """What the first step pinned; null until it is committed."""
    answered: list[AnsweredCall]
    """The calls of the last committed step that were applied or expired, in no order."""


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step in hand: its head, and the cards of the three boxes in order."""

    head: StepHead
    profile: tuple[Card, ...]
    context: tuple[Card, ...]
    output: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a step leaves behind, whatever follows it. `metadata` is what a repeated commit answers again."""

    step: int
    metadata: StepMetadata
    cards: Sequence[Card]
    tool_call_ids: Sequence[ToolCallId]
    started_at: datetime
    status: StepStatus = StepStatus.COMPLETED
    wait_seconds: float = 0.0
    kept: Sequence[CardId] = ()
    """Which of the cards are there already: they enter the output box, and nothing else is made of them."""

    @property
    def calls(self) -> Sequence[ToolCommand]:
        """The calls that are sent once this is committed; the turn is then suspended."""
        return self.metadata.commands if isinstance(self.metadata, SuspendMetadata) else ()


class CommittedStep(Tolerant):
    """Answer of `commit_step`: the recorded metadata, this attempt's or an earlier one's."""

    result: Literal["done", "already"]
    status: HeadStatus
    updated_at: datetime
    resume_deadline: datetime | None
    step_metadata: Json[StepMetadata]


class FinishedTurn(Tolerant):
    """Answer of `finish_turn`: the outcome as recorded, and where the head went."""

    result: Literal["done", "already"]
    status: TurnStatus
    deliverable_card_id: CardId
    tool_result_card_id: CardId | None
    output_box_id: BoxId
    error_code: str | None
    error: str | None
    stats: Json[JsonObject]
    ended_at: datetime
    step_metadata: Json[StepMetadata] | None
    head_status: HeadStatus
    head_epoch: int
    updated_at: datetime
    next_inbox_id: InboxId | None
    next_turn_id: AgentTurnId | None
    next_channel_id: ChannelId | None
    context_headers: ContextHeaders
    next_context_headers: ContextHeaders
    ui_action: StoredAction
    worker_target: str | None

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

    def next_lease(self, turn: TurnRef) -> Lease | None:
        """The agent's next turn, if it was leased: somebody must ring."""
        if self.next_inbox_id is None or self.next_turn_id is None:
            return None
        return Lease.model_validate(
            {
                "project_id": turn.project_id,
                "agent_id": turn.agent_id,
                "channel_id": self.next_channel_id,
                "agent_turn_id": self.next_turn_id,
                "inbox_id": self.next_inbox_id,
                "turn_epoch": self.head_epoch,
                "worker_target": self.worker_target or turn.worker_target,
                "context_headers": self.next_context_headers,
            }
        )


class RecalledStep(Tolerant):
    """Where a turn stands when its gate did not open: `gate` says whether it is still the head's turn and epoch."""

    gate: bool
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
    worker_target: str | None
    resume_deadline: datetime | None
    waiting: list[ToolCallId]
    context_headers: ContextHeaders
    next_context_headers: ContextHeaders
    ui_action: StoredAction

    def finished(self) -> FinishedTurn | None:
        """The end of the turn as it is recorded; None while there is no outcome."""
        if self.status is None:
            return None
        return FinishedTurn.model_validate(self.model_dump(round_trip=True) | {"result": "already"})


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ends: its status, its deliverable (among the cards), codes and figures."""

    status: TurnStatus
    deliverable_card_id: CardId
    error_code: str | None = None
    error: str | None = None
    tool_result_card_id: CardId | None = None
    stats: JsonObject | None = None


def gate(turn: TurnRef) -> dict[str, Any]:
    """The parameters of the CAS gate."""
    return {
        "project_id": turn.project_id,
        "agent_id": turn.agent_id,
        "agent_turn_id": turn.agent_turn_id,
        "turn_epoch": turn.turn_epoch,
    }


async def begin_step(conn: Connection, turn: TurnRef, step: int, cache: BoxCache) -> BegunStep:
    """Open the gate for a step (0: whichever is next) and read what it needs; raises `StaleTurn` if it stays shut."""
    boxes = (turn.profile_box_id, turn.context_box_id, turn.output_box_id)
    known = [cache.get(turn.project_id, box) for box in boxes]
    rows = await query("begin_step").many(
        conn,
        **gate(turn),
        step=step,
        known_profile=known[0].position,
        known_context=known[1].position,
        known_output=known[2].position,
    )
    if not rows:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} is not to be stepped")
    parts: list[list[Row]] = [[], [], []]
    for row in rows[1:]:
        parts[int(row["part"]) - 1].append(row)
    profile, context, output = (
        cache.extend(turn.project_id, box, prefix, part) for box, prefix, part in zip(boxes, known, parts, strict=True)
    )
    head = StepHead.model_validate_json(rows[0]["content"], context=STORED)
    return BegunStep(head, profile, context, output)


async def retry_step(conn: Connection, turn: TurnRef, step: int) -> tuple[int, int]:
    """Count a failed model call; returns the number of the next stream and of the failures so far in this step."""
    row = await query("retry_step").opt(conn, **gate(turn), step=step)
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} is not to be retried")
    return row["step_attempt"], row["model_failures"]


async def commit_step(conn: Connection, turn: TurnRef, record: StepRecord) -> CommittedStep:
    """Commit a step that another one follows, now or after its calls; raises `StaleTurn` if the gate is gone."""
    row = await query("commit_step").opt(
        conn,
        **gate(turn),
        **_record(turn, record),
        **card_columns(record.cards),
        call_ids=[call.tool_call_id for call in record.calls],
        call_names=[call.tool_name for call in record.calls],
        kept_ids=list(record.kept),
        wait_seconds=record.wait_seconds,
    )
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} lost its gate")
    return CommittedStep.model_validate(dict(row))


async def finish_turn(
    conn: Connection,
    turn: TurnRef,
    ending: Ending,
    *,
    record: StepRecord | None = None,
    cards: Sequence[Card] = (),
    from_statuses: Sequence[HeadStatus] = (HeadStatus.RUNNING,),
    raise_epoch: bool = False,
) -> FinishedTurn:
    """End the turn, with its last step's record or by force with `cards`; raises `StaleTurn` if the gate is gone.

    `raise_epoch` fences: the epoch rises even if no next turn is leased (protocol §8).
    """
    last: dict[str, Any] = {"step_id": None, "step": 0, "tool_call_ids": None, "step_metadata": None}
    last |= {"step_started_at": None, "step_status": None}
    if record is not None:
        last = {**_record(turn, record), "step_status": record.status}
    row = await query("finish_turn").opt(
        conn,
        **gate(turn),
        **last,
        **card_columns(record.cards if record is not None else cards),
        kept_ids=[] if record is None else list(record.kept),
        from_statuses=list(from_statuses),
        idle_bump=int(raise_epoch),
        status=ending.status,
        deliverable_card_id=ending.deliverable_card_id,
        tool_result_card_id=ending.tool_result_card_id,
        error_code=ending.error_code,
        error=ending.error,
        stats=json.dumps(ending.stats or {}),
    )
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} lost its gate")
    if row["result"] == "again":
        raise Again
    return FinishedTurn.model_validate(dict(row))


def _record(turn: TurnRef, record: StepRecord) -> dict[str, Any]:
    return {
        "step_id": step_id(turn.agent_turn_id, record.step),
        "step": record.step,
        "tool_call_ids": json.dumps(list(record.tool_call_ids)),
        "step_metadata": record.metadata.model_dump_json(),
        "step_started_at": record.started_at,
    }


async def fence(
    pool: Pool,
    turn: TurnRef,
    status: TurnStatus,
    error_code: str,
    reason: str,
    from_statuses: Sequence[HeadStatus] = LIVE,
) -> FinishedTurn:
    """End a turn by force, whatever its worker does: fallback deliverable, outcome, raised epoch, next lease (§8).

    Raises `StaleTurn` if the turn is not the head's any more. Two round trips.
    """
    made = await pool.run(lambda conn: box_cards(conn, turn.project_id, turn.output_box_id))
    card = fallback_card(turn, made or (), status, reason)
    ending = Ending(status, card.card_id, error_code, reason)
    done = await pool.run(
        lambda conn: finish_turn(conn, turn, ending, cards=[card], from_statuses=from_statuses, raise_epoch=True)
    )
    if done.result == "already":
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} was over")
    return done


def fallback_card(turn: TurnRef, cards: Sequence[Card], status: TurnStatus, reason: str) -> Card:
    """The deliverable of a turn that made none itself, from what it has written so far (protocol §4)."""
    own = [card for card in cards if card.metadata.agent_turn_id == turn.agent_turn_id]
    fallback = FallbackDeliverable(
        reason=reason,
        last_thought=_last_thought(own),
        tool_results=[
            {"tool_call_id": card.tool_call_id, "card_id": card.card_id}
            for card in own
            if card.type == CardType.TOOL_RESULT
        ],
        terminal_status=status,
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


def _last_thought(own: Sequence[Card]) -> str | None:
    for card in reversed(own):
        if card.type == CardType.THOUGHT:
            try:
                content = content_of(card)
            except CardUnreadable:
                return None
            return content.text if isinstance(content, TextContent) else None
    return None


async def recall_step(conn: Connection, turn: TurnRef, step: int) -> RecalledStep:
    """What the ledger has of a step (0: the latest) and its turn, without changing anything."""
    row = await query("recall_step").one(conn, **gate(turn), step=step, inbox_id=turn.inbox_id)
    return RecalledStep.model_validate(dict(row))


async def mark_announced(conn: Connection, turns: Sequence[AgentTurnId]) -> None:
    """The `task` events of these turns are in the event stream."""
    await query("mark_announced").many(conn, agent_turn_ids=list(turns))


def step_of(turn: TurnRef, step: int) -> StepId:
    """The id of one of this turn's steps."""
    return step_id(turn.agent_turn_id, step)
