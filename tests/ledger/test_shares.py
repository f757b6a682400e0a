"""Reads of a gateway: how long one may take the database, and how many connections one project may have at a time."""

import asyncio
import time
from collections import Counter

import pytest

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.runtime.shares import asks
from turnstile.schema.errors import Refused


async def sleeps(conn: Connection, seconds: float) -> None:
    """A statement that takes so long."""
    await conn.fetch("SELECT pg_sleep($1)", seconds)


async def test_a_read_that_takes_too_long_is_refused_once(database_url: str) -> None:
    pool = Pool(database_url, size=2, read_only=True, statement_seconds=0.3)
    began = time.monotonic()
    with pytest.raises(Refused, match=r"longer than 0\.3 s") as refused:
        await pool.run(lambda conn: sleeps(conn, 30))
    assert refused.value.code == "read_too_costly"
    assert time.monotonic() - began < 5
    await pool.run(lambda conn: sleeps(conn, 0))
    await pool.close()


async def test_a_project_leaves_connections_to_others(database_url: str) -> None:
    pool = Pool(database_url, size=4, share=2)
    at_once = Counter[str]()
    most = Counter[str]()

    async def ask(project: str, seconds: float) -> None:
        asks(project)

        async def read(conn: Connection) -> None:
            at_once[project] += 1
            most[project] = max(most[project], at_once[project])
            await sleeps(conn, seconds)
            at_once[project] -= 1

        await pool.run(read)

    busy = [asyncio.create_task(ask("red", 0.5)) for _ in range(12)]
    await asyncio.sleep(0)
    await asyncio.create_task(ask("blue", 0))
    assert not all(task.done() for task in busy)
    await asyncio.gather(*busy)
    assert most == {"red": 2, "blue": 1}
    assert not pool._shares._gates
    await pool.close()


async def test_who_asks_for_no_project_has_no_share(database_url: str) -> None:
    pool = Pool(database_url, size=4, share=1)
    await asyncio.gather(*(pool.run(lambda conn: sleeps(conn, 0.2)) for _ in range(4)))
    await pool.close()
