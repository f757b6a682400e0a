"""The publisher: stored once, in order, and honest about a server that is away."""

import asyncio
import time

import pytest
from nats.aio.msg import Msg

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import CHANNEL, eventually
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.schema.errors import BadRequest, ServerUnavailable
from turnstile.schema.ids import AgentId, ProjectId, uuid7
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.headers import MSG_ID
from turnstile.schema.wire.subjects import ASK_STREAM, CMD_STREAM, EVT_STREAM, agent_chunk, agent_event, wakeup
from turnstile.transport.connection import NatsConnection

AGENT = AgentId("a1")
STREAMS = (CMD_STREAM, EVT_STREAM)


@pytest.fixture
async def heard(other: NatsConnection, project: ProjectId) -> list[Msg]:
    messages: list[Msg] = []

    async def on_message(msg: Msg) -> None:
        messages.append(msg)

    await other.subscribe(f"cg.v1r4.{project}.>", on_message)
    await other.verify()
    return messages


def event(project: ProjectId, payload: bytes = b"{}", *, required: bool = False, **headers: str) -> Message:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Message(agent_event(project, CHANNEL, AGENT, "task"), payload, sent, required)


async def test_messages_keep_their_order_and_headers(
    conn: NatsConnection, heard: list[Msg], project: ProjectId
) -> None:
    publisher = NatsPublisher(conn)
    await publisher.publish([event(project, str(n).encode(), required=n % 2 == 0, CG_Step=str(n)) for n in range(200)])
    await eventually(lambda: len(heard) == 200)
    assert [msg.data for msg in heard] == [str(n).encode() for n in range(200)]
    assert (heard[7].headers or {})["CG-Step"] == "7"
    assert (publisher.counts.stored, publisher.counts.unconfirmed) == (100, 100)


async def test_a_duplicate_is_success(conn: NatsConnection, project: ProjectId) -> None:
    publisher = NatsPublisher(conn)
    message = Message(agent_event(project, CHANNEL, AGENT, "task"), b"{}", {MSG_ID: f"task-{uuid7()}"}, required=True)
    await publisher.publish([message])
    await publisher.publish([message])
    assert (publisher.counts.stored, publisher.counts.duplicates) == (2, 1)


async def test_server_down_raises_and_recovers(
    server: NatsServer, conn: NatsConnection, other: NatsConnection, heard: list[Msg], project: ProjectId
) -> None:
    publisher = NatsPublisher(conn, give_up_seconds=0.3)
    server.kill()
    await eventually(lambda: not conn.connected.is_set())
    await publisher.publish([event(project, b"buffered")])  # best effort does not wait
    assert publisher.counts.unconfirmed == 1
    await publisher.emit(event(project, b"lost"))
    assert publisher.counts.lost == 1
    with pytest.raises(ServerUnavailable):
        await publisher.publish([event(project, b"required", required=True)])
    patient = NatsPublisher(conn)
    waiting = asyncio.create_task(patient.publish([event(project, b"patient", required=True)]))
    server.start()
    await eventually(other.connected.is_set)
    await waiting
    assert patient.counts.stored == 1
    await publisher.publish([event(project, b"after", required=True)])
    await eventually(lambda: any(msg.data == b"after" for msg in heard))


async def test_one_that_does_not_wait_leaves_nothing_for_the_reconnect(
    server: NatsServer, conn: NatsConnection, other: NatsConnection, heard: list[Msg], project: ProjectId
) -> None:
    publisher = NatsPublisher(conn, give_up_seconds=0)
    server.kill()
    await eventually(lambda: not conn.connected.is_set())
    started = time.monotonic()
    with pytest.raises(ServerUnavailable, match="acknowledged no message"):
        await publisher.publish([event(project, b"required", required=True), event(project, b"best effort")])
    assert time.monotonic() - started < 8  # less than the ten seconds in which another publisher sends it again
    server.start()
    await eventually(lambda: conn.connected.is_set() and other.connected.is_set())
    await publisher.publish([event(project, b"again", required=True)])
    await eventually(lambda: heard[-1:] and heard[-1].data == b"again")
    assert b"required" not in [msg.data for msg in heard]


async def test_oversized_messages_are_never_sent(conn: NatsConnection, heard: list[Msg], project: ProjectId) -> None:
    publisher = NatsPublisher(conn)
    large = b"x" * (conn.max_payload - 100)
    with pytest.raises(BadRequest, match="too many"):
        await publisher.publish([event(project, large, required=True), event(project, b"small")])
    await publisher.publish([event(project, large)])
    await publisher.emit(event(project, large))
    await eventually(lambda: heard)
    assert [msg.data for msg in heard] == [b"small"]
    assert publisher.counts.lost == 3
    assert conn.connected.is_set()


async def test_a_malformed_required_message_is_a_bad_request(conn: NatsConnection) -> None:
    with pytest.raises(BadRequest):
        await NatsPublisher(conn).publish([Message("no good", b"{}", required=True)])


async def test_chunks_are_emitted(conn: NatsConnection, heard: list[Msg], project: ProjectId) -> None:
    publisher = NatsPublisher(conn)
    for number in range(10):
        await publisher.emit(Message(agent_chunk(project, CHANNEL, AGENT), str(number).encode()))
    await eventually(lambda: len(heard) == 10)
    assert publisher.counts.emitted == 10


async def test_no_stream_is_server_unavailable(conn: NatsConnection) -> None:
    publisher = NatsPublisher(conn, give_up_seconds=0.2)
    with pytest.raises(ServerUnavailable):
        await publisher.publish([Message("nobody.stores.this", b"{}", required=True)])
    assert publisher.counts.lost == 1


@pytest.mark.parametrize("stream", STREAMS)
async def test_a_deleted_stream_is_declared_again(conn: NatsConnection, project: ProjectId, stream: str) -> None:
    """Nobody else notices that the event stream is gone: its consumers are strangers'."""
    publisher = NatsPublisher(conn)
    await conn.js.delete_stream(stream)
    ring = Message(wakeup(project, CHANNEL, "w"), b"{}", required=True)
    await asyncio.gather(*(publisher.publish([event(project, required=True), ring, event(project)]) for _ in range(5)))
    assert (publisher.counts.stored, publisher.counts.lost) == (10, 0)
    assert {each.config.name for each in await conn.js.streams_info()} == {*STREAMS, ASK_STREAM}


async def test_best_effort_is_not_waited_for(conn: NatsConnection) -> None:
    publisher = NatsPublisher(conn)
    async with asyncio.timeout(15):  # ten acknowledgements would be waited for 20 seconds
        for _ in range(10):
            await publisher.publish([Message("nobody.stores.this", b"{}")])
    assert (publisher.counts.unconfirmed, publisher.counts.lost) == (10, 0)
