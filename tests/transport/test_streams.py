"""Streams and consumers are declared idempotently and only ever widened."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from lab.support.nats_server import NatsServer
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.schema.wire.subjects import (
    ASK_STREAM,
    ASK_SUBJECTS,
    CMD_STREAM,
    CMD_SUBJECTS,
    EVT_STREAM,
    EVT_SUBJECTS,
    bridge_command,
    wakeup,
)
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import NatsConnection, StreamStorage, connect
from turnstile.transport.json_messages import decode_object, encode
from turnstile.transport.streams import STREAMS, covers, declare_consumer, declare_streams, widened

HOUR = 3600 * 1_000_000_000


@pytest.fixture
async def conn(server: NatsServer) -> AsyncIterator[NatsConnection]:
    """A connection to a server without streams."""
    conn = await connect(server.url, name="test")
    for stream in (*STREAMS, "other"):
        await api(conn, f"STREAM.DELETE.{stream}")
    yield conn
    await conn.close()


async def api(conn: NatsConnection, subject: str, body: JsonObject | None = None) -> dict[str, Any]:
    answer = await conn.request(f"$JS.API.{subject}", encode(body) if body else b"", timeout=25)
    return cast("dict[str, Any]", decode_object(answer.data))


async def config(conn: NatsConnection, stream: str) -> dict[str, Any]:
    return (await api(conn, f"STREAM.INFO.{stream}"))["config"]


async def test_streams_are_declared_once(conn: NatsConnection) -> None:
    await declare_streams(conn, gone_seconds=0)
    cmd, ask, evt = [await config(conn, stream) for stream in STREAMS]
    assert (cmd["subjects"], cmd["max_age"], cmd["discard"]) == ([*CMD_SUBJECTS], 24 * HOUR, "old")
    assert (ask["subjects"], ask["max_age"], ask["discard"]) == ([*ASK_SUBJECTS], 24 * HOUR, "new")
    assert (ask["discard_new_per_subject"], ask["max_msgs_per_subject"]) == (True, 1000)
    assert (evt["subjects"], evt["max_age"], evt["storage"]) == ([EVT_SUBJECTS], 7 * 24 * HOUR, "file")
    assert cmd["duplicate_window"] == evt["duplicate_window"] == HOUR
    await declare_streams(conn, gone_seconds=0)
    assert [cmd, ask, evt] == [await config(conn, stream) for stream in STREAMS]


async def test_a_narrower_stream_is_widened_and_keeps_the_rest(conn: NatsConnection) -> None:
    narrow: JsonObject = {
        "name": CMD_STREAM,
        "subjects": ["cg.v1r4.*.*.cmd.tool.x.>", "elsewhere"],
        "max_age": HOUR,
        "duplicate_window": HOUR // 60,
        "discard": "new",
        "max_msgs": 77_000,
        "storage": "file",
        "description": "somebody's",
    }
    assert "error" not in await api(conn, f"STREAM.CREATE.{CMD_STREAM}", narrow)
    await declare_streams(conn, gone_seconds=0)
    wide = await config(conn, CMD_STREAM)
    assert set(wide["subjects"]) == {"elsewhere", *CMD_SUBJECTS}
    assert (wide["max_age"], wide["duplicate_window"], wide["discard"]) == (24 * HOUR, HOUR, "old")
    assert (wide["max_msgs"], wide["description"]) == (77_000, "somebody's")


async def test_a_stream_of_all_commands_gives_up_those_of_clients(conn: NatsConnection) -> None:
    """What it holds stays; what its own processes sent is read as before."""
    old: JsonObject = {"name": CMD_STREAM, "subjects": ["cg.v1r4.*.*.cmd.>"], "discard": "old"}
    assert "error" not in await api(conn, f"STREAM.CREATE.{CMD_STREAM}", old)
    project, channel = ProjectId("p"), ChannelId("c")
    for _ in range(2):
        await conn.store(bridge_command(project, channel, "enqueue"), b"{}")
        await conn.store(wakeup(project, channel, "t"), b"{}")
        await declare_streams(conn, gone_seconds=0)
    held = [(await api(conn, f"STREAM.INFO.{stream}"))["state"]["messages"] for stream in (CMD_STREAM, ASK_STREAM)]
    assert held == [3, 1]


async def test_a_wider_stream_is_left_alone(conn: NatsConnection) -> None:
    wide: JsonObject = {"name": EVT_STREAM, "subjects": ["cg.*.*.*.evt.>"], "max_age": 0, "duplicate_window": 2 * HOUR}
    assert "error" not in await api(conn, f"STREAM.CREATE.{EVT_STREAM}", wide)
    before = await config(conn, EVT_STREAM)
    await declare_streams(conn, gone_seconds=0)
    assert await config(conn, EVT_STREAM) == before


def test_widening_keeps_no_limit() -> None:
    wanted: JsonObject = {"subjects": ["a"], "max_age": 5, "duplicate_window": 5}
    assert widened({"subjects": ["a"], "max_age": 0, "duplicate_window": 9}, wanted)["max_age"] == 0


def test_replicas_are_raised_and_never_lowered() -> None:
    assert widened({"subjects": ["a"], "num_replicas": 1}, {"subjects": ["a"], "num_replicas": 3})["num_replicas"] == 3
    assert widened({"subjects": ["a"], "num_replicas": 5}, {"subjects": ["a"], "num_replicas": 3})["num_replicas"] == 5


@pytest.mark.parametrize(
    ("pattern", "other", "expected"),
    [
        ("a.>", "a.b.*", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.>", False),
        ("a.b", "a.*", False),
        ("*.b", "*.b", True),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
    ],
)
def test_covers(pattern: str, other: str, *, expected: bool) -> None:
    assert covers(pattern, other) is expected


async def test_a_flood_fills_no_disk_and_stops_nobody(conn: NatsConnection) -> None:
    """Of the kernel's messages the oldest go; a client is refused, and others' commands are stored and stay."""
    conn.storage = StreamStorage(commands_bytes=1 << 20, events_bytes=1 << 21)
    await declare_streams(conn, gone_seconds=0)
    made = await config(conn, CMD_STREAM)
    assert (made["max_bytes"], made["max_msg_size"]) == (1 << 20, conn.max_payload)
    assert (await config(conn, EVT_STREAM))["max_bytes"] == 1 << 21
    for _ in range(60):
        await conn.store(wakeup(ProjectId("flood"), ChannelId("public"), "t"), b"x" * 50_000)
    state = (await api(conn, f"STREAM.INFO.{CMD_STREAM}"))["state"]
    assert state["bytes"] <= 1 << 20
    assert (state["last_seq"], state["first_seq"] > 30) == (60, True)
    flooding, other = (BridgeClient(conn, ProjectId(name), ChannelId("public")) for name in ("flood", "other"))
    most = (await config(conn, ASK_STREAM))["max_msgs_per_subject"]
    assert await other.command("enqueue", {"instruction": "small"}, "before")
    for number in range(most):
        assert await flooding.command("enqueue", {"instruction": "x" * 20_000}, f"f-{number}")
    with pytest.raises(ServerUnavailable, match="wait"):
        await flooding.command("enqueue", {"instruction": "small"}, "refused")
    assert await other.command("enqueue", {"instruction": "small"}, "after")
    state = (await api(conn, f"STREAM.INFO.{ASK_STREAM}"))["state"]
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (1, most + 2, most + 2)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"max_msg_size": 1000}, "send less"),
        ({"max_bytes": 10_000, "discard": "new"}, "max_commands_mb"),
    ],
)
async def test_a_client_is_told_why_its_command_was_not_stored(
    conn: NatsConnection, own: JsonObject, words: str
) -> None:
    narrow: JsonObject = {"name": ASK_STREAM, "subjects": [*ASK_SUBJECTS], "storage": "file", **own}
    assert "error" not in await api(conn, f"STREAM.CREATE.{ASK_STREAM}", narrow)
    client = BridgeClient(conn, ProjectId("demo"), ChannelId("public"))
    commands = [client.command("enqueue", {"instruction": "x" * 5_000}, f"c-{number}") for number in range(9)]
    came = await asyncio.gather(*commands, return_exceptions=True)
    refusals = [each for each in came if isinstance(each, TurnstileError)]
    assert refusals
    assert all(words in str(refusal) for refusal in refusals)


async def test_a_bound_deletes_nothing_and_is_never_lowered(conn: NatsConnection) -> None:
    await declare_streams(conn, gone_seconds=0)
    assert (await config(conn, CMD_STREAM))["max_bytes"] == -1
    for number in range(9):
        await conn.store(f"cg.v1r4.demo.public.cmd.tool.x.{number}", b"x" * 5_000)
    for size, becomes in ((20_000, -1), (100_000, 100_000), (50_000, 100_000), (200_000, 200_000)):
        conn.storage = StreamStorage(commands_bytes=size)
        await declare_streams(conn, gone_seconds=0)
        assert (await config(conn, CMD_STREAM))["max_bytes"] == becomes, size
    assert (await api(conn, f"STREAM.INFO.{CMD_STREAM}"))["state"]["messages"] == 9


async def test_a_server_without_the_room_to_reserve_stores_unbounded(
    conn: NatsConnection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.storage = StreamStorage(commands_bytes=1 << 60)
    await declare_streams(conn, gone_seconds=0)
    assert (await config(conn, CMD_STREAM))["max_bytes"] == -1
    assert "without a bound" in caplog.text


async def consumer(conn: NatsConnection, name: str) -> dict[str, Any]:
    return await api(conn, f"CONSUMER.INFO.{CMD_STREAM}.{name}")


async def test_a_consumer_is_declared_updated_and_kept(conn: NatsConnection) -> None:
    await declare_streams(conn, gone_seconds=0)
    await declare_consumer(conn, "turnstile_t", "cg.v1r4.*.*.cmd.agent.t.wakeup")
    made = await consumer(conn, "turnstile_t")
    expected = {"ack_policy": "explicit", "max_deliver": -1, "max_ack_pending": 1000, "max_waiting": 512}
    assert expected.items() <= made["config"].items()
    assert made["config"]["ack_wait"] == 30_000_000_000
    await declare_consumer(conn, "turnstile_t", "cg.v1r4.*.*.cmd.agent.t.wakeup")
    await declare_consumer(conn, "turnstile_t", "cg.v1r4.*.*.cmd.agent.u.wakeup", ack_wait_seconds=10)
    updated = await consumer(conn, "turnstile_t")
    assert updated["config"]["filter_subject"] == "cg.v1r4.*.*.cmd.agent.u.wakeup"
    assert updated["config"]["ack_wait"] == 10_000_000_000
    assert updated["created"] == made["created"]


@pytest.mark.parametrize("foreign", [{"deliver_subject": "push.here"}, {"ack_policy": "all"}])
async def test_a_consumer_that_cannot_be_updated_is_made_anew(conn: NatsConnection, foreign: JsonObject) -> None:
    await declare_streams(conn, gone_seconds=0)
    subject = "cg.v1r4.p.c.cmd.x.y"
    base: JsonObject = {"durable_name": "turnstile_t", "ack_policy": "explicit", "filter_subject": subject}
    body: JsonObject = {"stream_name": CMD_STREAM, "config": {**base, **foreign}}
    assert "error" not in await api(conn, f"CONSUMER.DURABLE.CREATE.{CMD_STREAM}.turnstile_t", body)
    before = await consumer(conn, "turnstile_t")
    await declare_consumer(conn, "turnstile_t", subject)
    after = await consumer(conn, "turnstile_t")
    assert after["config"]["ack_policy"] == "explicit"
    assert not after["config"].get("deliver_subject")
    assert after["created"] != before["created"]
    await declare_consumer(conn, "turnstile_t", subject)
    assert (await consumer(conn, "turnstile_t"))["created"] == after["created"]


async def test_a_stream_that_vanished_is_not_made_again_at_once(conn: NatsConnection) -> None:
    """One that is made while nats-server still removes the files of the old one loses its own."""
    again = [asyncio.create_task(declare_streams(conn, gone_seconds=0.4)) for _ in range(2)]
    await asyncio.sleep(0.2)
    assert "error" in await api(conn, f"STREAM.INFO.{CMD_STREAM}")
    await asyncio.gather(*again)
    assert (await config(conn, CMD_STREAM))["subjects"] == [*CMD_SUBJECTS]
