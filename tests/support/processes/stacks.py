"""Stacks by the dozen: each module of tests has its own, on the servers of the session.

A `conftest.py` imports the fixtures. What a module's stack is configured with, its mark says:

    pytestmark = pytest.mark.stack(HASTY)    # the arguments of `Stacks.open`

A module whose tests look at their own project only, and change nothing of worker, bridge and ledger that others meet,
runs on the stack that the module before it used, which saves a second of each core:

    pytestmark = pytest.mark.shared_stack
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.databases import Databases
from tests.support.processes.shared_stack import SharedStack
from tests.support.processes.stack import QUICK, SCRIPTS, Config, Stack, open_stack, running_here
from turnstile.embedded import Endpoints


@dataclass(frozen=True)
class Stacks:
    """Opens stacks on the session's servers, each on a database that it has alone."""

    servers: Endpoints
    databases: Databases
    migrated: str
    new_directory: Callable[[str], Path]

    @asynccontextmanager
    async def open(
        self, config: Config = QUICK, scripts: Sequence[Path] = SCRIPTS, target: str | None = None
    ) -> AsyncGenerator[Stack]:
        """A stack of which nothing runs yet."""
        name = await self.databases.lend(self.migrated)
        endpoints = self.servers.model_copy(update={"database_url": self.databases.url(name)})
        async with open_stack(endpoints, self.new_directory("stack"), config, scripts, target) as opened:
            yield opened
        await self.databases.take_back(name)


@pytest.fixture(scope="session")
def stacks(servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory) -> Stacks:
    """Opens stacks, each with a database and a worker target of its own."""
    return Stacks(servers, databases, migrated, tmp_path_factory.mktemp)


@pytest.fixture(scope="session")
async def usual(stacks: Stacks, shared_stack: SharedStack) -> AsyncIterator[Callable[[], Awaitable[Stack]]]:
    """Gives the shared stack; it ends before the servers do."""

    @asynccontextmanager
    async def running() -> AsyncGenerator[Stack]:
        async with stacks.open() as opened, running_here(opened):
            yield opened

    yield lambda: shared_stack.get(running)
    await shared_stack.close()


@pytest.fixture(scope="module")
async def stack(
    stacks: Stacks, usual: Callable[[], Awaitable[Stack]], request: pytest.FixtureRequest
) -> AsyncIterator[Stack]:
    """A database and a worker target of this module alone, where nothing runs yet; or the shared stack, which runs."""
    node: pytest.Module = request.node
    if node.get_closest_marker("shared_stack"):
        yield await usual()
        return
    mark = node.get_closest_marker("stack") or pytest.mark.stack().mark
    async with stacks.open(*mark.args, **mark.kwargs) as opened:
        yield opened


@pytest.fixture(scope="module")
async def here(stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """The stack, with worker and bridge in this process."""
    node: pytest.Module = request.node
    if node.get_closest_marker("shared_stack"):
        yield stack
        return
    async with running_here(stack):
        yield stack
