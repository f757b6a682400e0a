"""The steps of a leased turn: begin_step, retry_step, commit_step (protocol §3, §7).

Guarantees: every write passes the CAS gate in its own statement; a repeat finds its own effect and returns what is
recorded. Each is one round trip. Never publishes. A closed gate raises `StaleTurn`; then `ends.recall_step` reads the
recorded state.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Json

from turnstile.ledger.queries import Connection, Row, query
from turnstile.ledger.turns.cards import BoxCache, BoxPrefix, OpenedBox, card_columns, card_of
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.budgets.plans import TurnBudget
from turnstile.schema.cards import OF_MEMORY, Card
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import BoxId, CardId, ToolCallId, era_of, interrupt_id, step_id
from turnstile.schema.people.approvals import InterruptRule
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.profiles import STORED, StoredConfig
from turnstile.schema.states import HeadStatus, MessageType, StepStatus
from turnstile.schema.step_metadata import StepMetadata, SuspendMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.inbox import RerunOf

if TYPE_CHECKING:
    from turnstile.ledger.pool import Session


class AnsweredCall(Tolerant):
    """A call whose report was applied; `after_execution` is the report's, None if the report has none."""

    tool_call_id: ToolCallId
    tool_name: str
    tool_result_card_id: CardId
    after_execution: str | None
    reported_at: datetime | None = None
    """When the ledger got its result."""


class StepHead(Tolerant):
    """The head at the beginning of a step."""

    message_type: MessageType = MessageType.TURN
    status: HeadStatus
    step_count: int
    step_attempt: int
    model_failures: int
    output_position: int
    trace_id: str
    parent_step_id: str | None
    updated_at: datetime
    """When this attempt of the step began."""
    started_at: datetime
    enqueued_at: datetime
    due_at: datetime
    """When the turn was leased, or when its row was last made due again."""
    suspended_at: datetime | None = None
    """When the turn was suspended, if the step before this one sent calls."""
    context_headers: ContextHeaders
    runtime_config: StoredConfig
    profile_box_id: BoxId
    context_box_id: BoxId
    output_box_id: BoxId
    tools: list[JsonObject]
    """The project's `resource.tools` rows, raw; only for a turn's first step."""
    turn_config: JsonObject | None
    """The configuration that the first step pinned; None until that step is committed."""
    boxes: tuple[OpenedBox, OpenedBox, OpenedBox]
    """How the profile, context and output boxes were read."""
    answered: list[AnsweredCall]
    """The calls of the last committed step that were applied or expired, in no order."""
    rerun: RerunOf | None = None
    """The turn that this one runs again."""
    budget: TurnBudget | None = None
    """What limits the turn; None: nothing."""
    guards: dict[str, InterruptRule] | None = None
    """The rules of the agent's own profile, where the request names another one: they hold beside that one's."""


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step that has begun: its head, and the cards of the three boxes in order, without expired and deleted ones."""

    head: StepHead
    profile: tuple[Card, ...]
    context: tuple[Card, ...]
    output: tuple[Card, ...]
    context_position: int = 0
    """The last position of the context box that was read: the turn's first step pins it."""
    steers: tuple[Card, ...] = ()
    """What was said to the turn, which this step asks the model with; every attempt of it has the same (§6, steer)."""


@dataclass(frozen=True, slots=True)
class MadeBox:
    """The box that a step makes of its output box, where it compacts the memory (protocol §7.3).

    It has the step's `memory.summary` and `memory.cut`, the cards of the old box from `first_kept` on, with `carried`
    before them, and the step's other cards. `first_kept` may be one of these: then nothing of the old box is kept.
    """

    box: BoxId
    first_kept: CardId
    carried: Sequence[CardId] = ()
    """Cards of the old box that are kept although they stand before: earlier cuts of the turn in hand."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What the commit of a step writes; a repeated commit returns the recorded `metadata`."""

    step: int
    metadata: StepMetadata
    cards: Sequence[Card]
    tool_call_ids: Sequence[ToolCallId]
    started_at: datetime
    """When it began, by the ledger's clock: `StepHead.updated_at`."""
    status: StepStatus = StepStatus.COMPLETED
    wait_seconds: float = 0.0
    """How long the turn waits for each of `calls`, unless `call_waits` says it of each."""
    call_waits: Sequence[float] = ()
    holds: Sequence[Hold | None] = ()
    """Of each of `calls`, the question that a person must answer first; empty if there is none."""
    kept: Sequence[CardId] = ()
    """The cards that exist already: they enter the output box and are not made again."""
    steers: Sequence[CardId] = ()
    """Those of the cards that are steers, which are in the output box: they are applied with this commit."""
    steered: bool = False
    """Whether the turn would have ended with this step, had no steer waited: then the next step takes all that wait."""
    made_box: MadeBox | None = None
    """With a `memory.cut` among the cards: the box in which the turn and its conversation go on."""

    @property
    def new_cards(self) -> list[Card]:
        """The cards that the commit puts into the output box: all but the steers, which `begin_step` has put there."""
        return [card for card in self.cards if card.card_id not in self.steers]

    @property
    def calls(self) -> Sequence[ToolCommand]:
        """The calls to send after the commit, which suspends the turn; empty if there are none."""
        return self.metadata.commands if isinstance(self.metadata, SuspendMetadata) else ()


class CommittedStep(Tolerant):
    """The result of `commit_step`: the recorded metadata, of this attempt or an earlier one."""

    result: Literal["done", "already"]
    status: HeadStatus
    updated_at: datetime
    resume_deadline: datetime | None
    step_metadata: Json[StepMetadata]


def gate(turn: TurnRef) -> dict[str, Any]:
    """The parameters of the CAS gate."""
    return {
        "project_id": turn.project_id,
        "agent_id": turn.agent_id,
        "agent_turn_id": turn.agent_turn_id,
        "turn_epoch": turn.turn_epoch,
    }


async def begin_step(conn: Connection, turn: TurnRef, step: int, cache: BoxCache) -> BegunStep:
    """Open the gate for a step (0: whichever is next) and read what it needs; raises `StaleTurn` if it is closed."""
    named = (turn.profile_box_id, turn.context_box_id, turn.output_box_id)
    era = era_of(turn.turn_epoch)
    known = [cache.get((era, turn.project_id, box)) for box in named]
    rows = await query("begin_step").many(
        conn,
        **gate(turn),
        step=step,
        output_box_id=turn.output_box_id,
        known_profile=known[0].position,
        known_context=known[1].position,
        known_output=known[2].position,
        profile_version=known[0].version,
        context_version=known[1].version,
        output_version=known[2].version,
    )
    if not rows:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} is not to be stepped")
    parts: list[list[Row]] = [[], [], [], []]
    for row in rows[1:]:
        parts[int(row["part"]) - 1].append(row)
    head = StepHead.model_validate_json(rows[0]["content"], context=STORED)
    if head.output_box_id != turn.output_box_id:  # the caller missed a compaction: the other box was read whole
        known[2] = BoxPrefix("", (), 0)
    read = (turn.profile_box_id, turn.context_box_id, head.output_box_id)
    profile, context, output = (
        cache.extend((era, turn.project_id, box), prefix, opened, part)
        for box, prefix, opened, part in zip(read, known, head.boxes, parts[:3], strict=True)
    )
    now, upto = head.updated_at, head.boxes[1].upto
    steers = tuple(card_of(row) for row in parts[3])
    said = {card.card_id for card in steers}  # a later attempt reads them in the box, too
    return BegunStep(
        head,
        profile.readable(now, None),
        context.readable(now, upto),
        tuple(card for card in output.readable(now, None) if card.card_id not in said),
        context.position if upto is None else upto,
        steers,
    )


async def retry_step(conn: Connection, turn: TurnRef, step: int) -> tuple[int, int]:
    """Count a failed model call; returns the number of the next attempt and of the step's failures so far."""
    row = await query("retry_step").opt(conn, **gate(turn), step=step)
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} is not to be retried")
    return row["step_attempt"], row["model_failures"]


async def commit_step(conn: Connection, turn: TurnRef, record: StepRecord) -> CommittedStep:
    """Commit a step that does not end the turn; raises `StaleTurn` if the gate is closed.

    With `made_box` in a transaction: a conversation whose box it is is locked before the head, as an enqueue does.
    """
    if record.made_box is None:
        return await _commit_step(conn, turn, record)
    async with cast("Session", conn).transaction():
        await query("lock_conversation").many(conn, project_id=turn.project_id, output_box_id=turn.output_box_id)
        return await _commit_step(conn, turn, record)


async def _commit_step(conn: Connection, turn: TurnRef, record: StepRecord) -> CommittedStep:
    waits = list(record.call_waits) or [record.wait_seconds] * len(record.calls)
    holds = list(record.holds) or [None] * len(record.calls)
    free = [wait for wait, hold in zip(waits, holds, strict=True) if hold is None]
    made = record.made_box
    arguments: dict[str, Any] = {
        **gate(turn),
        **step_columns(turn, record),
        **card_columns(record.new_cards),
        "call_ids": [call.tool_call_id for call in record.calls],
        "call_names": [call.tool_name for call in record.calls],
        "call_card_ids": [call.tool_call_card_id for call in record.calls],
        "kept_ids": list(record.kept),
        "steer_ids": list(record.steers),
        "steered": record.steered,
        "wait_seconds": min(free, default=None),
        "call_waits": waits,
        "holds": json.dumps([_question(*each) for each in zip(record.calls, waits, holds, strict=True) if each[2]]),
        "output_box_id": turn.output_box_id,
        "new_box_id": None if made is None else made.box,
        "first_kept_id": None if made is None else made.first_kept,
        "carried_ids": [] if made is None else list(made.carried),
        "leading_ids": [card.card_id for card in record.cards if card.type in OF_MEMORY],
    }
    is_plain = not any(holds) and made is None and not record.steers and not record.steered
    row = await query("commit_plain_step" if is_plain else "commit_step").opt_of(conn, arguments)
    if row is None:
        row = await query("recorded_step").opt(conn, **gate(turn), step_id=step_id(turn.agent_turn_id, record.step))
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} lost its gate")
    return CommittedStep.model_validate(dict(row))


def _question(call: ToolCommand, wait_seconds: float, hold: Hold | None) -> JsonObject:
    """The row of `state.interrupts` for a held call."""
    asked: JsonObject = {} if hold is None else hold.model_dump(mode="json")
    ids: JsonObject = {"id": interrupt_id(call.tool_call_id), "tool_call_id": call.tool_call_id}
    return asked | ids | {"tool_name": call.tool_name, "wait_seconds": wait_seconds}


def step_columns(turn: TurnRef, record: StepRecord) -> dict[str, Any]:
    """The parameters of a step's row."""
    return {
        "step_id": step_id(turn.agent_turn_id, record.step),
        "step": record.step,
        "tool_call_ids": json.dumps(list(record.tool_call_ids)),
        "step_metadata": record.metadata.model_dump_json(),
        "step_started_at": record.started_at,
    }
