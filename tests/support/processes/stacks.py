"""Stacks by the dozen: each module of tests has its own, on the servers of the session."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.databases import Databases
from tests.support.processes.stack import QUICK, SCRIPTS, Config, Stack, open_stack
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
