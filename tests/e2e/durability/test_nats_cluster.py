"""Three NATS servers with three replicas of each stream; one is killed, wiped, cut off or restarted under load.

Worker, bridge and tools are processes, and none of them is started again.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from lab.chaos.program import Program
from lab.chaos.tools import definitions
from lab.support.nats_server import NatsCluster, divisible_cluster
from lab.support.proxy import Proxy
from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import ROLES, Processes, Role, processes_of
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import CHANNEL, Tenant, new_tenant, turn_of
from tests.support.tools import calling
from turnstile.ledger.roster import add_agent, put_tool
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.subjects import CMD_STREAM, EVT_STREAM
from turnstile.transport.connection import NatsConnection, StreamStorage, connect
from turnstile.transport.streams import JetStreamError, call_api, declare_streams

log = logging.getLogger(__name__)
CLIENTS = 6
PAUSE = 0.1
"""Between two looks of a client for the end of its turn."""
THREE: Config = {**QUICK, "nats": {"replicas": 3}, "bridge": {**QUICK["bridge"], "command_retry_seconds": 2.0}}
TOOLS = ("quick", "slow")


@dataclass(frozen=True)
class Place:
    """The cluster, what runs on it, and the ways between its servers."""

    cluster: NatsCluster
    roads: Callable[[int], list[Proxy]]
    stack: Stack
    processes: Processes
    tools: Program
    executions: Path

    async def leader(self, stream: str = CMD_STREAM) -> int:
        """The number of the server that leads a stream."""
        found = await self._cluster(stream)
        return int(str(found["leader"]).removeprefix("n"))

    async def whole(self) -> None:
        """Wait until all three have all of both streams."""

        async def current() -> bool:
            with suppress(JetStreamError, ServerUnavailable, KeyError):
                for stream in (CMD_STREAM, EVT_STREAM):
                    peers = (await self._cluster(stream))["replicas"]
                    assert isinstance(peers, list)
                    up = [
                        peer for peer in peers if isinstance(peer, dict) and peer["current"] and not peer.get("offline")
                    ]
                    if len(up) != 2:
                        return False
                return True
            return False

        await until(current, 60, "three servers are up to date", pause=0.1)

    async def replicas(self, stream: str) -> object:
        """How many replicas the stream has; None if it is not there."""
        with suppress(JetStreamError, ServerUnavailable):
            config = (await call_api(self.stack.conn, f"STREAM.INFO.{stream}", {}))["config"]
            return config["num_replicas"] if isinstance(config, dict) else None
        return None

    def server_of(self, pid: int) -> int:
        """The number of the server to which a process is connected."""
        ports = {
            net_connection.raddr.port
            for net_connection in psutil.Process(pid).net_connections("tcp")
            if net_connection.raddr
        }
        [number] = [number for number, server in enumerate(self.cluster.servers) if server.port in ports]
        return number

    async def _cluster(self, stream: str) -> JsonObject:
        found = (await call_api(self.stack.conn, f"STREAM.INFO.{stream}", {}))["cluster"]
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
async def place(stacks: Stacks, hatching: Hatchery, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Three servers, and worker, bridge and a process of tools on them."""
    async with divisible_cluster() as (cluster, roads):
        await declared(cluster)
        servers = stacks.servers.model_copy(update={"nats_url": cluster.url, "nats_monitoring_url": None})
        async with (
            replace(stacks, servers=servers).open(THREE) as stack,
            processes_of(stack.config, hatching) as both,
        ):
            directory = tmp_path_factory.mktemp("tools")
            words = ("-m", "lab.chaos.tools", "--nats", cluster.url, "--executions", str(directory / "executions"))
            tools = Program("tools", (sys.executable, *words), directory / "tools.log", "tools serve")
            await tools.launch()
            await both.ensure()
            await tools.serving()
            yield Place(cluster, roads, stack, both, tools, directory / "executions")
            await tools.stop()


async def declared(cluster: NatsCluster) -> None:
    """Make the streams, once the servers have found each other."""
    conn = await connect(cluster.url, name="test")
    conn.storage = StreamStorage(replicas=3)

    async def made() -> bool:
        with suppress(JetStreamError, ServerUnavailable):
            await declare_streams(conn, gone_seconds=0)
            return True
        return False

    await until(made, 30, "the cluster makes streams", pause=0.1)
    await conn.close()


@dataclass
class Load:
    """Clients with one turn after the other: asked over NATS, of the ledger, and with calls of tools."""

    tenant: Tenant
    conn: NatsConnection
    turns: list[AgentTurnId] = field(default_factory=list[AgentTurnId])
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self) -> None:
        """Agents and tools."""
        for tool in definitions():
            await put_tool(self.tenant.pool, self.tenant.project, tool)
        await self.tenant.profile("caller", "player", allowed_tools=list(TOOLS))
        await self.tenant.profile("plain", "slow")
        for number in range(CLIENTS):
            profile = "caller" if number % 3 == 2 else "plain"
            await add_agent(self.tenant.pool, self.tenant.project, AgentId(f"agent-{number}"), profile)

    async def run(self, most: int = 1_000_000) -> None:
        """Until it is enough, and every client's turn has ended."""
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(self._client(number, most))

    async def _client(self, number: int, most: int) -> None:
        asked = 0
        steps = [calling(("quick", {"n": number}), ("slow", {"seconds": 0.3})), {"text": "It is done."}]
        instruction = json.dumps({"steps": steps}) if number % 3 == 2 else "hello"
        while not self.enough.is_set() and asked < most:
            asked += 1
            request = EnqueueRequest(
                agent_id=AgentId(f"agent-{number}"), instruction=instruction, correlation_id=f"{number}-{asked}"
            )
            turn = await (self._directly if number % 3 == 1 else self._over_nats)(request)
            self.turns.append(turn)
            await until(partial(self._ended, turn), 120, f"{turn} ends", pause=PAUSE)

    async def _ended(self, turn: AgentTurnId) -> bool:
        found = await self.tenant.rows("SELECT 1 FROM state.turn_outcomes WHERE agent_turn_id = $1", turn)
        return bool(found)

    async def _over_nats(self, request: EnqueueRequest) -> AgentTurnId:
        while True:
            with suppress(ServerUnavailable):
                reply = await self.tenant.ask(request.model_dump(mode="json", exclude_none=True), timeout=1)
                if reply.status is not ReplyStatus.ERROR:
                    return turn_of(reply)
            await asyncio.sleep(PAUSE)

    async def _directly(self, request: EnqueueRequest) -> AgentTurnId:
        tenant = self.tenant
        done = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
        return turn_of(done.reply)


async def suffer(place: Place, name: str, strike: Callable[[], Awaitable[None]], seconds: float) -> None:
    """The strike under load: nothing is lost or doubled, and the processes are those of before."""
    tenant = new_tenant(place.stack)
    pids = (place.processes.worker.pid, place.processes.bridge.pid, place.tools.pid)
    load = Load(tenant, place.stack.conn)
    await load.prepare()
    running = asyncio.create_task(load.run())
    await until(lambda: announced(tenant, CLIENTS), 30, "turns end")
    struck = time.time()
    await strike()
    over = time.time()
    await asyncio.sleep(seconds)
    load.enough.set()
    await running
    await tenant.all_ended(load.turns, 60)
    await judge(place, tenant, load.turns)
    assert (place.processes.worker.pid, place.processes.bridge.pid, place.tools.pid) == pids
    times = [row["at"] for row in await tenant.rows(ENDS, tenant.project)]
    first, gap = next(at for at in times if at > struck) - struck, longest_gap([struck, *times], struck)
    log.info(
        "%s: it took %.1f s, %d turns, none lost or doubled; next event after %.2f s, longest without one %.2f s",
        *(name, over - struck, len(load.turns), first, gap),
    )
    await place.whole()


ENDS = (
    "SELECT extract(epoch FROM announced_at)::float8 AS at FROM state.turn_outcomes"
    " WHERE project_id = $1 ORDER BY announced_at"
)


async def announced(tenant: Tenant, count: int) -> bool:
    """Whether more turns' events are stored."""
    return await tenant.count("state.turn_outcomes", "announced_at IS NOT NULL") >= count


def longest_gap(times: Sequence[float], since: float) -> float:
    """The longest time between two of them."""
    after = [at for at in times if at >= since]
    return max((late - early for early, late in pairwise(after)), default=0.0)


async def judge(place: Place, tenant: Tenant, turns: Sequence[AgentTurnId]) -> None:
    """Each turn ended once and well, and its `task` event is stored once; each call has one result."""
    rows = await tenant.rows("SELECT status FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
    assert [row["status"] for row in rows] == ["success"] * len(turns)
    assert await tenant.task_events() == dict.fromkeys(turns, 1)
    calls = await tenant.rows("SELECT wait_status FROM state.turn_waiting_tools WHERE project_id = $1", tenant.project)
    assert {row["wait_status"] for row in calls} == {"applied"}
    assert place.executions.read_text()
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.long
async def test_turns_go_on_when_the_leader_of_the_streams_is_killed(place: Place) -> None:
    tenant = new_tenant(place.stack)
    load = Load(tenant, place.stack.conn)
    await load.prepare()
    running = asyncio.create_task(load.run(most=4))
    await until(lambda: announced(tenant, 2), 30, "turns end")
    server = place.cluster.servers[await place.leader()]
    server.kill()
    await running
    await tenant.all_ended(load.turns, 30)
    await asyncio.to_thread(server.start)
    await judge(place, tenant, load.turns)
    await place.whole()


@pytest.mark.long
@pytest.mark.parametrize("stream", [CMD_STREAM, EVT_STREAM], ids=["commands", "events"])
async def test_a_leader_is_killed_under_load(place: Place, stream: str) -> None:
    async def kill() -> None:
        server = place.cluster.servers[await place.leader(stream)]
        server.kill()
        await asyncio.sleep(5)
        await asyncio.to_thread(server.start)

    await suffer(place, f"leader of {stream} killed for 5 s", kill, 5)


@pytest.mark.long
async def test_a_node_is_wiped_under_load(place: Place) -> None:
    async def wipe() -> None:
        server = place.cluster.servers[await place.leader(EVT_STREAM)]
        server.kill()
        server.wipe()
        await asyncio.to_thread(server.start)
        await place.whole()

    await suffer(place, "leader of the events killed and wiped", wipe, 5)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
async def test_a_node_is_cut_off_under_load(place: Place, role: Role) -> None:
    """The server of the worker, or of the bridge, reaches neither of the others, and goes on to answer its clients."""
    process = place.processes.worker if role == "worker" else place.processes.bridge

    async def cut() -> None:
        number = place.server_of(process.pid)
        await asyncio.gather(*(proxy.refuse(20) for proxy in place.roads(number)))

    await suffer(place, f"server of the {role} cut off from the others for 20 s", cut, 5)


@pytest.mark.long
async def test_all_are_restarted_one_by_one_under_load(place: Place) -> None:
    async def restart() -> None:
        for server in place.cluster.servers:
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await place.whole()

    await suffer(place, "each restarted", restart, 3)


@pytest.mark.long
async def test_a_stream_deleted_under_load_comes_back_with_its_replicas(place: Place) -> None:
    async def delete() -> None:
        await call_api(place.stack.conn, f"STREAM.DELETE.{CMD_STREAM}", {})

    await suffer(place, "the stream of commands deleted", delete, 5)
    assert await place.replicas(CMD_STREAM) == 3
    await call_api(place.stack.conn, f"STREAM.DELETE.{EVT_STREAM}", {})
    assert (await new_tenant(place.stack).run("plain")).view.status == "success"
    assert await place.replicas(EVT_STREAM) == 3
    await place.whole()
