"""A dead letter: an inbox row that another writer wrote wrong, so that the bridge gave it up."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.support.tenants import Tenant, turn_of
from turnstile.ledger.roster import add_agent
from turnstile.schema.ids import AgentId, AgentTurnId


@asynccontextmanager
async def dead_letter(
    tenant: Tenant, agent: AgentId, sender: str, instruction: str = "hello"
) -> AsyncGenerator[AgentTurnId]:
    """A row of this sender that names an ended turn of the agent; yields the turn. It is gone afterwards."""
    await add_agent(tenant.pool, tenant.project, AgentId("bob"), f"{agent}-profile")
    turn = turn_of(await tenant.enqueue(agent, instruction))
    await tenant.ended(turn)
    row = f"wrong-{tenant.project}"
    await tenant.rows(
        "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,"
        " turn_epoch, next_retry_at, created_at, context_headers) VALUES ($1, $2, 'bob', 'tool_result', 'x', $3, 1,"
        " now(), now(), jsonb_build_object('CG-Sender', $4::text))",
        *(row, tenant.project, turn, sender),
    )
    await tenant.rows(
        "UPDATE state.agent_inbox SET status = 'error', last_error = 'protocol_violation', archived_at = now()"
        " WHERE inbox_id = $1",
        row,
    )
    yield turn
    await tenant.rows("DELETE FROM state.agent_inbox WHERE inbox_id = $1", row)
