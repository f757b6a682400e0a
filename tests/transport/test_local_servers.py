"""Who is told no address finds the NATS of a `turnstile up` nearby, and finds it again where it has moved."""

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.support.nats_server import NatsServer
from tests.support.processes.nats_server import eventually
from turnstile.sdk.tools.service import ToolService
from turnstile.transport.connection import connect
from turnstile.transport.local_servers import find_data, find_nats


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory that a process holds, above the working directory."""
    data = tmp_path / ".turnstile"
    below = tmp_path / "some" / "where"
    below.mkdir(parents=True)
    data.mkdir()
    monkeypatch.chdir(below)
    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield data
    os.close(descriptor)


def announce(data: Path, url: str) -> None:
    """As `up` does."""
    (data / "endpoints.json").write_text(json.dumps({"nats_url": url, "database_url": "postgresql://x"}))


def test_only_what_a_living_process_announces_counts(data: Path, tmp_path: Path) -> None:
    assert find_nats() is None
    announce(data, "nats://127.0.0.1:7")
    assert find_nats() == "nats://127.0.0.1:7"
    (data / "lock").unlink()
    (data / "lock").touch()
    assert find_nats() is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_directory_in_which_others_write_says_nothing_unless_it_is_named(data: Path, mode: int) -> None:
    announce(data, "nats://127.0.0.1:7")
    data.chmod(mode)
    assert find_nats() is None
    assert find_data(data) == data
    data.chmod(0o700)
    (data / "endpoints.json").chmod(0o666)
    assert find_nats() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("what", ["", "endpoints.json"])
def test_a_directory_of_somebody_else_says_nothing_unless_it_is_named(data: Path, what: str) -> None:
    announce(data, "nats://127.0.0.1:7")
    os.chown(data / what, 12345, 12345)
    assert find_nats() is None
    assert find_data(data) == data


async def test_a_server_that_moved_is_found_again(data: Path, server: NatsServer) -> None:
    first, then = NatsServer(), server
    first.start()
    announce(data, first.url)
    conn = await connect(name="test")
    try:
        assert conn.shown == first.url
        heard: list[bytes] = []

        async def hear(msg: object) -> None:
            heard.append(b"x")

        await conn.subscribe("moved", hear)
        announce(data, then.url)
        first.kill()
        await eventually(lambda: conn.shown == then.url and conn.connected.is_set())
        await conn.send("moved", b"x")
        await eventually(lambda: heard)
    finally:
        await conn.close()
        first.remove()


async def test_a_tool_needs_no_address(data: Path, server: NatsServer) -> None:
    service = ToolService("p1")

    @service.tool(target="near", suffix="by")
    async def nearby(text: str) -> str:
        """Say it again."""
        return text

    announce(data, server.url)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(service.run(stop=stop, ready=ready.set))
    async with asyncio.timeout(25):
        await ready.wait()
    stop.set()
    await running


async def test_the_token_of_an_address_that_is_announced_is_in_no_line(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = "d6ec42d35fa1d01ba63a482a"
    caplog.set_level(logging.DEBUG)
    server = NatsServer("--auth", token)
    announce(data, server.url.replace("://", f"://{token}@"))
    waiting = asyncio.create_task(connect(name="test"))
    await asyncio.sleep(0)
    server.start()
    try:
        conn = await asyncio.wait_for(waiting, 25)
        assert conn.shown == server.url
        await conn.close()
    finally:
        server.remove()
    assert token not in caplog.text
