"""Durable commands: answered once, whatever is delivered twice, deferred or unreadable."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from tests.support.processes.nats_server import CHANNEL, eventually
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.serving.durable_commands import DurableCommands
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.schema.base import Reply
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, ProjectId, uuid7
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.headers import (
    CHANNEL_ID,
    MSG_TYPE,
    PROJECT_ID,
    TRACEPARENT,
    new_traceparent,
    trace_id,
)
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.sdk.client import BridgeClient, WatchEvent
from turnstile.transport.connection import NatsConnection
from turnstile.transport.durable import deferred


class DatabaseAway(Exception):
    """What a driver might raise."""


class FailingPublisher(NatsPublisher):
    """Fails as often as told, after the message was stored."""

    failures = 0

    async def publish(self, messages: Sequence[Message]) -> None:
        await super().publish(messages)
        if self.failures:
            self.failures -= 1
            raise ServerUnavailable("the acknowledgement was lost")


class Bridge:
    """Durable verbs of a test, what ran, and what was answered in the project's channel."""

    def __init__(self, conn: NatsConnection) -> None:
        self.ran: list[VerbRequest] = []
        self.away = 0
        self.slow: ProjectId | None = None
        """Commands of this project are answered only after `quick` is set."""
        self.quick = asyncio.Event()
        self.publisher = FailingPublisher(conn)
        self.bugs = 0
        verbs = {"enqueue": self.enqueue, "large": self.large}
        self.commands = DurableCommands(conn, verbs, self.publisher, unavailable=(DatabaseAway,), failures=2)
        self.events: list[WatchEvent] = []
        self.stop = asyncio.Event()

    async def enqueue(self, request: VerbRequest) -> Reply:
        self.ran.append(request)
        if request.project_id == self.slow:
            await self.quick.wait()
        if self.away:
            self.away -= 1
            raise DatabaseAway
        if self.bugs:
            self.bugs -= 1
            raise KeyError("nobody knows why")
        return EnqueueReply(status=ReplyStatus.ACCEPTED, agent_turn_id=AgentTurnId("t1"), turn_epoch=3)

    async def large(self, request: VerbRequest) -> Reply:
        self.ran.append(request)
        return Reply(status=ReplyStatus.ACCEPTED, error="x" * 1_048_000)

    async def watch(self, client: BridgeClient) -> None:
        async for event in client.watch():
            self.events.append(event)


@pytest.fixture
def client(other: NatsConnection, project: ProjectId) -> BridgeClient:
    return BridgeClient(other, project, CHANNEL)


@pytest.fixture
async def bridge(conn: NatsConnection, other: NatsConnection, client: BridgeClient) -> AsyncIterator[Bridge]:
    bridge = Bridge(conn)
    watching = asyncio.create_task(bridge.watch(client))
    running = asyncio.create_task(bridge.commands.run(bridge.stop))
    await eventually(lambda: len(other.nc._subs) >= 1)
    await other.verify()
    yield bridge
    bridge.quick.set()
    bridge.stop.set()
    async with asyncio.timeout(25):
        await running
    watching.cancel()


@pytest.fixture
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is deferred comes again after a tenth of its time."""
    nak = Msg.nak

    async def nak_soon(msg: Msg, delay: float | None = None) -> None:
        await nak(msg, delay=None if delay is None else delay / 10)

    monkeypatch.setattr(Msg, "nak", nak_soon)


async def pending(conn: NatsConnection) -> dict[str, Any]:
    answer = await conn.request(f"$JS.API.CONSUMER.INFO.{subjects.ASK_STREAM}.turnstile_bridge_verbs", b"", timeout=2)
    return cast("dict[str, Any]", json.loads(answer.data))


async def settled(conn: NatsConnection) -> None:
    """Wait until no command is waiting or unsettled."""
    async with asyncio.timeout(25):
        while (info := await pending(conn))["num_ack_pending"] or info["num_pending"]:  # noqa: ASYNC110 - the server's
            await asyncio.sleep(0.005)


async def test_a_command_is_answered_with_its_request_id(
    bridge: Bridge, client: BridgeClient, other: NatsConnection, project: ProjectId
) -> None:
    trace = new_traceparent()
    assert await client.command("enqueue", {"agent_id": "a1"}, "r-1", {TRACEPARENT: trace})
    await eventually(lambda: bridge.events)
    await settled(other)
    [event] = bridge.events
    assert event.suffix == "enqueue_ack"
    assert event.payload["request_id"] == "r-1"
    assert (event.payload["status"], event.payload["agent_turn_id"]) == ("accepted", "t1")
    assert (event.headers[PROJECT_ID], event.headers[CHANNEL_ID]) == (project, CHANNEL)
    assert (event.headers[MSG_TYPE], event.headers["CG-Turn-Epoch"]) == ("enqueue_ack", "3")
    assert trace_id(event.headers[TRACEPARENT]) == trace_id(trace)
    [request] = bridge.ran
    assert request.payload.read() == {"agent_id": "a1"}
    assert request.source == "command"


async def test_a_repeated_command_is_stored_once(bridge: Bridge, client: BridgeClient, other: NatsConnection) -> None:
    assert await client.command("enqueue", {}, "r-2")
    assert not await client.command("enqueue", {}, "r-2")
    await settled(other)
    assert len(bridge.ran) == 1


@pytest.mark.usefixtures("sooner")
async def test_a_redelivery_is_not_answered_twice(bridge: Bridge, client: BridgeClient, other: NatsConnection) -> None:
    bridge.publisher.failures = 1
    await client.command("enqueue", {}, "r-3")
    await eventually(lambda: len(bridge.ran) == 2)
    await settled(other)
    assert len(bridge.events) == 1
    assert bridge.ran[0].command_id == bridge.ran[1].command_id is not None
    assert bridge.publisher.counts.duplicates == 1


async def test_a_database_that_is_away_defers(bridge: Bridge, client: BridgeClient, other: NatsConnection) -> None:
    bridge.away = 1
    started = asyncio.get_running_loop().time()
    await client.command("enqueue", {}, "r-4")
    await eventually(lambda: bridge.ran)
    assert not bridge.events
    await eventually(lambda: bridge.events)
    assert asyncio.get_running_loop().time() - started >= 2
    await settled(other)
    assert [event.payload["status"] for event in bridge.events] == ["accepted"]


@pytest.mark.usefixtures("sooner")
async def test_a_failure_that_nobody_knows_is_tried_again(
    bridge: Bridge, client: BridgeClient, other: NatsConnection
) -> None:
    """A bridge of another version may be able to, or this one a little later: the command was accepted."""
    bridge.away = bridge.bugs = 1
    await client.command("enqueue", {}, "r-bug-1")
    await eventually(lambda: bridge.events, timeout=25)
    await settled(other)
    assert [event.payload["status"] for event in bridge.events] == ["accepted"]
    assert len(bridge.ran) == 3


@pytest.mark.usefixtures("sooner")
async def test_a_command_that_always_fails_is_given_up_aloud(
    bridge: Bridge, client: BridgeClient, other: NatsConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """Answered, logged with its place, and still in the stream."""
    bridge.bugs = 3
    await client.command("enqueue", {"agent_id": "a1"}, "r-bug-2")
    await eventually(lambda: bridge.events)
    await settled(other)
    [event] = bridge.events
    assert (event.payload["status"], event.payload["error_code"]) == ("error", "internal_error")
    assert (len(bridge.ran), event.payload["request_id"]) == (2, "r-bug-2")
    [told] = [record.getMessage() for record in caplog.records if "given up" in record.getMessage()]
    place = int(told.partition("message ")[2].split()[0])
    kept = await other.js.get_msg(subjects.ASK_STREAM, place)
    assert json.loads(kept.data or b"") == {"agent_id": "a1", "request_id": "r-bug-2"}


async def test_a_flood_is_refused_and_loses_nobody_elses_command(
    bridge: Bridge, client: BridgeClient, other: NatsConnection
) -> None:
    """Others' commands are answered while the flood goes on, and its client may go on as its own are answered."""
    most = (await other.js.stream_info(subjects.ASK_STREAM)).config.max_msgs_per_subject or 0
    bridge.slow = ProjectId(f"flood-{uuid7()}")
    flooding = BridgeClient(other, bridge.slow, CHANNEL)
    stored = await asyncio.gather(*(flooding.command("enqueue", {}, f"f-{number}") for number in range(most)))
    assert stored == [True] * most
    with pytest.raises(ServerUnavailable, match="this one was not stored: try again when bridges have answered"):
        await flooding.command("enqueue", {}, "refused")
    assert await client.command("enqueue", {}, "mine")
    bridge.quick.set()
    more = 0
    while not bridge.events:
        try:
            more += await flooding.command("enqueue", {}, f"more-{more}")
        except ServerUnavailable:
            await asyncio.sleep(0.01)
    assert bridge.events[0].payload["request_id"] == "mine"
    assert await flooding.command("enqueue", {}, "refused")
    await settled(other)
    assert len({request.command_id for request in bridge.ran}) == most + more + 2
    async with asyncio.timeout(25):
        while await left(other, bridge.slow):  # noqa: ASYNC110 - the server's
            await asyncio.sleep(0.005)


async def left(conn: NatsConnection, project: ProjectId) -> dict[str, int] | None:
    """The project's commands in their stream."""
    info = await conn.js.stream_info(subjects.ASK_STREAM, subjects_filter=subjects.project_filter(project))
    return info.state.subjects


@pytest.mark.parametrize("payload", [b"not json", b"[1]", b"[" * 100_000, b'{"a":"\\ud800"}', b"\xff"])
async def test_the_unreadable_is_answered_and_terminated(
    bridge: Bridge, other: NatsConnection, project: ProjectId, payload: bytes
) -> None:
    await other.store(subjects.bridge_command(project, CHANNEL, "enqueue"), payload, headers={"Nats-Msg-Id": uuid7()})
    await eventually(lambda: bridge.events)
    await settled(other)
    [event] = bridge.events
    assert (event.payload["status"], event.payload["error_code"]) == ("rejected", "bad_request")
    assert not bridge.ran


async def test_a_stranger_subject_is_terminated_unanswered(bridge: Bridge, other: NatsConnection) -> None:
    await other.store("cg.v1r4.p$.c.cmd.sys.bridge.enqueue", b"{}")
    await settled(other)
    assert not bridge.events
    assert not bridge.ran


async def test_a_large_answer_is_replaced(bridge: Bridge, client: BridgeClient) -> None:
    await client.command("large", {}, "r-5")
    await eventually(lambda: bridge.events)
    assert bridge.events[0].payload["error_code"] == "result_too_large"
    assert bridge.events[0].payload["request_id"] == "r-5"


def test_delays_grow_from_2_to_30_seconds() -> None:
    assert [deferred(count).delay for count in (1, 2, 3, 4, 5, 6, 1000)] == [2, 4, 8, 16, 30, 30, 30]
