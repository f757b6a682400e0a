"""What a pool says of a server that refuses it, at once; and that who cancels what it runs is obeyed."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.ledger.agents import ALICE, BOB, add_agents, lease
from tests.support.ledger.calls import ending
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import all_queries
from turnstile.ledger.turns.usage import list_profile_models
from turnstile.schema.errors import ConfigError


def changed(url: str, *, password: str = "", database: str = "", query: str = "") -> str:
    """The address with another password, database or query."""
    split = urlsplit(url)
    login = f"{split.username}:{password or split.password}@{split.hostname}:{split.port}"
    return f"postgresql://{login}/{database or split.path[1:]}{query}"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"password": "s3cret"}, "password authentication failed"),
        ({"database": "not_there"}, 'database "not_there" does not exist'),
        ({"query": "?sslmode=always"}, "sslmode"),
    ],
)
async def test_a_refusal_is_a_config_error_at_once(what: dict[str, str], told: str, database_url: str) -> None:
    pool = Pool(changed(database_url, **what), size=1)
    with pytest.raises(ConfigError, match=told) as opening:
        await pool.open()
    with pytest.raises(ConfigError, match=told) as running:
        await pool.run(list_profile_models)
    for refused in (opening, running):
        assert "[database].url" in str(refused.value)
        assert "s3cret" not in str(refused.value)
    await pool.close()


async def test_a_cancellation_is_obeyed_though_the_connection_is_lost_with_it(database_url: str) -> None:
    """The rollback of a lost connection fails, and must not make a lost connection of the cancellation."""
    pool, runs = Pool(database_url, size=2), 0

    async def lose_all(conn: Any) -> None:
        nonlocal runs
        runs += 1
        [backend] = await conn.fetch("SELECT pg_backend_pid() AS pid")
        async with pool.connection() as other:
            await other.fetch("SELECT pg_terminate_backend($1, 5000)", backend["pid"])
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(5)

    running = asyncio.create_task(pool.transact(lose_all))
    await asyncio.wait([running], timeout=5)
    assert (running.cancelled(), runs) == (True, 1)
    await pool.close()


async def test_what_runs_in_a_task_that_was_canceled_before_is_tried_again(database_url: str) -> None:
    """A clean-up outlives a lost connection like anything else."""
    pool, runs = Pool(database_url, size=2), 0

    async def lose_once(conn: Any) -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            await conn.fetch("SELECT pg_terminate_backend(pg_backend_pid())")
        return "done"

    async def clean_up() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await pool.transact(lose_once)
        return "never"

    running = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    running.cancel()
    assert (await running, runs) == ("done", 2)
    await pool.close()


async def test_every_statement_stays_prepared(pool: Pool) -> None:
    """Planning the longest of them takes five times as long as running it."""
    longest = max(all_queries().values(), key=lambda query: len(query.sql))
    await add_agents(pool, ALICE, BOB)
    turns = [await lease(pool, agent) for agent in (ALICE, BOB)]
    async with pool.connection() as conn:
        for turn in turns:
            await ending(turn)(conn)
        kept = await conn.fetch("SELECT name FROM pg_prepared_statements WHERE statement = $1", longest.sql)
    assert longest.name == "finish_turn"
    assert len(kept) == 1
