"""What counts against limits, and what takes projects in turn, reads no more of a flood than it says it does."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.ledger.plans.test_plans import Explained, Explaining, Statement, nodes
from tests.support.databases import Databases
from tests.support.ledger.agents import ALICE, PROJECT, TARGET, add_agents, ask, command, send
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import query
from turnstile.ledger.turns.intake import Enqueue
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.wire.limits import Admission

FLOOD = 5_000
ROWS = 200
BUFFERS = 400
FILL = [
    "SET session_replication_role = replica",
    """INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id)
    SELECT 'flood', 'x' || n, gen_random_uuid() FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.agent_state_head
    (project_id, agent_id, status, active_agent_turn_id, active_inbox_id, context_box_id, output_box_id, updated_at)
    SELECT 'flood', 'x' || n, (ARRAY['running', 'dispatched'])[n % 2 + 1], 't' || n, 'i' || n, gen_random_uuid(),
    gen_random_uuid(), now() - interval '1 hour' FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at, processed_at)
    SELECT 'i' || n, 'flood', 'x' || n, 'turn', 'o' || n, 't' || n, n, (ARRAY['pending', 'processing'])[n % 2 + 1],
    '{"traceparent": "00-0-0-01"}', '{}',
    now() - interval '1 hour', now(), now() - interval '1 hour' FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.threads (project_id, thread_id, channel_id, worker_target, requester)
    SELECT 'flood', 'th' || n, 'public', 'pump', 'external' FROM generate_series(1, $1::int) n""",
    "SET session_replication_role = origin",
]
FULL = Admission(max_queued_turns=50, max_live_turns=50)
STATEMENTS: dict[str, Statement] = {
    "list_due_agents": lambda conn: sweep.list_due_agents(conn, [TARGET], older_seconds=0, row_limit=40),
    "retry_dispatched": lambda conn: sweep.retry_dispatched(conn, [TARGET], older_seconds=0, row_limit=8),
    "enqueue_turn beside a flood": lambda conn: send(conn, replace(command(ALICE), admission=FULL)),
    "enqueue_turn into a flood": lambda conn: send(conn, replace(flooding(), admission=FULL)),
    "count_project_threads beside a flood": lambda conn: query("count_project_threads").one(
        conn, project_id=PROJECT, row_limit=50
    ),
    "count_project_threads of a flood": lambda conn: query("count_project_threads").one(
        conn, project_id="flood", row_limit=50
    ),
}


def flooding() -> Enqueue:
    """One more of the flood."""
    return replace(command(AgentId("x1")), project_id=ProjectId("flood"))


@pytest.fixture(scope="module")
async def flooded(databases: Databases, migrated: str) -> AsyncIterator[Explaining]:
    """A session whose plans were made before the flood came."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=3)
    await add_agents(pool, ALICE)
    async with pool.connection() as conn:
        session = Explaining(conn)
        for statement in STATEMENTS.values():
            try:
                await statement(session)
            except Refused:
                continue
        await ask(pool)
        async with pool.connection() as filling:
            for fill in FILL:
                await filling.fetch(fill, *([FLOOD] if "$1" in fill else []))
        session.explains = True
        yield session
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", STATEMENTS)
async def test_a_statement_does_not_read_the_flood(flooded: Explaining, name: str) -> None:
    with pytest.raises(Explained):
        await STATEMENTS[name](flooded)
    for node in nodes(flooded.plan):
        seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        where = (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), seen, node["Actual Loops"])
        assert node["Node Type"] != "Seq Scan", where
        assert seen * node["Actual Loops"] <= ROWS, where
    assert flooded.plan["Shared Hit Blocks"] + flooded.plan["Shared Read Blocks"] <= BUFFERS
