"""An audit of a turn that compacted its memory many times reads its boxes a few times, and not once for each card.

Each box that a compaction makes has the cuts before it, so all boxes together have the square of their number: a rule
that looked up each card of a box among all boxes that have the card took the cube.
"""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.ledger.plans.test_plans import literal, nodes
from tests.support.databases import Databases
from turnstile.ledger.operations.audit import Bounds, Scope, arguments, rules
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import query
from turnstile.schema.ids import ProjectId, uuid7

CUTS = 200
"""Box k has k cuts, the instruction, a summary, and two steps of two cards."""
PLACED = CUTS * (CUTS + 1) // 2 + 6 * CUTS
OF_BOXES = {"compactions_make_boxes", "cuts_are_between_turns", "positions_without_gaps", "no_card_twice_in_a_box"}
TIMES = 4
"""How often one node of a plan may see all that is placed: as read and as made, and twice that."""
TURN = uuid7()
SCOPES = {
    "whole": Scope(),
    "project": Scope(ProjectId("p1")),
    "window": Scope(since=datetime.now(UTC) - timedelta(hours=1)),
}

FILL = [
    "SET session_replication_role = replica",
    """INSERT INTO public.cards (card_id, tenant_id, content, metadata, tool_calls, tool_call_id)
    SELECT k || c.name, 'p1', CASE c.name WHEN 'cut' THEN jsonb_build_object('data', jsonb_build_object(
               'first_card_id', k || 'thought', 'within_turn', true)) ELSE '{}' END,
           jsonb_build_object('agent_turn_id', $2::text, 'type', c.type,
                              'step_id', $2::text || '-s' || 2 * k + c.later),
           CASE c.name WHEN 'thought' THEN jsonb_build_array(jsonb_build_object('tool_call_id', 'call' || k)) END,
           CASE c.name WHEN 'result' THEN 'call' || k END
    FROM generate_series(0, $1::int + 1) k CROSS JOIN (VALUES ('cut', 'memory.cut', 0),
        ('summary', 'memory.turn_summary', 0), ('thought', 'agent.thought', -1), ('result', 'tool.result', -1),
        ('asked', 'task.instruction', 0)) c (name, type, later)""",
    """INSERT INTO public.boxes (box_id, tenant_id, parent_ids)
    SELECT md5('b' || k)::uuid, 'p1', CASE k WHEN 0 THEN '{}' ELSE ARRAY[md5('b' || k - 1)::uuid] END
    FROM generate_series(0, $1::int) k WHERE $2::text <> ''""",
    """INSERT INTO public.box_cards (box_id, position, card_id)
    SELECT md5('b' || k)::uuid, k + 1 - n, n || 'cut' FROM generate_series(0, $1::int) k
    CROSS JOIN LATERAL generate_series(1, k) n WHERE $2::text <> ''
    UNION ALL
    SELECT md5('b' || k)::uuid, k + c.place, c.card FROM generate_series(0, $1::int) k
    CROSS JOIN LATERAL (VALUES (1, '0asked'), (2, k || 'summary'), (3, k || 'thought'), (4, k || 'result'),
                               (5, k + 1 || 'thought'), (6, k + 1 || 'result')) c (place, card)""",
    """INSERT INTO state.agent_steps (project_id, agent_id, step_id, agent_turn_id, status, output_box_id, metadata)
    SELECT 'p1', 'alice', $2::text || '-s' || 2 * k, $2::text, 'completed', md5('b' || k - 1)::uuid,
           jsonb_build_object('output_position', k + 5, 'compaction', jsonb_build_object(
               'output_box_id', md5('b' || k)::uuid)) FROM generate_series(1, $1::int) k""",
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, context_headers, payload, next_retry_at, created_at, archived_at)
    SELECT 'i', 'p1', 'alice', 'turn', 'o', $2::text, $1::int, 'consumed', '{}',
           jsonb_build_object('output_box_id', md5('b0')::uuid, 'context_box_id', md5('c')::uuid), now(), now(),
           now()""",
    """INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
    deliverable_card_id, output_box_id, ended_at, announced_at)
    SELECT $2::text, 'p1', 'alice', 'public', $1::int, 'i', 'success', '1thought', md5('b' || $1::int)::uuid, now(),
           now()""",
    "SET session_replication_role = origin",
]


@pytest.fixture(scope="module")
async def long_turn(databases: Databases, migrated: str) -> AsyncIterator[Session]:
    """A session on a ledger with the steps and boxes of such a turn."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=1)
    async with pool.connection() as conn:
        for fill in FILL:
            await conn.fetch(fill, *((CUTS, TURN) if "$1" in fill else ()))
        await conn.execute("VACUUM ANALYZE")
        yield conn
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
async def test_the_rules_read_the_boxes_of_a_turn_a_few_times(long_turn: Session, scope: Scope) -> None:
    async with long_turn.transaction():
        await query("begin_audit").many(long_turn)
        await query("tune_audit").one(long_turn, whole=scope.whole, windowed=scope.since is not None)
        for rule in [rule for rule in rules().values() if "box_cards" in rule.query.sql]:
            values = arguments(scope, Bounds(), 20)
            given = ", ".join(literal(values[parameter]) for parameter in rule.query.parameters)
            await long_turn.execute(f"PREPARE rule AS {rule.query.sql}")
            [row] = await long_turn.fetch(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE rule ({given})")
            await long_turn.execute("DEALLOCATE rule")
            worst = max(nodes(json.loads(row["QUERY PLAN"])[0]["Plan"]), key=seen)
            assert seen(worst) <= TIMES * PLACED, (rule.name, worst)
            if rule.name in OF_BOXES:
                assert await rule.query.many(long_turn, **{name: values[name] for name in rule.query.parameters}) == []


def seen(node: dict[str, Any]) -> float:
    """Rows that a node saw, over all its loops."""
    removed = sum(node.get(f"Rows Removed by {how}", 0) for how in ("Filter", "Join Filter", "Index Recheck"))
    return node["Actual Loops"] * (node["Actual Rows"] + removed)
