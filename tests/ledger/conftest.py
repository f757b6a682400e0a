"""A ledger with three agents, and the invariants checked after each test."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Databases
from tests.support.ledger.agents import ALICE, BOB, CAROL, add_agents
from tests.support.ledger.invariants import assert_invariants
from turnstile.ledger.pool import Pool


@pytest.fixture(scope="session")
async def populated(databases: Databases, migrated: str) -> str:
    """The name of a template database that has the agents alice, bob and carol."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=1)
    await add_agents(pool, ALICE, BOB, CAROL)
    await pool.close()
    return name


@pytest.fixture
async def agents(databases: Databases, populated: str) -> AsyncIterator[Pool]:
    """A pool on a database that has the agents; the invariants hold when the test ends."""
    name = await databases.create(f"{populated} STRATEGY FILE_COPY")  # half the time: there are no disks to wait for
    pool = Pool(databases.url(name), name="test")
    yield pool
    async with pool.connection() as conn:
        await assert_invariants(conn)
    await pool.close()
    await databases.drop(name)
