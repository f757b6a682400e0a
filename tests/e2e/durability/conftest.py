"""Pairs of PostgreSQL servers, and stacks on them."""

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.support.processes.postgres_pair import PostgresPair, postgres_pair
from tests.support.processes.stack import Stack, open_stack
from turnstile.embedded import Endpoints


@pytest.fixture
async def pair(servers_path: Path) -> AsyncIterator[PostgresPair]:
    """A primary and its asynchronous standby."""
    async with postgres_pair(Path(mkdtemp(prefix="pair-", dir=servers_path))) as running:
        yield running


@pytest.fixture
async def failing(pair: PostgresPair, servers: Endpoints, tmp_path: Path) -> AsyncIterator[Stack]:
    """A stack whose ledger is on the pair, named by both addresses; nothing of it runs yet."""
    endpoints = servers.model_copy(update={"database_url": pair.url()})
    async with open_stack(endpoints, tmp_path) as opened:
        yield opened
