"""The continuous pull: at once, folded, and back after whatever happens to the server."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from nats.aio.msg import Msg

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import CHANNEL, eventually
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import ProjectId, uuid7
from turnstile.schema.wire.subjects import CMD_STREAM, wakeup
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import declare_wakeups, wakeup_consumer


class Listener:
    """A pull of one worker target whose handler acknowledges and remembers."""

    def __init__(self, conn: NatsConnection, project: ProjectId, batch: int = 256) -> None:
        self.target = f"t-{uuid7()}"
        self.subject = wakeup(project, CHANNEL, self.target)
        self.batches: list[list[bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.stop = asyncio.Event()
        consumer = wakeup_consumer(self.target)
        self.pull = ContinuousPull(conn, CMD_STREAM, consumer, partial(declare_wakeups, conn, self.target), batch=batch)

    @property
    def heard(self) -> list[bytes]:
        return [data for batch in self.batches for data in batch]

    async def handle(self, batch: list[Msg]) -> None:
        self.batches.append([msg.data for msg in batch])
        await self.gate.wait()
        for msg in batch:
            await msg.ack()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        task = asyncio.create_task(self.pull.run(self.handle, self.stop))
        yield task
        self.stop.set()
        async with asyncio.timeout(25):
            await task


async def store(conn: NatsConnection, subject: str, data: bytes = b"{}") -> None:
    """Publish, again and again while the stream is away, under one id: what was stored unheard of is stored once."""
    told = {"Nats-Msg-Id": uuid7()}
    async with asyncio.timeout(25):
        while True:
            try:
                await conn.store(subject, data, headers=told, timeout=0.5)
            except Exception:  # noqa: BLE001 - whatever a broken server does, the test goes on
                await asyncio.sleep(0.01)
            else:
                return


async def ring(listener: Listener, conn: NatsConnection, data: bytes = b"{}") -> float:
    """Seconds from the publish to the handler."""
    before = len(listener.heard)
    started = time.perf_counter()
    await store(conn, listener.subject, data)
    await eventually(lambda: len(listener.heard) > before)
    return time.perf_counter() - started


def at_once(seconds: list[float]) -> bool:
    """Whether nobody waits for a look now and then: a busy machine delays some, and not nine of ten."""
    return sorted(seconds)[len(seconds) // 10] < 0.05


async def consumer_of(conn: NatsConnection, listener: Listener) -> dict[str, Any]:
    """The state of the listener's consumer, as the server tells it."""
    subject = f"$JS.API.CONSUMER.INFO.{CMD_STREAM}.{wakeup_consumer(listener.target)}"
    return json.loads((await conn.request(subject, b"", timeout=2)).data)


async def test_a_single_doorbell_is_handed_on_at_once(
    conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        await ring(listener, other)
        seconds = [await ring(listener, other) for _ in range(100)]
    assert at_once(seconds), seconds
    assert listener.pull.rebuilds == 0


async def test_what_arrives_meanwhile_is_the_next_batch(
    conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        listener.gate.clear()
        await ring(listener, other, b"first")
        for number in range(50):
            await store(other, listener.subject, str(number).encode())
        await eventually(lambda: len(listener.pull._arrived) == 50)  # the server sends on after it has acknowledged
        assert len(listener.batches) == 1
        listener.gate.set()
        await eventually(lambda: len(listener.heard) == 51)
    assert [len(batch) for batch in listener.batches] == [1, 50]


async def test_never_more_than_two_batches_are_held(
    conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project, batch=10)
    async with listener.running():
        listener.gate.clear()
        await asyncio.gather(*(store(other, listener.subject) for _ in range(200)))
        await eventually(lambda: listener.batches)
        await conn.verify()
        assert len(listener.pull._arrived) <= 20
        listener.gate.set()
        await eventually(lambda: len(listener.heard) == 200)
    assert max(map(len, listener.batches)) == 10
    assert listener.pull.rebuilds == 0


async def test_a_thousand_doorbells_need_no_rebuild(
    conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        await asyncio.gather(*(store(other, listener.subject) for _ in range(1000)))
        await eventually(lambda: len(listener.heard) == 1000)
    assert listener.pull.rebuilds == 0


async def test_a_failing_handler_does_not_end_the_pull(
    conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    handle = listener.handle

    async def failing(batch: list[Msg]) -> None:
        await handle(batch)
        if batch[0].data == b"bad":
            raise ValueError("handler")

    listener.handle = failing
    async with listener.running():
        await ring(listener, other, b"bad")
        await ring(listener, other, b"good")
    assert listener.heard == [b"bad", b"good"]


async def test_back_after_kill_and_restart(
    server: NatsServer, conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        await ring(listener, other)
        server.kill()
        await eventually(lambda: not conn.connected.is_set() and not other.connected.is_set())
        server.start()
        await eventually(other.connected.is_set)
        back = await ring(listener, other)
        assert back < 3
        print(f"back after kill -9: {back * 1e3:.0f} ms")  # noqa: T201 - shown with -s
        seconds = [await ring(listener, other) for _ in range(20)]
        assert at_once(seconds), seconds
    assert 1 <= listener.pull.rebuilds <= 3


async def test_back_after_silence(
    server: NatsServer, conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        await ring(listener, other)
        server.pause()
        try:
            await eventually(lambda: listener.pull.rebuilds > 0)
        finally:
            server.resume()
        await ring(listener, other)
        assert await ring(listener, other) < 3


@pytest.mark.parametrize("gone", ["CONSUMER.DELETE.{stream}.{consumer}", "STREAM.DELETE.{stream}"])
async def test_back_after_a_deletion(
    conn: NatsConnection, other: NatsConnection, project: ProjectId, gone: str
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        await ring(listener, other)
        subject = gone.format(stream=CMD_STREAM, consumer=wakeup_consumer(listener.target))
        await other.request(f"$JS.API.{subject}", b"", timeout=2)
        back = await ring(listener, other, b"after")
        assert back < 3
        print(f"back after {gone.split('{', maxsplit=1)[0]}: {back * 1e3:.0f} ms")  # noqa: T201 - shown with -s
        await eventually(lambda: b"after" in listener.heard)
    assert listener.pull.rebuilds >= 1


async def test_stops_by_its_flag_with_nothing_left_behind(
    conn: NatsConnection, other: NatsConnection, project: ProjectId
) -> None:
    listener = Listener(conn, project)
    async with listener.running():
        listener.gate.clear()
        await ring(listener, other, b"1")
        await store(other, listener.subject, b"2")
        await eventually(lambda: listener.pull._arrived)  # what is not sent on yet is left to another replica
        listener.stop.set()
        listener.gate.set()
    assert listener.heard == [b"1", b"2"]
    await conn.verify()
    async with asyncio.timeout(25):  # the server takes acknowledgements after it has read them
        while (await consumer_of(other, listener))["num_ack_pending"]:  # noqa: ASYNC110 -- the server sets no event
            await asyncio.sleep(0.01)


async def test_a_connection_closed_for_good_ends_it(server: NatsServer, project: ProjectId) -> None:
    conn = await connect(server.url, name="test")
    listener = Listener(conn, project)
    task = asyncio.create_task(listener.pull.run(listener.handle, listener.stop))
    await eventually(lambda: listener.pull._changed.is_set() or conn.nc.stats["out_msgs"] > 3)
    await conn.close()
    with pytest.raises(ServerUnavailable, match="closed"):
        await asyncio.wait_for(task, 25)
