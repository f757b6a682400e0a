"""Held calls, what people decide about them, and what tools ask people, by the ledger's own functions."""

from dataclasses import replace
from typing import Any

from tests.support.ledger.agents import ALICE, PROJECT, begin, lease, rows
from tests.support.ledger.calls import TOOL, call_record
from turnstile.ledger.people.call_questions import OpenedQuestion, ToolQuestion, ask_under_call
from turnstile.ledger.people.decisions import DecisionOutcome, DecisionRecord, Edit, decide_interrupt, expire_interrupt
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.steps import CommittedStep, commit_step
from turnstile.rules.holds import client_hold
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.cards import Card, CardType, Role, ToolCallContent, make_card
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, CardId, ChannelId, ProjectId, ToolCallId, asked_interrupt_id, interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Hold, InterruptReason
from turnstile.schema.step_metadata import SuspendMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers

PUBLIC = ChannelId("public")
EVERY = tuple(Decision)
NEVER = 7 * 86_400.0


def hold(**fields: Any) -> Hold:
    """A hold that allows every decision."""
    values = {
        "reason": InterruptReason.TOOL_CALL,
        "message": "May it?",
        "action_digest": "d",
        "allowed_decisions": EVERY,
    }
    return Hold.model_validate(values | fields)


def held_record(turn: TurnRef, step: int, asked: dict[str, Hold | None], *, wait_seconds: float = 60.0) -> StepRecord:
    """A step with these calls; those with a hold are held."""
    record = call_record(turn, step, *asked, wait_seconds=wait_seconds)
    held = tuple(ToolCallId(call) for call, each in asked.items() if each is not None)
    metadata = SuspendMetadata(commands=tuple(record.calls), held=held)
    return replace(record, metadata=metadata, holds=tuple(asked.values()))


async def suspend_held(
    pool: Pool, turn: TurnRef, asked: dict[str, Hold | None], *, step: int = 1, wait_seconds: float = 60.0
) -> CommittedStep:
    """commit_step of a running turn with these calls."""
    record = held_record(turn, step, asked, wait_seconds=wait_seconds)
    return await pool.run(lambda conn: commit_step(conn, turn, record))


async def asking(
    pool: Pool,
    *calls: str,
    free: tuple[str, ...] = (),
    agent: AgentId = ALICE,
    wait_seconds: float = 60.0,
    requester: str | None = None,
    held: Hold | None = None,
    client: str | None = None,
    **fields: Any,
) -> TurnRef:
    """A new turn that waits for people about `calls`, with a hold of these fields, and for the tools of `free`."""
    turn = await lease(pool, agent, incoming=None if requester is None else {headers.SENDER: requester})
    await begin(pool, turn)
    asked: dict[str, Hold | None] = dict.fromkeys(free) | {call: held or hold(**fields) for call in calls}
    if client is not None:  # which the requester runs
        asked[client] = client_hold(TOOL, 600.0, "timeout")
    await suspend_held(pool, turn, asked, wait_seconds=wait_seconds)
    return turn


def answer(decision: Decision = Decision.APPROVE, **fields: Any) -> DecisionRecord:
    """A decision; of two with the same fields one is the repeat of the other."""
    digest = f"{decision}{sorted(fields.items(), key=str)}"
    return replace(DecisionRecord(decision, "d", digest), **fields)


def edit(turn: TurnRef, call: str, arguments: dict[str, Any]) -> Edit:
    """An edit of the call's arguments."""
    card = make_card(
        CardId(f"{call}-call-2"),
        CardType.TOOL_CALL,
        Role.ASSISTANT,
        ToolCallContent(tool_name=TOOL, arguments=arguments, target_subject="cg.v1r4.p1.public.cmd.tool.search.run"),
        author=turn.agent_id,
        turn=turn.agent_turn_id,
        trace=turn.trace_id,
        tool_call=ToolCallId(call),
    )
    return Edit(Card.model_validate(card.model_dump()), "edited")


async def decide_on(
    conn: Connection, call: str, given: DecisionRecord | None = None, *, who: str = "dora", channel: ChannelId = PUBLIC,
    project: ProjectId = PROJECT, number: int = 1, operates: bool = False,
) -> DecisionOutcome:  # fmt: skip
    """decide_interrupt of a call's question."""
    named = interrupt_id(ToolCallId(call), number)
    return await decide_interrupt(conn, project, channel, named, who, given or answer(), operates=operates)


async def decide(pool: Pool, call: str, given: DecisionRecord | None = None, **fields: Any) -> DecisionOutcome:
    """As `decide_on`, in a transaction of its own."""
    return await pool.run(lambda conn: decide_on(conn, call, given, **fields))


async def call_row(pool: Pool, call: str) -> dict[str, Any]:
    """The waiting row of a call."""
    [row] = await rows(pool, "SELECT * FROM state.turn_waiting_tools WHERE tool_call_id = $1", call)
    return row


async def question(pool: Pool, call: str) -> dict[str, Any]:
    """The row of a call's question."""
    [row] = await rows(pool, "SELECT * FROM state.interrupts WHERE tool_call_id = $1", call)
    return row


async def pass_expiry(pool: Pool) -> None:
    """Let the time of every open question be over."""
    await rows(pool, "UPDATE state.interrupts SET expires_at = now() - interval '1 s' WHERE status = 'open'")


RESPOND = answer(Decision.RESPOND, action_digest=None, response="blue")
REJECT = answer(Decision.REJECT, action_digest=None, message="no")


async def asks_on(conn: Connection, call: str, key: str = "1", *, digest: str = "d", **fields: Any) -> OpenedQuestion:
    """ask_under_call."""
    asked = {"reason": InterruptReason.INPUT_REQUIRED, "requester_may_decide": True, **fields}
    question = ToolQuestion(key, digest, hold(**asked))
    return await ask_under_call(conn, PROJECT, ToolCallId(call), question)


async def asks(pool: Pool, call: str, key: str = "1", **fields: Any) -> str:
    """As `asks_on`, in a transaction of its own: `accepted`, `duplicate`, or why not."""
    try:
        return (await pool.run(lambda conn: asks_on(conn, call, key, **fields))).verdict
    except Refused as refused:
        return refused.code


async def responds_on(conn: Connection, call: str, key: str = "1", given: DecisionRecord = RESPOND) -> DecisionOutcome:
    """decide_interrupt of what a call's tool asks."""
    return await decide_interrupt(conn, PROJECT, PUBLIC, asked_interrupt_id(ToolCallId(call), key), "dora", given)


async def responds(pool: Pool, call: str, key: str = "1", given: DecisionRecord = RESPOND) -> str:
    """As `responds_on`, in a transaction of its own: the verdict."""
    try:
        return (await pool.run(lambda conn: responds_on(conn, call, key, given))).verdict
    except Refused as refused:
        return refused.code


async def lapses(pool: Pool, call: str, key: str = "1") -> bool:
    """Whether the question is closed because its time is over."""
    return await expire_interrupt(pool, asked_interrupt_id(ToolCallId(call), key))


async def asked_by_tool(pool: Pool, call: str, key: str = "1") -> dict[str, Any]:
    """The row of what a call's tool asks."""
    named = asked_interrupt_id(ToolCallId(call), key)
    [row] = await rows(pool, "SELECT * FROM state.interrupts WHERE interrupt_id = $1", named)
    return row
