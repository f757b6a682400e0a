"""A NATS server for each module of tests, with connections to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from lab.support.nats_server import NatsServer
from turnstile.schema.ids import ChannelId, ProjectId, uuid7
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.streams import declare_streams

CHANNEL = ChannelId("c1")


async def eventually(condition: Callable[[], object], timeout: float = 25.0) -> None:
    """Wait until `condition()` is true."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - conditions lie in servers and callbacks, which set no event
            await asyncio.sleep(0.002)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    server = NatsServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
async def conn(server: NatsServer) -> AsyncIterator[NatsConnection]:
    conn = await connect(server.url, name="test")
    await declare_streams(conn, gone_seconds=0)
    yield conn
    await conn.close()


@pytest.fixture
async def other(server: NatsServer) -> AsyncIterator[NatsConnection]:
    conn = await connect(server.url, name="other")
    yield conn
    await conn.close()


@pytest.fixture
def project() -> ProjectId:
    """A project of this test alone."""
    return ProjectId(f"p-{uuid7()}")
