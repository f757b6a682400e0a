"""A whole Turnstile on running servers: a new database and worker target, with worker and bridge in any process.

The bridge's verbs have one queue group per NATS, so only one stack may serve verbs on a server at a time.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from tests.support.paths import TESTS
from turnstile.embedded import Endpoints
from turnstile.ledger.pool import Pool
from turnstile.processes.migration import migrate_all
from turnstile.processes.run import run_both
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.settings import Settings, load_settings
from turnstile.temporal.connect import connect_engine
from turnstile.temporal.plugin import turnstile_plugin
from turnstile.transport.connection import NatsConnection, connect
from turnstile.workflows.options import turn_workflow_id

SCRIPTS = (TESTS / "e2e" / "scripts", TESTS / "e2e" / "scripts" / "python.py")

Value = str | int | float | list[str]
Config = Mapping[str, Mapping[str, Value]]

QUICK: Config = {
    "worker": {"activity_heartbeat_timeout_seconds": 3.0, "database_pool_size": 6},
    "bridge": {
        "pending_wakeup_seconds": 1.0,
        "dispatched_retry_seconds": 2.0,
        "inbox_processing_timeout_seconds": 10.0,
        "database_pool_size": 6,
    },
    "model": {"retry_initial_seconds": 0.01, "retry_max_seconds": 0.05},
}
"""The same rules as ever, with less patience."""


@dataclass(frozen=True)
class Stack:
    """Addresses of the servers, and the test's own connections."""

    directory: Path
    config: Path
    settings: Settings
    endpoints: Endpoints
    pool: Pool
    conn: NatsConnection
    temporal: Client

    async def history(self, turn: AgentTurnId) -> WorkflowHistory:
        """The history of a turn, after its workflow has closed: the turn's event may come before."""
        handle = self.temporal.get_workflow_handle(turn_workflow_id(turn))
        await handle.result()
        return await handle.fetch_history()

    async def activities(self, turn: AgentTurnId) -> list[str]:
        """The names of a turn's activities in order, local ones by their markers, after its workflow has closed."""
        names: list[str] = []
        for event in (await self.history(turn)).events:
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                names.append(event.activity_task_scheduled_event_attributes.activity_type.name)
            elif event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
                data = event.marker_recorded_event_attributes.details["data"].payloads[0].data
                names.append(json.loads(data)["activity_type"])
        return names


def write_config(
    directory: Path, endpoints: Endpoints, target: str, config: Config = QUICK, scripts: Sequence[Path] = SCRIPTS
) -> Path:
    """A `config.toml` for these servers and this worker target."""
    values: dict[str, dict[str, Value]] = {name: dict(section) for name, section in config.items()}
    own: dict[str, dict[str, Value]] = {
        "database": {"url": endpoints.database_url},
        "nats": {"servers": [endpoints.nats_url], "monitoring_url": endpoints.nats_monitoring_url or ""},
        "temporal": {"address": endpoints.temporal_address, "namespace": endpoints.temporal_namespace},
        "worker": {"worker_targets": [target]},
        "model": {"scripts": [str(path) for path in scripts]},
        "artifacts": {"store": (directory / "artifacts").as_uri()},
    }
    for name, section in own.items():
        values.setdefault(name, {}).update(section)
    lines = [
        line
        for name, section in values.items()
        for line in (f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()), "")
    ]
    path = directory / "config.toml"
    path.write_text("\n".join(lines))
    return path


@asynccontextmanager
async def open_stack(
    endpoints: Endpoints,
    directory: Path,
    config: Config = QUICK,
    scripts: Sequence[Path] = SCRIPTS,
    target: str | None = None,
) -> AsyncGenerator[Stack]:
    """A stack on an empty, migrated database; no worker or bridge runs yet."""
    path = write_config(directory, endpoints, target or f"w-{uuid7()}", config, scripts)
    settings = load_settings(path)
    await migrate_all(settings, endpoints)
    pool = Pool(endpoints.database_url, size=4, name="test")
    conn = await connect(endpoints.nats_url, name="test")
    temporal = await connect_engine(
        settings.temporal,
        endpoints,
        plugins=[turnstile_plugin()],
        identity="turnstile@test-00000000",  # in the form of ours, so that a recorded history is scrubbed of it
    )
    try:
        yield Stack(directory, path, settings, endpoints, pool, conn, temporal)
    finally:
        await conn.close()
        await pool.close()


class Run(Protocol):
    """`run_both`, `run_worker` or `run_bridge`."""

    def __call__(
        self, settings: Settings, endpoints: Endpoints, stop: asyncio.Event, *, ready: Callable[[], None]
    ) -> Coroutine[Any, Any, None]:
        """Runs until `stop`."""
        ...


@asynccontextmanager
async def running_here(stack: Stack, run: Run = run_both) -> AsyncGenerator[None]:
    """Run worker and bridge of the stack, or one of them, in this process."""
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(run(stack.settings, stack.endpoints, stop, ready=ready.set))
    up = asyncio.create_task(ready.wait())
    await asyncio.wait([running, up], return_when=asyncio.FIRST_COMPLETED)
    up.cancel()
    try:
        if running.done():
            running.result()
        yield
    finally:
        stop.set()
        await running


def script_names(paths: Sequence[Path] = SCRIPTS) -> list[str]:
    """The names of the YAML scripts, for tests that go through all of them."""
    return sorted(file.stem for path in paths if path.is_dir() for file in path.glob("*.yaml"))
