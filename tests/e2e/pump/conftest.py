"""A client of the pump."""

from collections.abc import AsyncIterator

import pytest

from tests.support.processes.stack import Stack
from tests.support.pump.pump import Caller, assert_threads, calling_in


@pytest.fixture
async def caller(here: Stack) -> AsyncIterator[Caller]:
    """A client in a project of its own; when the test ends, what protocol §9 says holds."""
    async with calling_in(here) as caller:
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)
