"""The real stack in this process: worker and bridge on the session's servers, and the words a tool's test needs."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from nats.aio.msg import Msg

from turnstile.embedded import Endpoints
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.processes.run import run_bridge
from turnstile.schema.cards import ToolError
from turnstile.schema.ids import AgentId, ChannelId, ProjectId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire.events import TaskEvent
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.tools.service import ToolService
from turnstile.sdk.tools.worker import ToolCounts
from turnstile.settings import Settings
from turnstile.transport.connection import NatsConnection

PROJECT, CHANNEL, TARGET = ProjectId("demo"), ChannelId("public"), "tools_test"
_RESULTS = """
SELECT c.content::text AS content FROM public.box_cards b JOIN public.cards c USING (card_id)
WHERE b.box_id = $1::text::uuid AND c.metadata ->> 'type' = 'tool.result' ORDER BY c.tool_call_id
"""


@dataclass(frozen=True)
class Call:
    """A call that the scripted model makes."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Played:
    """How a turn ended, and the results of its calls."""

    event: TaskEvent
    results: list[dict[str, Any]]

    @property
    def result(self) -> dict[str, Any]:
        """The only call's."""
        [only] = self.results
        return only

    @property
    def error(self) -> ToolError:
        """The only call's, which failed."""
        assert self.result["status"] == "failed", self.result
        return ToolError.model_validate(self.result["error"])


class Running:
    """A service that serves in this process."""

    def __init__(self, service: ToolService, task: asyncio.Task[None], stop: asyncio.Event) -> None:
        self.service, self.task, self.stop = service, task, stop

    @property
    def counts(self) -> ToolCounts:
        """Of its only tool."""
        [only] = self.service.counts().values()
        return only

    async def end(self) -> None:
        """Stop and drain."""
        self.stop.set()
        await self.task


@dataclass
class Stack:
    """The stack, its bridge apart so that a test can take it away."""

    endpoints: Endpoints
    settings: Settings
    pool: Pool
    conn: NatsConnection
    bridge: asyncio.Task[None] | None = None
    bridge_stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def client(self) -> BridgeClient:
        """A client of the project."""
        return BridgeClient(self.conn, PROJECT, CHANNEL)

    async def start_bridge(self) -> None:
        """Returns when it serves."""
        self.bridge_stop = asyncio.Event()
        ready = asyncio.Event()
        self.bridge = asyncio.create_task(run_bridge(self.settings, self.endpoints, self.bridge_stop, ready=ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self.bridge, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if self.bridge.done():
            self.bridge.result()

    async def stop_bridge(self) -> None:
        """No verb is answered after this."""
        assert self.bridge is not None
        self.bridge_stop.set()
        await self.bridge

    async def register(self, *definitions: ToolDefinition) -> AgentId:
        """Tools, and an agent of its own that may use them."""
        name = f"a-{uuid.uuid4().hex[:12]}"
        for definition in definitions:
            await put_tool(self.pool, PROJECT, definition)
        profile = Profile(
            name=name,
            worker_target=TARGET,
            llm_config=LlmConfig(model="scripted/caller"),
            allowed_tools=[definition.tool_name for definition in definitions],
        )
        await put_profile(self.pool, PROJECT, profile)
        await add_agent(self.pool, PROJECT, AgentId(name), name)
        return AgentId(name)

    async def play(self, agent: AgentId, *calls: Call, timeout: float = 25) -> Played:
        """One turn that makes these calls in one step."""
        async with self.client.wait_task(agent) as waiter:
            instruction = json.dumps([{"name": call.name, "arguments": call.arguments} for call in calls])
            reply = await self.client.request("enqueue", {"agent_id": agent, "instruction": instruction})
            assert reply["status"] == "accepted", reply
            event = await waiter.wait(cast("Any", reply["agent_turn_id"]), timeout)
        async with self.pool.connection() as conn:
            rows = await conn.fetch(_RESULTS, event.output_box_id)
        return Played(event, [json.loads(row["content"]) for row in rows])

    @asynccontextmanager
    async def serving(self, *services: ToolService) -> AsyncGenerator[list[Running]]:
        """The services, each a replica in this process."""
        running: list[Running] = []
        for service in services:
            stop, ready = asyncio.Event(), asyncio.Event()
            run = service.run(self.endpoints.nats_url, stop=stop, ready=ready.set)
            running.append(Running(service, asyncio.create_task(run), stop))
            async with asyncio.timeout(25):
                await ready.wait()
        try:
            yield running
        finally:
            await asyncio.gather(*(each.end() for each in running))

    @asynccontextmanager
    async def overheard(self) -> AsyncGenerator[list[Msg]]:
        """The tool commands that are published meanwhile."""
        heard: list[Msg] = []

        async def on_command(msg: Msg) -> None:
            heard.append(msg)

        subscription = await self.conn.subscribe("cg.v1r4.demo.*.cmd.tool.>", on_command)
        yield heard
        await self.conn.unsubscribe(subscription)

    async def unsettled(self, target: str, suffix: str) -> int:
        """Commands of a tool that are undelivered or unacknowledged."""
        info = await self.conn.js.consumer_info("cg_cmd_v1r4", f"turnstile_tool_{target}_{suffix}")
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    async def repeat(self, command: Msg, number: int) -> None:
        """Publish a command once more, as the safety net would."""
        call = (command.headers or {})["CG-Tool-Call-Id"]
        sent = {**(command.headers or {}), "Nats-Msg-Id": f"tool-{call}-{number}"}
        await self.conn.store(command.subject, command.data, headers=sent)


async def eventually(condition: Callable[[], object], timeout: float = 25.0) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 -- conditions lie in servers and callbacks, which set no event
            await asyncio.sleep(0.01)


def fresh(prefix: str = "t") -> str:
    """A token nobody else has: for a test's own tool."""
    return f"{prefix}{uuid.uuid4().hex[:10]}"
