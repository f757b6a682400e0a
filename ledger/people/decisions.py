"""Questions to people: decided and expired (protocol §13).

Guarantees: a question is closed once, by a decision, its expiry or its turn's end; whoever comes later hears which.
Each is one round trip. Never publishes: the caller sends the command of a released call, or rings for its result.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import Json, JsonValue

from turnstile.ledger.operations.sweep import rule_rows
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.runtime.faults import Fault, hit
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card
from turnstile.schema.errors import Refused
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    ChannelId,
    InboxId,
    InterruptId,
    ProjectId,
    StepId,
    ToolCallId,
)
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus
from turnstile.schema.tools import ToolCommand
from turnstile.schema.wire.headers import ContextHeaders

_REFUSALS = {
    "unknown_interrupt": "the channel has no such interrupt",
    "already_decided": "somebody has decided before, and a decision is made once",
    "expired": "nobody decided in time: the call was rejected",
    "withdrawn": "the turn is over or is being stopped, or the call was reported: nobody waits for the decision",
    "not_yours": "the call is of a tool of whoever asked for the turn: nobody else answers it; operators may reject it",
    "own_request": "the principal that asked for the turn may not decide about it: ask somebody else",
    "own_words": "you have words in what led to this call (a steer, an edit, an answer, a report): ask somebody else",
    "decision_not_allowed": "the interrupt allows other decisions: see its allowed_decisions",
    "digest_mismatch": "the action is not the one that the digest names: look at it again, and name its action_digest",
}


class InterruptToDecide(Tolerant):
    """What an edit of a held call, its command and its doorbell need of its turn; `tool` is its row as it is now."""

    interrupt_id: InterruptId
    status: InterruptStatus
    reason: InterruptReason
    call_key: str | None
    """The name that the call's tool gave to its question; None for a question about the call."""
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    channel_id: ChannelId
    step_id: StepId
    tool_call_id: ToolCallId
    tool_name: str
    response_schema: Json[JsonObject] | None
    allowed_decisions: tuple[Decision, ...]
    turn_epoch: int
    worker_target: str | None
    context_headers: ContextHeaders
    inbox_id: InboxId
    trace_id: str
    parent_step_id: str | None
    profile_box_id: BoxId
    context_box_id: BoxId
    output_box_id: BoxId
    tool: Json[JsonObject] | None
    command: Json[ToolCommand] | None


@dataclass(frozen=True, slots=True)
class Edit:
    """The second card of an edited call, and the digest of the edited action."""

    card: Card
    action_digest: str


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision as the ledger records it; `digest` is the hash of all of it, so that a repeat is known."""

    decision: Decision
    action_digest: str | None
    digest: str
    message: str = ""
    response: JsonValue = None
    edit: Edit | None = None


class DecisionOutcome(Tolerant):
    """What became of a decision that is recorded, now or before (`duplicate`)."""

    verdict: Literal["accepted", "duplicate"]
    decision: Decision
    tool_changed: bool
    sent: bool = False
    """Whether the call is to be sent now; else it has its result."""
    deadline: datetime | None = None
    """Of the call that is to be sent, or whose tool has asked."""


class ExpiredInterrupt(Tolerant):
    """A question whose time is over."""

    interrupt_id: InterruptId
    project_id: ProjectId
    agent_id: AgentId


async def find_question(
    conn: Connection, project: ProjectId, channel: ChannelId, interrupt: InterruptId
) -> InterruptToDecide | None:
    """The question, if the channel has it."""
    named = {"project_id": project, "channel_id": channel, "interrupt_id": interrupt}
    return await query("find_question").opt_as(conn, InterruptToDecide, **named)


async def decide_interrupt(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    interrupt: InterruptId,
    caller: str,
    answer: DecisionRecord,
    *,
    operates: bool = False,
) -> DecisionOutcome:
    """Record the decision, once; raises `Refused` with the code of why it is not this one that counts."""
    request: JsonObject = {"digest": answer.digest, "message": answer.message, "response": answer.response}
    if operates:
        request["operates"] = True
    if answer.edit is not None:
        card = answer.edit.card.model_dump(mode="json", include={"card_id", "content", "metadata"}, exclude_none=True)
        request |= {"card": card, "action_digest": answer.edit.action_digest}
    row = await query("decide_interrupt").one(
        conn,
        project_id=project,
        channel_id=channel,
        interrupt_id=interrupt,
        caller=caller,
        decision=answer.decision,
        action_digest=answer.action_digest,
        asked=json.dumps(request),
    )
    decided = json.loads(row["decided"])
    if (code := decided["verdict"]) not in {"accepted", "duplicate"}:
        raise Refused(code, _REFUSALS[code])
    return DecisionOutcome.model_validate(decided)


list_expired = rule_rows("list_expired", ExpiredInterrupt)
"""Rule 'interrupts': the open questions whose time is over."""


async def expire_interrupt(pool: Pool, interrupt: InterruptId) -> bool:
    """Close the question if its time is over; False if it is closed, or its time has not come."""
    row = await pool.run(lambda conn: query("expire_interrupt").one(conn, interrupt_id=interrupt))
    hit(Fault.INTERRUPT_EXPIRED)
    return row["expired"]
