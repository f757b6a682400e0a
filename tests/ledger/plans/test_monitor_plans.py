"""A look at how it stands reads what is going on and the roster, never the past: planned as in `test_plans`."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.ledger.plans.test_plans import ROWS, Explained, Explaining, nodes
from tests.ledger.plans.test_threads_plans import FILL as PASTS
from tests.support.databases import Databases
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    TARGET,
    add_agents,
    ask,
    begin,
    drain,
    finish,
    lease,
)
from tests.support.pump.threads import RESPONSE, message, new_ref, sent_by, talk
from turnstile.ledger.operations import recovery, sweep
from turnstile.ledger.operations.monitor import count_open_threads, look_around, measure_inbox
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection

PAST, THREADS = 20_000, "here"
LOOKS: dict[str, Callable[[Connection], Awaitable[object]]] = {
    "measure_inbox": lambda conn: measure_inbox(conn, [TARGET]),
    "measure_inbox of all": measure_inbox,
    "count_open_threads": lambda conn: count_open_threads(conn, [THREADS]),
    "look_around": look_around,
}
WITHOUT_A_PAST = {"project_agents", "repairs", "workers", "model_queues"}
"""As long as the roster, the rules of the safety net, the processes that run and limited models: they may be read as
a whole."""
FILL = [
    "SET session_replication_role = replica",
    *(statement for statement in PASTS if ".turn_outcomes" not in statement),
    """INSERT INTO state.turn_outcomes (agent_turn_id, project_id, agent_id, channel_id, turn_epoch, inbox_id, status,
    deliverable_card_id, output_box_id, ended_at, announced_at)
    SELECT 't' || n, 'p1', 'alice', 'public', n, 'i' || n, 'success', 'c' || n, gen_random_uuid(),
    now() - interval '1 day', now() FROM generate_series(1, $1::int) n""",
    "SET session_replication_role = origin",
]


async def live(pool: Pool) -> None:
    """A turn that has just ended, one that runs, one that waits behind it, one that rings; a thread that is open."""
    await begin(pool, ended := await lease(pool, ALICE))
    await finish(pool, ended)
    await begin(pool, await lease(pool, BOB))
    await ask(pool, BOB)
    await ask(pool, CAROL)
    await (await talk(pool)).do(RESPONSE)
    await sent_by(pool, message("a", new_ref(worker_target=THREADS), joins=False))
    await pool.run(lambda conn: sweep.touch_worker(conn, "w1", [TARGET]))
    await pool.run(lambda conn: recovery.record_repairs(conn, {"doorbell": 1}))


@pytest.fixture(scope="module")
async def old(databases: Databases, migrated: str) -> AsyncIterator[Explaining]:
    """A session that has known its database since it was empty; since then, a past has come, and something goes on."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=3)
    await add_agents(pool, ALICE, BOB, CAROL)
    async with pool.connection() as conn:
        session = Explaining(conn)
        await live(pool)
        for look in LOOKS.values():
            await look(session)
        await drain(pool)
        async with pool.connection() as filling:
            for fill in FILL:
                await filling.fetch(fill, *([PAST] if "$1" in fill else []))
        await live(pool)
        session.explains = True
        yield session
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", LOOKS)
async def test_a_look_does_not_read_the_past(old: Explaining, name: str) -> None:
    with pytest.raises(Explained):
        await LOOKS[name](old)
    for node in nodes(old.plan):
        seen = node["Actual Rows"] + sum(node.get(f"Rows Removed by {how}", 0) for how in ("Filter", "Index Recheck"))
        where = (node["Node Type"], node.get("Relation Name"), node.get("Index Name"), seen, node["Actual Loops"])
        assert node["Node Type"] != "Seq Scan" or node["Relation Name"] in WITHOUT_A_PAST, where
        assert seen * node["Actual Loops"] <= ROWS, where
    assert old.plan["Shared Hit Blocks"] + old.plan["Shared Read Blocks"] <= ROWS
