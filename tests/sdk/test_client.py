"""What a project's client hears."""

import asyncio
from contextlib import aclosing

import pytest

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import CHANNEL
from turnstile.schema.errors import BadRequest, ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ProjectId, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.events import TaskEvent
from turnstile.schema.wire.subjects import agent_chunk, agent_event
from turnstile.sdk.client import BridgeClient, WatchEvent
from turnstile.transport.connection import NatsConnection, connect

AGENT = AgentId("a1")


@pytest.fixture
def client(other: NatsConnection, project: ProjectId) -> BridgeClient:
    return BridgeClient(other, project, CHANNEL)


def task(turn: AgentTurnId) -> bytes:
    event = TaskEvent(
        agent_turn_id=turn, status=TurnStatus.SUCCESS, output_box_id=BoxId(uuid7()), deliverable_card_id=CardId("d")
    )
    return event.model_dump_json().encode()


@pytest.mark.parametrize("agent", [AGENT, None])
async def test_watching_skips_what_cannot_be_read(
    conn: NatsConnection, other: NatsConnection, client: BridgeClient, project: ProjectId, agent: AgentId | None
) -> None:
    seen: list[WatchEvent] = []
    async with client.watching(agent, include_chunks=True) as events:
        await other.verify()
        await conn.send(agent_event(project, CHANNEL, AGENT, "state"), b"not json")
        await conn.send(agent_event(project, CHANNEL, AGENT, "state"), b'{"status":"idle"}', headers={"a": "b"})
        await conn.send(agent_chunk(project, CHANNEL, AGENT), b'{"content":"hi"}')
        async for event in events:
            seen.append(event)
            if len(seen) == 2:
                break
    assert {event.suffix for event in seen} == {"state", "chunk"}
    state = next(event for event in seen if event.suffix == "state")
    assert (state.agent_id, state.payload, state.headers) == (AGENT, {"status": "idle"}, {"a": "b"})
    assert not [sub for sub in other.nc._subs.values() if sub.subject.startswith("cg.")]


async def test_waiting_for_a_task_that_ends_at_once(
    conn: NatsConnection, other: NatsConnection, client: BridgeClient, project: ProjectId
) -> None:
    async with client.wait_task(AGENT) as waiter:
        await other.verify()
        for turn in ("t1", "t2"):
            await conn.send(
                agent_event(project, CHANNEL, AGENT, "task"), task(AgentTurnId(turn)), headers={"CG-Version": "v1r4"}
            )
        assert (await waiter.wait(AgentTurnId("t2"), 25)).status is TurnStatus.SUCCESS
        assert (await waiter.wait(AgentTurnId("t1"), 25)).agent_turn_id == "t1"
        with pytest.raises(TimeoutError):
            await waiter.wait(AgentTurnId("t3"), 0.01)


async def test_a_closed_connection_ends_the_watch(server: NatsServer, project: ProjectId) -> None:
    conn = await connect(server.url, name="watcher")
    client = BridgeClient(conn, project, CHANNEL)

    async def watch() -> None:
        async with aclosing(client.watch()) as events:
            async for _ in events:
                pass

    watching = asyncio.create_task(watch())
    await conn.verify()
    await conn.close()
    with pytest.raises(ServerUnavailable):
        await asyncio.wait_for(watching, 25)


async def test_a_request_that_would_close_the_connection(client: BridgeClient) -> None:
    with pytest.raises(BadRequest, match="at most"):
        await client.request("enqueue", {"instruction": "x" * 2_000_000})
