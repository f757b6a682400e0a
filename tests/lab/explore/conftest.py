"""Explorers of worlds on the session's server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from lab.explore.expansion import Explorer
from lab.explore.states.place import Place
from lab.explore.states.places import prepare_world
from lab.explore.worlds import all_worlds
from tests.support.databases import Databases

OpenExplorer = Callable[[str], Awaitable[Explorer]]


@pytest.fixture
async def open_explorer(databases: Databases, migrated: str) -> AsyncIterator[OpenExplorer]:
    """Makes explorers of a world by its name, each in a database of its own that has the starting ledger."""
    async with AsyncExitStack() as stack:

        async def opened(world: str) -> Explorer:
            name = await databases.create(migrated)
            stack.push_async_callback(databases.drop, name)
            await prepare_world(databases.url(name), all_worlds()[world])
            place = Place(databases.url(name))
            stack.push_async_callback(place.close)
            await place.open()
            return Explorer(place, all_worlds()[world])

        yield opened
