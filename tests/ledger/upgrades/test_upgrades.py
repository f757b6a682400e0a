"""The ledger is migrated while processes of the version before run on it, and both versions go on side by side."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    TARGET,
    add_agents,
    ask,
    begin,
    claim,
    drain,
    finish,
    profile,
    rows,
    value,
)
from tests.support.ledger.calls import sleeper
from tests.support.ledger.invariants import assert_invariants
from turnstile.ledger import migrate as migrating
from turnstile.ledger import queries
from turnstile.ledger.migrate import migrate, migrations
from turnstile.ledger.operations.sweep import touch_bridge, touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, Query, Row
from turnstile.ledger.turns.roster import put_profile
from turnstile.schema.ids import AgentId, new_box_id
from turnstile.schema.profiles import Memory

LAST_OF_BEFORE = "0017"
AGENTS = (ALICE, BOB, CAROL)
EARLIER = ContextVar("earlier", default=False)
"""Whether the running task is a process of the version before."""


SINCE: dict[str, object] = {
    "leased_output_box_id": new_box_id(),
    "output_box_id": new_box_id(),
    "leased_at": datetime.now(UTC),
    "next_output_box_id": new_box_id(),
    "rows": "[]",
    "waiting_tools": list[str](),
    "applied": 0,
    "head_status": None,
    "root_turn_id": None,
    "parent_turn_id": None,
}
"""Columns of this version without which its Python does not read a row."""
WHOLE = [{"version": "", "known": 0, "upto": None}] * 3
"""How the version before reads boxes."""


class EarlierRow(dict[str, Any]):
    """A row that has not the columns of this version: its Python reads nothing there, or what a lease must have."""

    def __missing__(self, key: str) -> object:
        must = {"leased_output_box_id": "00000000-0000-0000-0000-000000000000", "leased_at": datetime.now(UTC)}
        return must.get(key)


@dataclass(frozen=True, slots=True)
class EarlierQuery(Query):
    """A statement of the version before, called by this version's Python: it takes the arguments that it knows."""

    async def many(self, conn: Connection, **arguments: Any) -> list[Row]:
        found = await conn.fetch(self.sql, *(arguments[name] for name in self.parameters))
        made = [EarlierRow({**SINCE, **row}) for row in found]
        if self.name == "begin_step" and made:
            made[0]["content"] = json.dumps(json.loads(made[0]["content"]) | {"boxes": WHOLE})
        return [*made]


@pytest.fixture
def both_versions(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Gives tasks with `EARLIER` the statements of before; the argument says which migrations there are."""
    now: Callable[[], Mapping[str, Query]] = queries.all_queries
    text = Path(__file__).with_name("before.sql").read_text()
    changed = {
        name: EarlierQuery(*(getattr(each, field.name) for field in fields(Query)))
        for name, each in queries.parse(text).items()
    }
    changed |= {each.name: changed[of] for each in now().values() if (of := each.variant_of) in changed}
    monkeypatch.setattr(queries, "all_queries", lambda: {**now(), **changed} if EARLIER.get() else now())
    known = migrations()

    def have(all_of_them: bool) -> None:
        there = [each for each in known if all_of_them or each.name[:4] <= LAST_OF_BEFORE]
        monkeypatch.setattr(migrating, "migrations", lambda: there)

    return have


@pytest.fixture
async def pools(databases: Databases) -> AsyncIterator[tuple[Pool, Pool]]:
    """Two pools, one for each version's processes, on a database that was never migrated."""
    name = await databases.create()
    made = Pool(databases.url(name), name="before"), Pool(databases.url(name), name="now")
    yield made
    for each in made:
        await each.close()
    await databases.drop(name)


async def serve(pool: Pool, over: asyncio.Event) -> None:
    """Run what is leased, whoever enqueued it, until it is over."""
    while not over.is_set():
        for agent in AGENTS:
            for each in await claim(pool, agent):
                if each.verdict == "start":
                    await begin(pool, turn := each.turn())
                    await finish(pool, turn)
        await pool.run(lambda conn: touch_worker(conn, pool._name, [TARGET]))
        await asyncio.sleep(0)


async def ask_much(pool: Pool, over: asyncio.Event, **more: Any) -> int:
    """Enqueue a turn to each agent in turn until it is over; returns how many."""
    asked = 0
    while not over.is_set():
        await ask(pool, AGENTS[asked % len(AGENTS)], **more)
        asked += 1
        await asyncio.sleep(0.005)
    return asked


async def until_ended(pool: Pool, number: int) -> None:
    """Wait until so many turns are over."""
    async with asyncio.timeout(60):
        while await value(pool, "SELECT count(*) FROM state.turn_outcomes") < number:  # noqa: ASYNC110 -- rows set no event
            await asyncio.sleep(0.01)


async def test_both_versions_run_while_the_ledger_is_migrated(
    both_versions: Callable[[bool], None], pools: tuple[Pool, Pool]
) -> None:
    before, now = pools
    both_versions(False)
    EARLIER.set(True)
    await migrate(before)
    await add_agents(before, *AGENTS, AgentId("dave"))
    await sleeper(before, "k1", "k2", agent=AgentId("dave"))
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(before, over))
        earlier = group.create_task(ask_much(before, over))
        await until_ended(before, 10)
        EARLIER.set(False)
        both_versions(True)
        assert min(name[:4] for name in await migrate(now)) == "0018"
        group.create_task(serve(now, over))
        later = [group.create_task(ask_much(now, over, **more)) for more in ({}, {"conversation_id": "c1"})]
        await until_ended(now, await value(now, "SELECT count(*) FROM state.turn_outcomes") + 60)
        over.set()
    await drain(now)  # dave, too, whom the version before sent to sleep
    asked = earlier.result() + sum(task.result() for task in later)
    assert await value(now, "SELECT count(*) FROM state.turn_outcomes WHERE status = 'success'") == asked + 1
    kept = await rows(now, "SELECT turn_count FROM state.conversations")
    assert (len(kept), sum(row["turn_count"] for row in kept)) == (len(AGENTS), later[1].result())
    async with now.connection() as conn:
        await assert_invariants(conn)


async def test_what_the_version_before_writes_is_read(
    both_versions: Callable[[bool], None], pools: tuple[Pool, Pool]
) -> None:
    before, now = pools
    both_versions(True)
    await migrate(now)
    await add_agents(now, *AGENTS)
    await put_profile(now, PROJECT, profile("helper", memory=Memory(keep="conversation")))
    assert (await ask(now)).reply.conversation_id == ""
    await now.run(lambda conn: touch_bridge(conn, "b"))
    await now.run(lambda conn: touch_worker(conn, "w", [TARGET]))
    assert await value(now, "SELECT state.protocol_level(30)") == 1
    EARLIER.set(True)
    assert (await ask(before)).reply.conversation_id is None
    await put_profile(before, PROJECT, profile("helper"))
    await before.run(lambda conn: touch_worker(conn, "w", [TARGET]))
    await before.run(lambda conn: touch_worker(conn, "x", [TARGET]))
    EARLIER.set(False)
    assert (await ask(now)).reply.conversation_id is None
    assert await value(now, "SELECT state.protocol_level(30)") == 0


async def test_without_a_bridge_that_signs_on_no_level_is_spoken(pool: Pool) -> None:
    assert await value(pool, "SELECT state.protocol_level(30)") == 0
    await pool.run(lambda conn: touch_worker(conn, "w", [TARGET]))
    assert await value(pool, "SELECT state.protocol_level(30)") == 0
    await pool.run(lambda conn: touch_bridge(conn, "b"))
    assert await value(pool, "SELECT state.protocol_level(30)") == 1
