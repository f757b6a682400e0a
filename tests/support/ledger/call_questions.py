"""What tools ask people under their calls, by the ledger's own functions."""

from typing import Any

from tests.support.ledger.agents import PROJECT, rows
from tests.support.ledger.people import PUBLIC, answer, hold
from turnstile.ledger.people.call_questions import Asked, ToolQuestion, ask_under_call
from turnstile.ledger.people.decisions import Answer, Decided, decide_interrupt, expire_interrupt
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ToolCallId, asked_interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptReason

RESPOND = answer(Decision.RESPOND, action_digest=None, response="blue")
REJECT = answer(Decision.REJECT, action_digest=None, message="no")


async def asks_on(conn: Connection, call: str, key: str = "1", *, digest: str = "d", **fields: Any) -> Asked:
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


async def responds_on(conn: Connection, call: str, key: str = "1", given: Answer = RESPOND) -> Decided:
    """decide_interrupt of what a call's tool asks."""
    return await decide_interrupt(conn, PROJECT, PUBLIC, asked_interrupt_id(ToolCallId(call), key), "dora", given)


async def responds(pool: Pool, call: str, key: str = "1", given: Answer = RESPOND) -> str:
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
