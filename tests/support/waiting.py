"""Two statements at once, in the order a test wants: one holds its locks, the other is seen to wait for them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ledger.pool import Pool
from ledger.queries import Connection

T = TypeVar("T")

_WAITERS = """
SELECT count(*) AS waiting FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


async def until_waiting(pool: Pool, clients: int = 1) -> None:
    """Returns when so many connections of this database wait for a lock."""
    async with asyncio.timeout(5), pool.connection() as conn:
        while (await conn.fetch(_WAITERS))[0]["waiting"] < clients:
            await asyncio.sleep(0.002)


@asynccontextmanager
async def in_flight(pool: Pool, transition: Callable[[Connection], Awaitable[T]]) -> AsyncGenerator[T]:
    """The transition, done but not committed until the block ends."""
    async with pool.connection() as conn, conn.transaction():
        yield await transition(conn)


async def overtaken(
    pool: Pool, first: Callable[[Connection], Awaitable[Any]], second: Coroutine[Any, Any, T], *more: Coroutine[Any, Any, T]
) -> list[T]:
    """Run `first`; start the others, which must come to wait for it; commit `first`; give what the others answered."""
    async with in_flight(pool, first):
        tasks = [asyncio.create_task(each) for each in (second, *more)]
        try:
            await until_waiting(pool, len(tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
    return [await task for task in tasks]
