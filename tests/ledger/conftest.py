"""A ledger with three agents, and the invariants checked after each test."""

from collections.abc import AsyncIterator

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, add_agents
from tests.support.ledger.invariants import assert_invariants
from turnstile.ledger.pool import Pool, Session


@pytest.fixture
async def agents(pool: Pool, keeper: Session) -> AsyncIterator[Pool]:
    """A pool on a database that has alice, bob and carol; the invariants hold when the test ends."""
    await add_agents(pool, ALICE, BOB, CAROL)
    yield pool
    await assert_invariants(keeper)
