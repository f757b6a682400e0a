"""Calls that must not be run twice, by the ledger's own functions."""

from tests.support.ledger.agents import ALICE, PROJECT, TARGET
from tests.support.ledger.calls import sleeper
from turnstile.ledger.people.unknown_calls import SettledCall, UnsureCall, begin_call, list_unsure, settle_unknown
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import AgentId, ToolCallId
from turnstile.schema.turns import TurnRef


async def runs(pool: Pool, call: str, name: str = "run.1") -> bool:
    """Whether this run may begin the call."""
    return await pool.run(lambda conn: begin_call(conn, PROJECT, ToolCallId(call), name))


async def unsure(pool: Pool, *, older_seconds: float = -9) -> list[UnsureCall]:
    """The calls of which is to be asked whether somebody runs them."""
    return await pool.run(lambda conn: list_unsure(conn, [TARGET], older_seconds=older_seconds, row_limit=9))


async def settle_dead(pool: Pool, found: UnsureCall, *, asks: bool = True) -> SettledCall:
    """Settle one that nobody runs any more."""
    asked = found.model_copy(update={"asks": asks})
    return await pool.run(lambda conn: settle_unknown(conn, asked, "Was it done?", "d"))


async def begun(pool: Pool, *calls: str, agent: AgentId = ALICE, wait_seconds: float = 60.0) -> TurnRef:
    """A turn that sleeps while its tool runs these calls."""
    turn = await sleeper(pool, *calls, agent=agent, wait_seconds=wait_seconds)
    for call in calls:
        assert await runs(pool, call)
    return turn


async def doubtful(pool: Pool, *calls: str, agent: AgentId = ALICE) -> TurnRef:
    """A turn of which people are asked whether these calls were done."""
    turn = await begun(pool, *calls, agent=agent)
    for each in await unsure(pool):
        assert (await settle_dead(pool, each)).verdict == "asked"
    return turn
