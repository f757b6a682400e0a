"""The environment of a measurement: servers, a new database, a new worker target, and connections for observing.

Servers whose address is set are used; the others are embedded, with their data in the directory. On your own servers a
run leaves only ended workflows and stored messages. If a bridge already serves there it would answer the requests, so
the run is refused.
"""

import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client
from temporalio.service import RPCError

from lab.bench.agents import write_scripts
from lab.bench.children import BenchError
from lab.bench.plan import Plan
from lab.bench.yardsticks.postgres import scratch_database
from turnstile.embedded import EmbeddedServers, Endpoints
from turnstile.embedded.ports import free_port
from turnstile.ledger.pool import Pool
from turnstile.processes.addresses import NAMESPACE
from turnstile.processes.migration import migrate_all
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.schema.wire import subjects
from turnstile.sdk.client import BridgeClient
from turnstile.settings import Settings
from turnstile.temporal.connect import connect_engine
from turnstile.temporal.plugin import turnstile_plugin, turnstile_runtime
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, connect
from turnstile.transport.json_messages import decode_object
from turnstile.transport.streams import STREAMS, wakeup_consumer

Section = Mapping[str, object]
_LOOPBACK = "127.0.0.1"
_NAME = "turnstile-bench"


@dataclass(frozen=True)
class Environment:
    """The servers of a run, and the connections that observe them."""

    directory: Path
    plan: Plan
    settings: Settings
    servers: EmbeddedServers
    endpoints: Endpoints
    target: str
    scripts: Sequence[Path]
    pool: Pool
    conn: NatsConnection
    temporal: Client

    def config(self, name: str, sections: Mapping[str, Section]) -> tuple[Path, int]:
        """Write a settings file for a process of the system under test; returns it and the port of its metrics.

        It has the user's `[worker]`, `[bridge]`, `[tools]` and `[gateway]`, overridden by `sections` and this run's
        addresses.
        """
        port = free_port()
        addresses: dict[str, Section] = {
            "database": {"url": self.endpoints.database_url},
            "nats": {"servers": self.endpoints.nats_url.split(",")},
            "temporal": {"address": self.endpoints.temporal_address, "namespace": self.endpoints.temporal_namespace},
            "worker": {"worker_targets": [self.target]},
            "model": {"scripts": [str(path) for path in self.scripts]},
            "observability": {"metrics_port": port, "log_level": "warning"},
        }
        theirs = self.settings.model_dump(mode="json", include={"worker", "bridge", "tools", "temporal", "gateway"})
        merged: dict[str, dict[str, object]] = {}
        for source in (theirs, sections, addresses):
            for section, values in source.items():
                merged.setdefault(section, {}).update(values)
        lines = [
            line
            for section, values in merged.items()
            for line in (f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items()), "")
        ]
        path = self.directory / f"{name}.toml"
        path.write_text("\n".join(lines), encoding="utf-8")
        path.chmod(0o600)  # it has the database's password
        return path, port

    def server_pids(self) -> dict[str, int]:
        """The process ids of the embedded servers."""
        return {name: self.servers.pid(name) for name in self.servers.embedded}

    async def stored(self) -> int:
        """Number of messages that Turnstile's two streams have ever stored."""
        total = 0
        for stream in STREAMS:
            answer = await self.conn.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=10)
            state = decode_object(answer.data)["state"]
            last = state.get("last_seq") if isinstance(state, dict) else None
            total += last if isinstance(last, int) else 0
        return total


@asynccontextmanager
async def open_environment(settings: Settings, plan: Plan, directory: Path) -> AsyncGenerator[Environment]:
    """Start servers with an empty database; stop what was started when the block ends.

    Raises what `EmbeddedServers` and `migrate_all` raise, `ConfigError` and `BenchError`.
    """
    async with AsyncExitStack() as stack:
        servers = EmbeddedServers(
            directory / "servers",
            database_url=settings.database.url or None,
            nats_url=settings.nats.url or None,
            temporal_address=settings.temporal.address or None,
            temporal_namespace=settings.temporal.namespace or NAMESPACE,
        )
        await stack.enter_async_context(servers)
        database = await stack.enter_async_context(scratch_database(servers.endpoints.database_url))
        endpoints = servers.endpoints.model_copy(update={"database_url": database})
        target = f"bench-{uuid.uuid4().hex[:12]}"
        worker = settings.worker.model_copy(update={"worker_targets": [target]})
        settings = settings.model_copy(update={"worker": worker})
        conn = await connect(endpoints.nats_url, name=_NAME)
        stack.push_async_callback(conn.close)
        if "nats" not in servers.embedded:
            await _refuse_other_bridge(conn)
        await migrate_all(settings, endpoints)
        pool = Pool(database, size=4, name=_NAME)
        stack.push_async_callback(pool.close)
        plugins, runtime = [turnstile_plugin()], turnstile_runtime()
        temporal = await connect_engine(settings.temporal, endpoints, plugins=plugins, runtime=runtime, identity=_NAME)
        scripts = write_scripts(directory, plan)
        environment = Environment(directory, plan, settings, servers, endpoints, target, scripts, pool, conn, temporal)
        stack.push_async_callback(_clean_up, environment)
        yield environment


async def _refuse_other_bridge(conn: NatsConnection) -> None:
    request: JsonObject = {"agent_turn_id": "nobody"}
    with contextlib.suppress(ServerUnavailable):
        await BridgeClient(conn, ProjectId("bench"), ChannelId("public")).request("describe", request, timeout=2)
        raise BenchError(f"a bridge serves at {conn.shown}: stop it, or measure on other servers")


async def _clean_up(environment: Environment) -> None:
    """On servers that keep running, delete the doorbell consumer and terminate the workflows of sleeping turns."""
    if "nats" not in environment.servers.embedded:
        consumer = wakeup_consumer(environment.target)
        with contextlib.suppress(*NATS_TROUBLE):
            await environment.conn.request(f"$JS.API.CONSUMER.DELETE.{subjects.CMD_STREAM}.{consumer}", b"", timeout=5)
    if "temporal" not in environment.servers.embedded:
        query = f"WorkerTarget = '{environment.target}' AND ExecutionStatus = 'Running'"
        async for workflow in environment.temporal.list_workflows(query):
            with contextlib.suppress(RPCError):  # the workflow has ended meanwhile
                await environment.temporal.get_workflow_handle(workflow.id, run_id=workflow.run_id).terminate(
                    "measured"
                )
