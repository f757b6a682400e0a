"""What the console reads of agents, calls, dead letters, profiles and costs is bounded by what is in hand or shown.

Planned as in `test_plans`, while the tables are empty; then a project has a long past.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.ledger.plans.test_plans import FILL as TURNS
from tests.ledger.plans.test_plans import Explained, Explaining, nodes
from tests.support.databases import Databases
from tests.support.ledger.agents import ALICE, BOB, PROJECT, add_agents
from tests.support.ledger.calls import sleeper
from turnstile.ledger.access import calls_out, costs, dead_letters, fleet, profile_versions
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.schema.ids import BoxId, ToolCallId, new_box_id

PAST, PAGE, AGENTS = 20_000, 50, 1_100
Read = Callable[[Connection], Awaitable[object]]
BOX = BoxId(new_box_id())
THEN = datetime.now(UTC) - timedelta(hours=12)
ROSTER = 4 * AGENTS
"""What reads the roster may see: its agents are sorted by id."""
READS: dict[str, tuple[Read, int]] = {
    "list_calls_out": (lambda conn: calls_out.list_calls_out(conn, PROJECT, channel=None, row_limit=PAGE), 4 * PAGE),
    "get_call_out": (lambda conn: calls_out.get_call_out(conn, PROJECT, ToolCallId("k7"), channel=None), 10),
    "list_dead_letters": (
        lambda conn: dead_letters.list_dead_letters(conn, PROJECT, channel=None, before=None, row_limit=PAGE),
        4 * PAGE,
    ),
    "list_dead_letters after a place": (
        lambda conn: dead_letters.list_dead_letters(
            conn, PROJECT, channel=None, before=PageCursor(THEN, "d7"), row_limit=PAGE
        ),
        4 * PAGE,
    ),
    "list_rejections": (
        lambda conn: dead_letters.list_rejections(conn, PROJECT, before=None, row_limit=PAGE),
        4 * PAGE,
    ),
    "page_agents": (lambda conn: fleet.page_agents(conn, PROJECT, channel=None, row_limit=PAGE), ROSTER),
    "page_agents, one": (lambda conn: fleet.page_agents(conn, PROJECT, channel=None, agent=ALICE, row_limit=1), ROSTER),
    "list_queue": (lambda conn: fleet.list_queue(conn, PROJECT, ALICE, channel=None, row_limit=PAGE), 4 * PAGE),
    "list_processes": (lambda conn: fleet.list_processes(conn, PROJECT, row_limit=PAGE), ROSTER),
    "list_target_needs": (lambda conn: fleet.list_target_needs(conn, PROJECT), ROSTER),
    "list_profile_versions": (
        lambda conn: profile_versions.list_profile_versions(conn, PROJECT, "helper", row_limit=5),
        4 * profile_versions.TURN_LIMIT,
    ),
    "get_profile_version": (lambda conn: profile_versions.get_profile_version(conn, PROJECT, BOX), 10),
    "list_tool_users": (
        lambda conn: profile_versions.list_tool_users(conn, PROJECT, ["search"], row_limit=5),
        4 * PAGE,
    ),
    "sum_costs": (
        lambda conn: costs.sum_costs(conn, PROJECT, channel=None, since=THEN, row_limit=PAGE),
        8 * PAGE,
    ),
}
FILL = [
    *TURNS[:-1],
    "UPDATE state.agent_inbox SET created_at = now() - interval '1 minute'",
    """INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,
    turn_epoch, status, last_error, context_headers, payload, next_retry_at, created_at, archived_at)
    SELECT 'd' || n, (ARRAY['p1', 'p2'])[n % 2 + 1], 'alice', 'tool_result', 'k' || n, 't' || n, n, 'error',
    'protocol_violation', '{"traceparent": "00-0-0-01"}', '{}', now(), now() - make_interval(secs => n * 4), now()
    FROM generate_series(1, $1::int) n""",
    """INSERT INTO state.rejections (project_id, source, error_code, error)
    SELECT (ARRAY['p1', 'p2'])[n % 2 + 1], 'request:x', 'unknown_call', 'report: none'
    FROM generate_series(1, $1::int) n""",
    TURNS[-1],
]


@pytest.fixture(scope="module")
async def grown(databases: Databases, migrated: str) -> AsyncIterator[Explaining]:
    """A session that has known its database since it was empty; since then it has got a past, and a turn waits."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=3)
    await add_agents(pool, ALICE, BOB)
    async with pool.connection() as conn:
        session = Explaining(conn)
        for read, _ in READS.values():
            await read(session)
        async with pool.connection() as filling:
            for fill in FILL:
                await filling.fetch(fill, *([PAST] if "$1" in fill else []))
        await sleeper(pool, "waits")
        session.explains = True
        yield session
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", READS)
async def test_a_read_is_bounded(grown: Explaining, name: str) -> None:
    read, most = READS[name]
    with pytest.raises(Explained):
        await read(grown)
    for node in nodes(grown.plan):
        seen = node["Actual Rows"] + sum(node.get(f"Rows Removed by {how}", 0) for how in ("Filter", "Index Recheck"))
        where = (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), seen, node["Actual Loops"])
        assert node["Node Type"] != "Seq Scan" or node["Relation Name"] == "workers", where
        assert seen * node["Actual Loops"] <= most, where
