"""A gateway in a process of its own, what it uses, and clients of it in other processes."""

import asyncio
import resource
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from lab.bench.children import TURNSTILE, BenchError, Child, child
from lab.bench.environment import Environment
from lab.bench.gateway.clients import Answers, Readers
from lab.bench.proc import cpu_seconds, resident_mb
from lab.bench.system import System
from turnstile.ledger.access.tokens import add_token
from turnstile.schema.access import GatewayRole

_POLL_SECONDS = 0.5
_FILES = 65_536


@dataclass(frozen=True)
class GatewayProcess:
    """A gateway that serves, and a token of the measured project."""

    environment: Environment
    process: Child
    url: str
    token: str

    def cpu(self) -> float:
        """CPU seconds since it began; raises `BenchError` if it has ended."""
        self.process.check()
        return cpu_seconds(self.process.pid)

    def memory_mb(self) -> float:
        """Resident memory now."""
        return resident_mb([self.process.pid])


@asynccontextmanager
async def open_gateway(system: System) -> AsyncGenerator[GatewayProcess]:
    """Start a gateway for the system's project; open files are raised to what this user may have."""
    allow_files()
    environment = system.environment
    gateway_settings = {
        "requests_per_second": 0.0,
        "slow_reader_seconds": environment.plan.slow_seconds,
    }  # all clients: one token
    config, _ = environment.config("gateway", {"gateway": gateway_settings})
    secret, _ = await environment.pool.run(lambda conn: add_token(conn, system.project, GatewayRole.CLIENT))
    words = [*TURNSTILE, "gateway", "--config", str(config)]
    async with child("gateway", words, environment.directory / "gateway.log") as process:
        await process.wait_for_log("gateway serves")
        url = process.log.read_text().partition("gateway serves ")[2].split()[0]
        yield GatewayProcess(environment, process, url, secret.text)


def allow_files() -> None:
    """Let this process and its children open as many files as the system allows, at most 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


@asynccontextmanager
async def open_clients(gateway: GatewayProcess, name: str, processes: int = 1) -> AsyncGenerator[list[Child]]:
    """Start processes for clients; they are ready when it yields."""
    async with AsyncExitStack() as stack:
        started: list[Child] = []
        for number in range(processes):
            label = f"{name}-clients-{number}"
            log = gateway.environment.directory / f"{label}.log"
            words = ("-m", "lab.bench.gateway.clients")
            started.append(await stack.enter_async_context(child(label, words, log, piped=True)))
        for client in started:
            await _line(client)
        yield started


async def read_all(
    gateway: GatewayProcess, processes: Sequence[Child], shares: Sequence[Readers]
) -> tuple[list[Answers], float]:
    """Let each process read a share; returns the answers and the gateway's peak memory; raises `BenchError`."""
    reading = asyncio.gather(*(_read(client, share) for client, share in zip(processes, shares, strict=False)))
    peak = gateway.memory_mb()
    while not reading.done():
        await asyncio.wait([reading], timeout=_POLL_SECONDS)
        peak = max(peak, gateway.memory_mb())
    return await reading, peak


async def _read(clients: Child, share: Readers) -> Answers:
    if clients.process.stdin is None:
        raise BenchError(f"{clients.name} has no pipes")
    clients.process.stdin.write(share.model_dump_json().encode() + b"\n")
    await clients.process.stdin.drain()
    return Answers.model_validate_json(await _line(clients))


async def _line(clients: Child) -> bytes:
    """What it prints next; raises `BenchError` if it has ended."""
    line = b"" if clients.process.stdout is None else await clients.process.stdout.readline()
    if not line:
        await clients.process.wait()
        clients.check()
    return line
