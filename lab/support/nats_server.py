"""A real nats-server on a free port, which may be killed with SIGKILL and started again, and a cluster of three."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from lab.support.proxy import Proxy
from turnstile.embedded.ports import free_port


class NatsServer:
    """nats-server with JetStream, its data kept between a kill and the next start."""

    def __init__(self, *options: str) -> None:
        self._binary = Path(sys.executable).with_name("nats-server")
        self._options = options
        self._store = tempfile.mkdtemp(prefix="turnstile-nats-")
        self._process: subprocess.Popen[bytes] | None = None
        self.sync_interval = ""
        """When it writes what it stores, in the words of its configuration; its default, if empty."""
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        """The directory of its data."""
        return Path(self._store)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def write_config(self, text: str) -> str:
        path = Path(self._store) / "nats.conf"
        path.write_text(text)
        return str(path)

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        listen = ["-a", "127.0.0.1", "-p", str(self.port), "-sd", self._store, "-js"]
        if self.sync_interval:
            listen += ["-c", self.write_config(f"jetstream {{ sync_interval: {self.sync_interval} }}")]
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

    def stop(self) -> None:
        """SIGTERM; returns when it has ended."""
        assert self._process is not None
        self._process.terminate()
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
        Path(self._store).mkdir()

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
    """Three of them that replicate streams to each other, and write what they acknowledge.

    `roads` are the ports by which one reaches another, such as those of proxies; by default each is reached directly.
    """

    def __init__(self, roads: Callable[[int, int], int] | None = None) -> None:
        self.routes = [free_port() for _ in range(3)]
        self.servers = [self._server(number, roads or (lambda _, there: self.routes[there])) for number in range(3)]

    @property
    def url(self) -> str:
        """The addresses of all."""
        return ",".join(server.url for server in self.servers)

    def named(self, name: str) -> NatsServer:
        """The server of this name, as JetStream names its leaders."""
        return self.servers[int(name.removeprefix("n"))]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def remove(self) -> None:
        for server in self.servers:
            server.remove()

    def _server(self, number: int, road: Callable[[int, int], int]) -> NatsServer:
        others = ",".join(f"nats://127.0.0.1:{road(number, there)}" for there in range(3) if there != number)
        here = f"nats://127.0.0.1:{self.routes[number]}"
        # advertised to the others as an address where nobody listens, so that they keep to the roads
        advertised = ("--cluster_advertise", f"127.0.0.1:{free_port()}")
        server = NatsServer(
            "--name", f"n{number}", "--cluster_name", "test", "--cluster", here, "--routes", others, *advertised
        )
        server.sync_interval = "always"
        return server


@asynccontextmanager
async def divisible_cluster() -> AsyncGenerator[tuple[NatsCluster, Callable[[int], list[Proxy]]]]:
    """A cluster that runs, with a proxy for each road; the function returns those from and to a server."""
    cluster: NatsCluster
    proxies = {
        (here, there): Proxy(lambda there=there: cluster.routes[there])
        for here in range(3)
        for there in range(3)
        if here != there
    }
    for proxy in proxies.values():
        await proxy.start()
    cluster = NatsCluster(lambda here, there: proxies[here, there].port)
    try:
        await asyncio.to_thread(cluster.start)
        yield cluster, lambda number: [proxy for pair, proxy in proxies.items() if number in pair]
    finally:
        cluster.remove()
        for proxy in proxies.values():
            await proxy.close()
