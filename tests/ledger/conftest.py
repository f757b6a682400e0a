"""A ledger with three agents, and the invariants checked after each test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, add_agents
from tests.support.ledger.invariants import assert_invariants
from tests.support.waiting import Counting
from turnstile.ledger.pool import Pool, Session


@pytest.fixture
async def agents(pool: Pool, keeper: Session) -> AsyncIterator[Pool]:
    """A pool on a database that has alice, bob and carol; the invariants hold when the test ends."""
    await add_agents(pool, ALICE, BOB, CAROL)
    yield pool
    await assert_invariants(keeper)


@pytest.fixture
async def counting(database_url: str, keeper: Session) -> AsyncIterator[Counting]:
    """Alice, Bob and Carol behind a counting pool; the invariants hold when the test ends, and nothing deadlocked."""
    pool = Counting(database_url, size=14)
    await add_agents(pool, ALICE, BOB, CAROL)
    yield pool
    assert pool.deadlocks == 0
    await assert_invariants(keeper)
    await pool.close()
