"""Worker, bridge and tools that tell everything: a collector for spans, ports for figures."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from lab.support.collector import Collector, collecting
from tests.sdk.tools.stack import TARGET, Stack
from tests.support.databases import Databases
from tests.support.paths import TESTS
from tests.support.processes.stacks import stacks
from tests.support.pump.pump import ORGANISM
from tests.support.pump.troupe import TROUPE
from turnstile.embedded import Endpoints
from turnstile.embedded.ports import free_port
from turnstile.ledger.pool import Pool
from turnstile.processes.migration import migrate_all
from turnstile.processes.run import run_worker
from turnstile.settings import Settings
from turnstile.settings.model import ModelSettings, ObservabilitySettings, PumpSettings, WorkerSettings
from turnstile.transport.connection import connect

__all__ = ["stacks"]

SCRIPTS = [TESTS / "sdk" / "tools" / "script.py", TESTS / "e2e/scripts/actors.py"]


@pytest.fixture(scope="package")
async def collector() -> AsyncIterator[Collector]:
    """Hears every span of this directory's tests, within a tenth of a second of those in this process."""

    begin = BatchSpanProcessor.__init__

    def sooner(processor: BatchSpanProcessor, exporter: Any, **_: object) -> None:
        begin(processor, exporter, schedule_delay_millis=100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchSpanProcessor, "__init__", sooner)
        async with collecting() as opened:
            yield opened


@pytest.fixture(scope="module")
def told(collector: Collector) -> dict[str, ObservabilitySettings]:
    """What worker and bridge tell, and where."""
    return {
        role: ObservabilitySettings(
            otlp_endpoint=collector.url, metrics_port=free_port(), temporal_metrics_port=free_port()
        )
        for role in ("worker", "bridge")
    }


@pytest.fixture(scope="module")
async def stack(
    servers: Endpoints, databases: Databases, told: dict[str, ObservabilitySettings]
) -> AsyncIterator[Stack]:
    """Everything; only the model is a script. Of one module alone: two at once would answer each other's verbs."""
    database = await databases.create()
    endpoints = servers.model_copy(update={"database_url": databases.url(database)})
    settings = Settings(
        worker=WorkerSettings(worker_targets=[TARGET]),
        model=ModelSettings(scripts=SCRIPTS, retry_initial_seconds=0.01, retry_max_seconds=0.02),
        pump=PumpSettings(listeners=[ORGANISM, TROUPE], worker_target="pump_test"),
        observability=told["bridge"],
    )
    await migrate_all(settings, endpoints)
    stop, ready = asyncio.Event(), asyncio.Event()
    own = settings.model_copy(update={"observability": told["worker"]})
    worker = asyncio.create_task(run_worker(own, endpoints, stop, ready=ready.set))
    pool = Pool(endpoints.database_url, size=4, name="test")
    conn = await connect(endpoints.nats_url, name="test")
    running = Stack(endpoints, settings, pool, conn)
    await running.start_bridge()
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({worker, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if worker.done():
        worker.result()
    yield running
    await running.stop_bridge()
    stop.set()
    await worker
    await conn.close()
    await pool.close()
    await databases.drop(database)
