"""PostgreSQL yardsticks of the benchmark: scratch databases, pgbench's TPC-B.

Nothing of it runs in production. It works in databases that it creates, so it never touches a ledger in use; its user
needs the right to create databases.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import asyncpg

from turnstile.ledger.address import read_address
from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.pool import Session
from turnstile.ledger.queries import Query, parse
from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import uuid7

DRIVER = ("asyncpg", str(asyncpg.__version__))
_TELLERS = 10
_ACCOUNTS = 100_000


class _Raw(Session, Protocol):
    """A connection without the time limit that a pool's statements have."""

    async def close(self) -> None: ...


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[_Raw]:
    """A connection to that database, closed at the end."""
    conn: _Raw = await connect_to_host(url)
    try:
        yield conn
    finally:
        await conn.close()


@asynccontextmanager
async def scratch_database(url: str) -> AsyncGenerator[str]:
    """The address of a new database on that server, dropped at the end.

    Raises `ConfigError` if the user may not create databases.
    """
    name = f"turnstile_bench_{uuid7().replace('-', '')}"
    statements = _read("scratch.sql")
    async with connected(url) as conn:
        try:
            await conn.execute(statements["make_database"].sql.format(NAME=name))
        except asyncpg.InsufficientPrivilegeError:
            problem = "[database].url: this user may not create databases, which measurements need"
            raise ConfigError(problem) from None
        try:
            yield read_address(url).with_database(name)
        finally:
            await conn.execute(statements["drop_database"].sql.format(NAME=name))


class TpcB:
    """pgbench's transactions by prepared statements of asyncpg, since the server's wheel has no `pgbench`.

    A client costs more CPU than pgbench's would, so the figure can only be compared between runs of this program.
    """

    def __init__(self, url: str, *, scale: int) -> None:
        self._url = url
        self._scale = scale
        self._statements = _read("tpcb.sql")

    async def prepare(self) -> None:
        """Create and fill the tables."""
        async with connected(self._url) as conn:
            for name, statement in self._statements.items():
                if name.startswith(("make_", "fill_")):
                    await statement.many(conn, **dict.fromkeys(statement.parameters, self._scale))
            await conn.execute(_read("scratch.sql")["tidy"].sql)

    async def run(self, clients: int, seconds: float) -> float:
        """Run `clients` concurrent clients; returns transactions per second."""
        async with AsyncExitStack() as stack:
            conns = [await stack.enter_async_context(connected(self._url)) for _ in range(clients)]
            for conn in conns:
                await self._transaction(conn)  # prepares the statements
            began = time.perf_counter()
            counts = await asyncio.gather(*(self._client(conn, began + seconds) for conn in conns))
            return sum(counts) / (time.perf_counter() - began)

    async def _client(self, conn: _Raw, until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            await self._transaction(conn)
            count += 1
        return count

    async def _transaction(self, conn: _Raw) -> None:
        values = {
            "aid": random.randint(1, _ACCOUNTS * self._scale),  # noqa: S311 -- as pgbench does
            "bid": random.randint(1, self._scale),  # noqa: S311
            "tid": random.randint(1, _TELLERS * self._scale),  # noqa: S311
            "delta": random.randint(-5000, 5000),  # noqa: S311
        }
        async with conn.transaction():
            for name in ("update_account", "read_account", "update_teller", "update_branch", "add_history"):
                statement = self._statements[name]
                await statement.many(conn, **{key: values[key] for key in statement.parameters})


def _read(file: str) -> dict[str, Query]:
    return parse(Path(__file__).with_name("postgres").joinpath(file).read_text(encoding="utf-8"))
