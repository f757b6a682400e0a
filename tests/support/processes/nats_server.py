"""A real nats-server on a free port, that tests may kill -9 and start again."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from turnstile.schema.ids import ChannelId, ProjectId, uuid7
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.streams import declare_streams

CHANNEL = ChannelId("c1")


def unused_port() -> int:
    """A port that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class NatsServer:
    """nats-server with JetStream, its data kept between a kill and the next start."""

    def __init__(self, *options: str) -> None:
        self._binary = Path(sys.executable).with_name("nats-server")
        self._options = options
        self._store = tempfile.mkdtemp(prefix="turnstile-nats-")
        self._process: subprocess.Popen[bytes] | None = None
        self.port = unused_port()
        self.url = f"nats://127.0.0.1:{self.port}"

    def write_config(self, text: str) -> str:
        path = Path(self._store) / "nats.conf"
        path.write_text(text)
        return str(path)

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        listen = ["-a", "127.0.0.1", "-p", str(self.port), "-sd", self._store, "-js"]
        self._process = subprocess.Popen(
            [self._binary, *listen, *self._options, *options],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not self._accepts():
            if time.monotonic() > deadline:
                raise TimeoutError("nats-server does not start")
            time.sleep(0.005)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Remove its data, while it is down."""
        assert self._process is None
        shutil.rmtree(self._store)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._store, ignore_errors=True)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=0.2).close()
        except OSError:
            return False
        return True


class NatsCluster:
    """Three of them that replicate streams to each other."""

    def __init__(self) -> None:
        routes = [unused_port() for _ in range(3)]
        others = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        self.servers = [
            NatsServer(
                *("--name", f"n{number}", "--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{port}"),
                *("--routes", others),
            )
            for number, port in enumerate(routes)
        ]

    @property
    def url(self) -> str:
        """The addresses of all."""
        return ",".join(server.url for server in self.servers)

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def remove(self) -> None:
        for server in self.servers:
            server.remove()


async def eventually(condition: Callable[[], object], timeout: float = 8.0) -> None:
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
