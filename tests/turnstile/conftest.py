"""A database without tables, for what happens there."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Databases
from tests.support.processes.stacks import stacks

__all__ = ["stacks"]


@pytest.fixture
async def bare_database_url(databases: Databases) -> AsyncIterator[str]:
    """An empty database that was never migrated."""
    name = await databases.create()
    yield databases.url(name)
    await databases.drop(name)
