"""A ledger in which enqueues may say what their turns may spend, and the model has a price."""

import pytest

from tests.support.ledger.budgets import MODEL, hook
from turnstile.ledger.pool import Pool


@pytest.fixture
async def spending(agents: Pool) -> Pool:
    """A pool on a database with alice, bob and carol; a token of the model costs 2 micro-dollars in, 10 out."""
    await hook(agents)
    async with agents.connection() as conn:
        await conn.fetch("INSERT INTO state.model_prices VALUES ($1, 2, 10, NULL, 4096, 'test')", MODEL)
    return agents
