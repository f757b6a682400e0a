"""One stack for all tests of this directory, on a database and a worker target of its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sdk.tools.stack import TARGET, Stack, fresh
from tests.support.databases import Databases
from turnstile.embedded import Endpoints
from turnstile.ledger.pool import Pool
from turnstile.processes.migration import migrate_all
from turnstile.processes.run import run_worker
from turnstile.settings import Settings
from turnstile.settings.model import BridgeSettings, ModelSettings, WorkerSettings
from turnstile.transport.connection import connect

COMMAND_RETRY_SECONDS = 1.5


@pytest.fixture(scope="package")
async def stack(servers: Endpoints, databases: Databases) -> AsyncIterator[Stack]:
    """PostgreSQL, NATS, Temporal, worker and bridge; only the model is a script."""
    database = await databases.create()
    endpoints = servers.model_copy(update={"database_url": databases.url(database)})
    settings = Settings(
        bridge=BridgeSettings(command_retry_seconds=COMMAND_RETRY_SECONDS),
        worker=WorkerSettings(worker_targets=[TARGET]),
        model=ModelSettings(scripts=[Path(__file__).with_name("script.py")]),
    )
    await migrate_all(settings, endpoints)
    stop, ready = asyncio.Event(), asyncio.Event()
    worker = asyncio.create_task(run_worker(settings, endpoints, stop, ready=ready.set))
    pool = Pool(endpoints.database_url, size=4, name="test")
    conn = await connect(endpoints.nats_url, name="test")
    running = Stack(endpoints, settings, pool, conn)
    await running.start_bridge()
    await ready.wait()
    yield running
    await running.stop_bridge()
    stop.set()
    await worker
    await conn.close()
    await pool.close()
    await databases.drop(database)


@pytest.fixture
def target() -> str:
    """The target of a tool that only this test has."""
    return fresh()
