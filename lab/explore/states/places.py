"""Databases for an exploration: an embedded PostgreSQL of its own, or a server that an address names.

Nothing need survive the machine, so the embedded server does not wait for disks.
"""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from lab.explore.states.auditing import audit_function
from lab.explore.states.place import prepare_database
from lab.explore.world import World
from turnstile.embedded import EmbeddedServers
from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import uuid7

MakeDatabase = Callable[[World], Awaitable[str]]
"""Makes a database with the starting ledger of a world; returns its address. All for one world are equal."""


@asynccontextmanager
async def databases(url: str | None = None) -> AsyncGenerator[MakeDatabase]:
    """Inside the block databases can be made; they are dropped at its end."""
    async with AsyncExitStack() as stack:
        if url is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="turnstile-explore-"))
            _open_to_others(directory)
            alone = EmbeddedServers(
                Path(directory) / "data", nats_url="nats://127.0.0.1:1", temporal_address="127.0.0.1:1"
            )
            servers = await stack.enter_async_context(alone)
            url = servers.endpoints.database_url
            await _hurry(url)
        base = url.rpartition("/")[0]
        server = Pool(url, size=1, name="explore")
        stack.push_async_callback(server.close)
        databases_made: list[str] = []

        async def create(template: str) -> str:
            name = f"explore_{uuid7().replace('-', '')}"
            await _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
            databases_made.append(name)
            if databases_made[0] != name:
                await _keep_era(f"{base}/{name}")
            return name

        async def drop() -> None:
            for name in databases_made:
                await _execute(server, f"DROP DATABASE {name} WITH (FORCE)")

        stack.push_async_callback(drop)
        template = await create("template0")
        pool = Pool(f"{base}/{template}", size=1, name="explore")
        await migrate(pool)
        await pool.close()
        starts: dict[str, str] = {}

        async def make(world: World) -> str:
            if world.name not in starts:
                name = await create(template)
                await prepare_world(f"{base}/{name}", world)
                starts[world.name] = name
            return f"{base}/{await create(starts[world.name])}"

        yield make


def _open_to_others(directory: str) -> None:
    """The server is another user than root."""
    Path(directory).chmod(0o755)


async def prepare_world(url: str, world: World) -> None:
    """Make the starting ledger in an empty database that has the ledger's tables, and the functions of the explorer."""
    await prepare_database(url, audit_function(world))
    pool = Pool(url, size=1, name="explore")
    await world.prepare(pool)
    await pool.close()


async def _keep_era(url: str) -> None:
    """The copy of a ledger is another database: the first session of ours would begin an era in it."""
    conn = await connect_to_host(url)
    try:
        await conn.execute(
            "UPDATE state.ledger_era SET database_oid = d.oid::bigint"
            " FROM pg_database d WHERE d.datname = current_database()"
        )
    finally:
        await conn.close()


async def _hurry(url: str) -> None:
    pool = Pool(url, size=1, name="explore")
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        await _execute(pool, f"ALTER SYSTEM SET {setting} = off")
    await _execute(pool, "SELECT pg_reload_conf()")
    await pool.close()


async def _execute(pool: Pool, statement: str) -> None:
    async with pool.connection() as conn:
        await conn.execute(statement)
