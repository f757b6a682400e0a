"""The permissions that docs/tools.md gives a tool's user are enough, and a service that lacks one says so at once."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from lab.support.nats_server import NatsServer
from tests.sdk.tools.stack import eventually
from turnstile.schema.errors import ConfigError
from turnstile.sdk.tools.service import ToolService
from turnstile.transport.connection import connect
from turnstile.transport.streams import declare_streams

CONSUMER = "turnstile_tool_text_count@p1"
PRESENCE = "cg.v1r4.p1.*.req.tool.text.count.*"
PUBLISH = [
    "cg.v1r4.p1.*.req.sys.bridge.describe",
    "cg.v1r4.p1.*.req.sys.bridge.report",
    "cg.v1r4.p1.*.cmd.sys.bridge.report",
    PRESENCE,
    f"$JS.API.CONSUMER.INFO.cg_cmd_v1r4.{CONSUMER}",
    f"$JS.API.CONSUMER.MSG.NEXT.cg_cmd_v1r4.{CONSUMER}",
    f"$JS.ACK.cg_cmd_v1r4.{CONSUMER}.>",
]


def permissions(publish: list[str]) -> dict[str, object]:
    """Of a tool's user."""
    return {"publish": publish, "subscribe": ["_INBOX_tool.>", PRESENCE], "allow_responses": True}


@pytest.fixture(scope="module")
def guarded() -> Iterator[NatsServer]:
    server = NatsServer()
    less = permissions([each for each in PUBLISH if each != PRESENCE])
    users: list[dict[str, object]] = [
        {"user": "migrate", "password": "m"},
        {"user": "tool", "password": "t", "permissions": permissions(PUBLISH)},
        {"user": "less", "password": "l", "permissions": less},
    ]
    config = server.write_config(f"authorization: {json.dumps({'users': users})}")
    server.start("-c", config)
    yield server
    server.remove()


def url(server: NatsServer, login: str) -> str:
    return server.url.replace("nats://", f"nats://{login}@")


def text_tools() -> ToolService:
    service = ToolService("p1")

    @service.tool(target="text", suffix="count")
    async def word_count(text: str) -> int:
        """Count."""
        return len(text.split())

    return service


async def test_the_documented_permissions_are_enough(guarded: NatsServer) -> None:
    service = text_tools()
    admin = await connect(url(guarded, "migrate:m"), name="admin")
    await declare_streams(admin)
    await service.declare(url(guarded, "migrate:m"))
    stop = asyncio.Event()
    running = asyncio.create_task(service.run(url(guarded, "tool:t"), stop=stop, inbox_prefix="_INBOX_tool"))
    payload = b'{"tool_call_card_id": "c", "tool_name": "word_count", "after_execution": "suspend"}'
    for number, (project, message_id) in enumerate(
        (("p2", "tool-call_1"), ("p1", "tool-call_1"), ("p1", "tool-call_1-1"))
    ):
        sent = {"CG-Tool-Call-Id": "call_1", "Nats-Msg-Id": f"{message_id}" if number else "other"}
        await admin.store(f"cg.v1r4.{project}.public.cmd.tool.text.count", payload, headers=sent)
    # no bridge runs here: p1's call is put off, which takes describe and an ack; its repeat asks who runs it
    await eventually(lambda: service.counts() and service.counts()["word_count"].deferred)
    info = await admin.js.consumer_info("cg_cmd_v1r4", CONSUMER)
    assert info.config.filter_subject == "cg.v1r4.p1.*.cmd.tool.text.count"
    assert info.num_pending == 0
    stop.set()
    await running
    await admin.close()


async def test_a_user_who_may_not_ask_who_runs_a_call_is_told_at_the_start(guarded: NatsServer) -> None:
    with pytest.raises(ConfigError, match=r"refuses this user a subject.*`turnstile docs tools` says"):
        await text_tools().run(url(guarded, "less:l"), stop=asyncio.Event(), inbox_prefix="_INBOX_tool")


async def test_a_consumer_of_another_tool_is_not_taken_over(guarded: NatsServer) -> None:
    first, second = ToolService(), ToolService()

    async def count() -> None:
        """Count."""

    first.tool(target="a", suffix="b_c")(count)
    second.tool(target="a_b", suffix="c")(count)
    await first.declare(url(guarded, "migrate:m"))
    with pytest.raises(ConfigError, match=r"consumer turnstile_tool_a_b_c belongs to cg.v1r4.\*.\*.cmd.tool.a.b_c"):
        await second.run(url(guarded, "migrate:m"), stop=asyncio.Event())


async def test_it_waits_for_a_stream_that_is_not_there_yet(guarded: NatsServer) -> None:
    server = NatsServer()
    server.start()
    stop, service = asyncio.Event(), text_tools()
    running = asyncio.create_task(service.run(server.url, stop=stop))
    conn = await connect(server.url, name="late")
    try:
        await asyncio.sleep(0.3)
        await declare_streams(conn)
        payload = b'{"tool_call_card_id": "c", "tool_name": "word_count", "after_execution": "suspend"}'
        sent = {"CG-Tool-Call-Id": "call_1"}
        await conn.store("cg.v1r4.p1.public.cmd.tool.text.count", payload, headers=sent)
        await eventually(lambda: service.counts()["word_count"].deferred)
    finally:
        stop.set()
        await running
        await conn.close()
        server.remove()
