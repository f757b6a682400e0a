"""The steps of a leased turn: begin_step, retry_step, commit_step (protocol §3, §7).

Guarantees: every write passes the CAS gate in its own statement; a repeat finds its own effect and returns what is
recorded. Each is one round trip. Never publishes. A closed gate raises `StaleTurn`; then `ends.recall_step` reads the
recorded state.
"""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Json

from turnstile.ledger.queries import Connection, Row, query
from turnstile.ledger.turns.cards import BoxCache, BoxPrefix, card_columns, card_of
from turnstile.rules.turn_step import BegunStep, StepHead, StepRecord
from turnstile.schema.base import STORED, JsonObject, Tolerant
from turnstile.schema.cards import OF_MEMORY
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import era_of, interrupt_id, step_id
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.states import HeadStatus
from turnstile.schema.step_metadata import StepMetadata
from turnstile.schema.tools import ToolCommand
from turnstile.schema.turns import TurnRef

if TYPE_CHECKING:
    from turnstile.ledger.pool import Session


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
    steer_ids = {card.card_id for card in steers}  # a later attempt reads them in the box, too
    return BegunStep(
        head,
        profile.readable(now, None),
        context.readable(now, upto),
        tuple(card for card in output.readable(now, None) if card.card_id not in steer_ids),
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
    box = record.made_box
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
        "holds": json.dumps([_question(*c) for c in zip(record.calls, waits, holds, strict=True) if c[2]]),
        "output_box_id": turn.output_box_id,
        "new_box_id": None if box is None else box.box,
        "first_kept_id": None if box is None else box.first_kept,
        "carried_ids": [] if box is None else list(box.carried),
        "within_ids": [] if box is None else list(box.within),
        "leading_ids": [card.card_id for card in record.cards if card.type in OF_MEMORY],
    }
    is_plain = not any(holds) and box is None and not record.steers and not record.steered
    row = await query("commit_plain_step" if is_plain else "commit_step").opt_of(conn, arguments)
    if row is None:
        row = await query("recorded_step").opt(conn, **gate(turn), step_id=step_id(turn.agent_turn_id, record.step))
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} lost its gate")
    return CommittedStep.model_validate(dict(row))


def _question(call: ToolCommand, wait_seconds: float, hold: Hold | None) -> JsonObject:
    """The row of `state.interrupts` for a held call."""
    question: JsonObject = {} if hold is None else hold.model_dump(mode="json")
    ids: JsonObject = {"id": interrupt_id(call.tool_call_id), "tool_call_id": call.tool_call_id}
    return question | ids | {"tool_name": call.tool_name, "wait_seconds": wait_seconds}


def step_columns(turn: TurnRef, record: StepRecord) -> dict[str, Any]:
    """The parameters of a step's row."""
    return {
        "step_id": step_id(turn.agent_turn_id, record.step),
        "step": record.step,
        "tool_call_ids": json.dumps(list(record.tool_call_ids)),
        "step_metadata": record.metadata.model_dump_json(),
        "step_started_at": record.started_at,
    }
