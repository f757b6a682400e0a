"""A ledger in which enqueues may say what their turns may spend, and the model has a price."""

import pytest

from tests.support.ledger.budgets import hook, price
from turnstile.ledger.pool import Pool


@pytest.fixture
async def spending(agents: Pool) -> Pool:
    """A pool on a database with alice, bob and carol; a token of the model costs 2 micro-dollars in, 10 out."""
    await hook(agents)
    await price(agents)
    return agents
