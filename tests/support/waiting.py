"""Two concurrent statements in a chosen order: one holds its locks until the other is seen to wait for them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection

T = TypeVar("T")


class Counting(Pool):
    """A pool that counts the deadlocks which its retry would hide."""

    deadlocks = 0

    async def run(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run the transition as a pool does, and count deadlocks."""

        async def counted(conn: Connection) -> T:
            try:
                return await transition(conn)
            except asyncpg.DeadlockDetectedError:
                self.deadlocks += 1
                raise

        return await super().run(counted)


_WAITERS = """
SELECT count(*) AS waiting FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


async def until_waiting(pool: Pool, clients: int = 1) -> None:
    """Wait until `clients` connections of this database wait for a lock."""
    async with asyncio.timeout(25), pool.connection() as conn:
        while (await conn.fetch(_WAITERS))[0]["waiting"] < clients:  # noqa: ASYNC110 -- the server sets no event
            await asyncio.sleep(0.002)


@asynccontextmanager
async def in_flight(pool: Pool, transition: Callable[[Connection], Awaitable[T]]) -> AsyncGenerator[T]:
    """Execute the transition; commit when the block ends."""
    async with pool.connection() as conn, conn.transaction():
        yield await transition(conn)


async def overtaken(pool: Pool, first: Callable[[Connection], Awaitable[Any]], second: Coroutine[Any, Any, T]) -> T:
    """Run `first`, start `second`, wait until `second` waits for a lock, commit `first`; returns `second`'s result."""
    task: asyncio.Future[T] | None = None
    try:
        async with in_flight(pool, first):
            task = asyncio.ensure_future(second)
            await until_waiting(pool)
        return await task
    finally:
        if task is None:
            second.close()
        else:
            task.cancel()
