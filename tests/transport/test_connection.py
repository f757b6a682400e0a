"""Connecting, reconnecting, refusals, and ends that do not hang."""

import asyncio

import nats.errors
import pytest
from nats.aio.msg import Msg

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import eventually
from turnstile.schema.errors import ConfigError
from turnstile.transport.connection import connect


async def test_waits_for_a_server_and_names_it_without_the_password() -> None:
    server = NatsServer()
    said: list[str] = []
    url = server.url.replace("nats://", "nats://me:s3cret@")
    waiting = asyncio.create_task(connect(url, name="test", on_wait=said.append))
    try:
        await eventually(lambda: said)
        assert f"nats://127.0.0.1:{server.port}" in said[0]
        assert "s3cret" not in said[0]
        server.start()
        conn = await asyncio.wait_for(waiting, 25)
        assert conn.max_payload == 1_048_576
        await conn.verify()
        await conn.close()
    finally:
        server.remove()


async def test_cancelled_waiting_ends_cleanly() -> None:
    server = NatsServer()  # never started
    waiting = asyncio.create_task(connect(server.url, name="test", on_wait=lambda _: None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.remove()


async def test_login_and_refusals() -> None:
    server = NatsServer("--user", "me", "--pass", "p@ss")
    server.start()
    try:
        with pytest.raises(ConfigError, match="refuses the login"):
            await connect(server.url.replace("://", "://me:wrong@"), name="test")
        conn = await connect(server.url.replace("://", "://me:p%40ss@"), name="test")
        await conn.drain()
        assert conn.closed.is_set()
        await conn.close()
    finally:
        server.remove()


async def test_a_request_ends_with_its_connection() -> None:
    server = NatsServer()
    server.start()
    try:
        conn = await connect(server.url, name="test")
        asked = asyncio.Event()

        async def keep_silent(_: Msg) -> None:
            asked.set()

        await conn.subscribe("question", keep_silent)
        waiting = asyncio.create_task(conn.request("question", b"", timeout=600))
        await asyncio.wait_for(asked.wait(), 25)
        await conn.close()
        with pytest.raises(nats.errors.ConnectionClosedError):
            await asyncio.wait_for(waiting, 25)
    finally:
        server.remove()


@pytest.mark.parametrize(
    ("login", "asked", "given", "inbox"),
    [
        ("", "", None, "_INBOX."),
        ("me:p@", "", None, "_INBOX_me."),
        ("me.too:p@", "", None, "_INBOX."),  # no token: permissions could not name it
        ("token@", "", None, "_INBOX."),
        ("me:p@", "?inbox_prefix=_INBOX_us", None, "_INBOX_us."),
        ("me:p@", "?inbox_prefix=_INBOX_us", "_INBOX_mine", "_INBOX_mine."),
    ],
)
async def test_answers_come_to_an_inbox_of_the_user(
    server: NatsServer, login: str, asked: str, given: str | None, inbox: str
) -> None:
    conn = await connect(server.url.replace("://", f"://{login}") + asked, name="test", inbox_prefix=given)
    assert conn.nc.new_inbox().startswith(inbox)
    await conn.close()


@pytest.mark.parametrize("url", ["http://x:1", "nats://", "nats://h:port"])
async def test_a_bad_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match=r"nats\.servers"):
        await connect(url, name="test")


async def test_a_refused_subject_is_fatal_at_start() -> None:
    server = NatsServer()
    config = server.write_config(
        'authorization { users: [{user: a, password: b, permissions: {subscribe: ["ok.>"]}}] }'
    )
    server.start("-c", config)
    try:
        conn = await connect(server.url.replace("://", "://a:b@"), name="test", inbox_prefix="ok.inbox")

        async def ignore(_: object) -> None:
            return

        await conn.subscribe("ok.x", ignore)
        await conn.verify()
        await conn.subscribe("forbidden.x", ignore)
        with pytest.raises(ConfigError, match="forbidden"):
            await conn.verify()
        await conn.drain()
    finally:
        server.remove()


async def test_reconnects_and_tells(server: NatsServer) -> None:
    conn = await connect(server.url, name="test")
    told: list[bool] = []
    forget = conn.listen(lambda: told.append(conn.connected.is_set()))
    server.kill()
    await eventually(lambda: told == [False])
    server.start()
    await eventually(lambda: told == [False, True])
    assert conn.reconnects == 1
    server.kill()
    await eventually(lambda: not conn.connected.is_set())
    forget()
    async with asyncio.timeout(25):
        await conn.drain()  # while reconnecting
    assert conn.closed.is_set()
    server.start()
