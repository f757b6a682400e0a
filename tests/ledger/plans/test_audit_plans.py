"""The audit of a window reads what happened in it, however long the past is.

Each rule runs on a ledger with a past that has rows in every table that grows with turns, and a window with a turn of
each kind. Planned with fresh statistics, as an audit is.
"""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from lab.bench.agents import add_agents
from lab.bench.ledgers.past import add_past
from tests.ledger.plans.test_plans import literal, nodes
from tests.support.databases import Databases
from tests.support.ledger.healthy import make_healthy
from turnstile.ledger.operations.audit import Bounds, Scope, arguments, rules
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import query
from turnstile.schema.ids import ProjectId

OLD = ProjectId("old")
AGENTS, PAST = 3, 10_000
ROWS = 2_500
"""Rows that one node of a plan may see, over all its loops; the window has some hundred of a kind."""
BUFFERS = 1_200
"""Pages that a rule may touch: a few for each row of the window. A table of the past has more, or an index of it."""
UNBOUNDED = {"statuses_have_their_edges"}
"""Reads all identity edges, of which an agent gets one whenever an operator pauses, resumes or retires it."""

FILL = [
    "SET session_replication_role = replica",
    """INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id, tool_call_id,
    tool_name, wait_status, tool_result_card_id, applied_at, created_at) SELECT project_id, agent_id,
    agent_turn_id, turn_epoch, agent_turn_id || '-s1', 'call_' || md5(agent_turn_id), 'search', 'applied',
    'x', ended_at, ended_at FROM past""",
    """INSERT INTO state.execution_edges (edge_id, project_id, primitive, edge_phase, source_agent_turn_id,
    correlation_id, trace_id, created_at) SELECT 'tool-call-call_' || md5(agent_turn_id), project_id,
    'tool_call', 'request', agent_turn_id, 'call_' || md5(agent_turn_id), trace_id, ended_at FROM past""",
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at, archived_at) SELECT 'report-' ||
    md5(agent_turn_id), project_id, agent_id, 'tool_result', 'call_' || md5(agent_turn_id), agent_turn_id,
    turn_epoch, 'consumed', '{}', '{}', ended_at, ended_at, ended_at FROM past""",
    """INSERT INTO state.interrupts (interrupt_id, project_id, channel_id, agent_id, agent_turn_id, step_id,
    tool_call_id, tool_name, reason, message, allowed_decisions, wait_seconds, status, decision, decided_at,
    expires_at, created_at) SELECT 'int-' || md5(agent_turn_id), project_id, 'public', agent_id,
    agent_turn_id, agent_turn_id || '-s1', 'call_' || md5(agent_turn_id), 'search', 'tool_call', '?', '{}', 1,
    'resolved', 'approve', ended_at, ended_at, ended_at FROM past""",
    """INSERT INTO state.budgets (budget_id, project_id, kind, agent_turn_id, depth, created_at, ended_at, closed_at)
    SELECT agent_turn_id, project_id, 'turn', agent_turn_id, 2, ended_at, ended_at, ended_at FROM past""",
    """INSERT INTO state.budget_reservations (agent_turn_id, step, attempt, project_id, model, tokens, cost,
    tokens_at, cost_at, status, used_tokens, used_cost, created_at, settled_at) SELECT agent_turn_id, 1, 1,
    project_id, 'm', 1, 1, ARRAY[agent_turn_id], ARRAY[agent_turn_id], 'settled', 1, 1, ended_at, ended_at
    FROM past""",
    """INSERT INTO state.pmo_batches (batch_id, project_id, parent_agent_id, parent_agent_turn_id,
    parent_tool_call_id, parent_turn_epoch, task_count, status, created_at, decided_at) SELECT 'batch-call_'
    || md5(agent_turn_id), project_id, agent_id, agent_turn_id, 'call_' || md5(agent_turn_id), turn_epoch, 1,
    'success', ended_at, ended_at FROM past""",
    """INSERT INTO state.pmo_batch_tasks (batch_task_id, batch_id, project_id, agent_id, current_agent_turn_id,
    status) SELECT 'task-' || md5(agent_turn_id), 'batch-call_' || md5(agent_turn_id), project_id, agent_id,
    agent_turn_id, 'success' FROM past""",
    """INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id, ended) SELECT agent_turn_id,
    project_id, agent_turn_id, true FROM past""",
    """INSERT INTO state.steers (steer_id, project_id, agent_id, agent_turn_id, correlation_id, priority, due,
    steered_by, request_digest, status, step_id, created_at, settled_at) SELECT 'steer-' ||
    md5(agent_turn_id), project_id, agent_id, agent_turn_id, agent_turn_id, 'asap', true, 'x', 'x', 'applied',
    agent_turn_id || '-s1', ended_at, ended_at FROM past""",
    """UPDATE state.agent_inbox i SET payload = i.payload || jsonb_build_object('rolled_back_by', i.agent_turn_id)
    FROM past WHERE i.inbox_id = past.inbox_id""",
    """INSERT INTO state.push_receivers (agent_turn_id, receiver_id, project_id, channel_id, url, created_by, status,
    created_at) SELECT agent_turn_id, 'r', project_id, 'public', 'https://x', 'x', 'done', ended_at FROM past""",
    """UPDATE state.agent_steps s SET metadata = s.metadata || jsonb_build_object('output_position', 1, 'compaction',
    jsonb_build_object('output_box_id', s.output_box_id)) FROM past WHERE s.agent_turn_id = past.agent_turn_id""",
    "SET session_replication_role = origin",
]


@pytest.fixture(scope="module")
async def windowed(databases: Databases, migrated: str) -> AsyncIterator[Session]:
    """A session whose plans are those of an audit of the last hour, in a ledger with a past and a turn of each kind."""
    name = await databases.create(migrated)
    url = databases.url(name)
    pool = Pool(url, size=3)
    agents = await add_agents(pool, OLD, "bench", "instant", AGENTS)
    await add_past(url, OLD, agents, PAST, PAST, lambda _: None)
    async with pool.connection() as conn:
        await conn.execute("CREATE TEMP VIEW past AS SELECT * FROM state.turn_outcomes WHERE project_id = 'old'")
        for fill in FILL:
            await conn.fetch(fill)
    await make_healthy(pool)
    async with pool.connection() as conn:
        await conn.execute("VACUUM ANALYZE")
        async with conn.transaction():
            await query("begin_audit").many(conn)
            await query("tune_audit").one(conn, whole=False, windowed=True)
            yield conn
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", [name for name in rules() if name not in UNBOUNDED])
async def test_a_rule_does_not_read_before_its_window(windowed: Session, name: str) -> None:
    asked = rules()[name].query
    values = arguments(Scope(since=datetime.now(UTC) - timedelta(hours=1)), Bounds(), 20)
    given = ", ".join(literal(values[parameter]) for parameter in asked.parameters)
    await windowed.execute(f"PREPARE rule AS {asked.sql}")
    try:
        [row] = await windowed.fetch(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE rule ({given})")
    finally:
        await windowed.execute("DEALLOCATE rule")
    plan = json.loads(row["QUERY PLAN"])[0]["Plan"]
    for node in nodes(plan):
        removed = ("Filter", "Join Filter", "Index Recheck")
        seen = node["Actual Rows"] + sum(node.get(f"Rows Removed by {how}", 0) for how in removed)
        where = (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), seen, node["Actual Loops"])
        assert seen * node["Actual Loops"] <= ROWS, where
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= BUFFERS
