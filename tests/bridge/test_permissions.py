"""The permissions we document are enough for a bridge and a client, and no more than that."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial

import pytest
from nats.aio.msg import Msg

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import CHANNEL, eventually
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.serving.durable_commands import DurableCommands
from turnstile.bridge.serving.micro_service import VerbRequest, VerbService
from turnstile.schema.base import Reply
from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import ProjectId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.subjects import CMD_STREAM, wakeup
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import connect
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import STREAMS, declare_commands, declare_wakeups, wakeup_consumer

PULLED = ("cg_cmd_v1r4", "cg_ask_v1r4")
BRIDGE = {
    "publish": [
        *(f"cg.v1r4.*.*.{category}.>" for category in ("cmd", "evt", "str")),
        *(f"$JS.API.STREAM.INFO.{stream}" for stream in STREAMS),
        *(f"$JS.API.CONSUMER.{call}.{stream}.*" for call in ("MSG.NEXT", "INFO") for stream in PULLED),
        *(f"$JS.API.CONSUMER.CREATE.{stream}.*.>" for stream in PULLED),
        *(f"$JS.ACK.{stream}.>" for stream in PULLED),
        "$JS.API.STREAM.MSG.DELETE.cg_ask_v1r4",
    ],
    "subscribe": ["_INBOX_bridge.>", "cg.v1r4.*.*.req.sys.bridge.* turnstile", "$SRV.>"],
    "allow_responses": True,
}
CLIENT = {
    "publish": [
        *(f"cg.v1r4.p1.*.req.sys.bridge.{verb}" for verb in ("enqueue", "stop", "describe")),
        "cg.v1r4.p1.*.cmd.sys.bridge.enqueue",
    ],
    "subscribe": ["_INBOX_client.>", "cg.v1r4.p1.*.evt.>", "cg.v1r4.p1.*.str.>"],
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[NatsServer]:
    server = NatsServer()
    users = [
        {"user": "migrate", "password": "m"},
        {"user": "bridge", "password": "b", "permissions": BRIDGE},
        {"user": "client", "password": "c", "permissions": CLIENT},
    ]
    config = server.write_config(f"authorization: {json.dumps({'users': users})}")
    server.start("-c", config)
    yield server
    server.remove()


async def accept(_: VerbRequest) -> Reply:
    return Reply(status=ReplyStatus.ACCEPTED)


async def test_a_bridge_and_a_client_work(guarded: NatsServer) -> None:
    migrate = await connect(guarded.url.replace("://", "://migrate:m@"), name="migrate")
    await declare_wakeups(migrate, "t")
    await declare_commands(migrate)
    bridge = await connect(guarded.url.replace("://", "://bridge:b@"), name="bridge", inbox_prefix="_INBOX_bridge")
    client = await connect(guarded.url.replace("://", "://client:c@"), name="client", inbox_prefix="_INBOX_client")
    stop, rung = asyncio.Event(), asyncio.Event()

    async def on_doorbells(batch: list[Msg]) -> None:
        for msg in batch:
            await msg.ack()
        rung.set()

    service = VerbService(bridge, {"enqueue": accept})
    await service.start()
    commands = DurableCommands(bridge, {"enqueue": accept}, NatsPublisher(bridge))
    doorbells = ContinuousPull(bridge, CMD_STREAM, wakeup_consumer("t"), partial(declare_wakeups, bridge, "t"))
    running = [asyncio.create_task(commands.run(stop)), asyncio.create_task(doorbells.run(on_doorbells, stop))]
    await bridge.verify()
    caller = BridgeClient(client, ProjectId("p1"), CHANNEL)
    assert (await caller.request("enqueue", {}))["status"] == "accepted"
    async with caller.watching() as events:
        await caller.command("enqueue", {}, "r-1")
        assert (await anext(events)).payload["request_id"] == "r-1"
    await bridge.store(wakeup(ProjectId("p1"), CHANNEL, "t"), b"{}")
    await asyncio.wait_for(rung.wait(), 25)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*running), 25)
    await service.stop()
    await bridge.verify()
    await client.verify()
    assert doorbells.rebuilds == commands.pull.rebuilds == 0
    for conn in (bridge, client, migrate):
        await conn.drain()


async def test_a_client_hears_no_other_project(guarded: NatsServer) -> None:
    client = await connect(guarded.url.replace("://", "://client:c@"), name="client", inbox_prefix="_INBOX_client")
    async with BridgeClient(client, ProjectId("p2"), CHANNEL).watching():
        await eventually(lambda: client.violations)
        with pytest.raises(ConfigError, match="refuses"):
            await client.verify()
    await client.drain()
