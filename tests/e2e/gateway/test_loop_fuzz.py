"""No request within the limits of size holds a process for long, whatever it is (protocol §14, docs/limits.md).

A gateway, a bridge and a worker as processes, each with a watch of its loop; all doors over HTTP, and all verbs over
NATS. A hold is judged by the CPU time of the callback that held the loop, and must come again where the same requests
are sent again: a busy machine changes nothing.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.gateway.test_numbers import REQUESTS
from tests.support.cpu import HELD_SECONDS
from tests.support.fuzz import Report
from tests.support.gateway import composed, token_of
from tests.support.hostile import Ask, Doors, verb_ask
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.loop_holds import HOLDS, NOTED_SECONDS, Holds
from tests.support.processes.process import TurnstileProcess
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.tenants import ALICE, CHANNEL, Tenant, new_tenant
from turnstile.gateway.console.sessions import csrf_of
from turnstile.schema.access import Caller, read_secret
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE
from turnstile.transport.json_messages import decode_object

CASES, LONG_CASES = 600, 100_000
WARM_CASES = 200
BATCH, RUNS = 200, 4
OVER_NATS = 4
"""One of so many cases is a verb."""
AT_ONCE = 12
LEFT_SECONDS = 1.5
ANSWER_BYTES = 17 << 20
CONFIG: Config = {
    **QUICK,
    "gateway": {"requests_per_second": 0.0, "heartbeat_seconds": 1.0, "statement_timeout_seconds": 5.0},
    "limits": {"requests_per_second": 0.0, "max_queued_turns": 20, "max_live_turns": 200},
}
# A stack without rates, so that all that is sent is read.
pytestmark = pytest.mark.stack(CONFIG)


@dataclass
class Served:
    """The processes, and what each recorded."""

    processes: list[TurnstileProcess]
    files: dict[str, Path]
    url: str = ""

    def holds(self) -> Counter[str]:
        """Those that were too long, so far."""
        return Counter(
            f"{role} {hold.seconds * 1000:.0f} ms: {hold.where}"
            for role, file in self.files.items()
            for hold in Holds.read(file).longest
            if hold.seconds > HELD_SECONDS
        )


@pytest.fixture
async def served(stack: Stack, hatching: Hatchery) -> AsyncIterator[Served]:
    """Gateway, bridge and worker, watched."""
    processes = [TurnstileProcess(role, stack.config, hatching) for role in ("gateway", "bridge", "worker")]
    files = {process.role: stack.directory / f"{process.role}.holds" for process in processes}
    for process in processes:
        files[process.role].unlink(missing_ok=True)
        process.env[HOLDS] = str(files[process.role])
    made = Served(processes, {str(role): file for role, file in files.items()})
    try:
        await asyncio.gather(*(process.start() for process in processes))
        await processes[0].until_it_says("http://127")
        made.url = re.findall(r"http://127[0-9.]*:[0-9]+", processes[0].says())[-1]
        yield made
    finally:
        for process in processes:
            await process.remove()


@dataclass
class Driver:
    """Sends cases and keeps what came of them."""

    tenant: Tenant
    doors: Doors
    statuses: Counter[str] = field(default_factory=Counter[str])
    times: list[float] = field(default_factory=list[float])
    wrong: list[str] = field(default_factory=list[str])

    async def send(self, number: int) -> None:
        """One case."""
        began = time.monotonic()
        if number % OVER_NATS == 0:
            await self._verb(number)
        else:
            await self._http(number)
        self.times.append(time.monotonic() - began)

    async def _verb(self, number: int) -> None:
        verb, data = verb_ask(number, self.tenant.stack.conn.size_limit - 10_000)
        caller = None if verb.caller == "none" else Caller("tester", operates=True)
        subject = subjects.bridge_request(self.tenant.project, CHANNEL, verb.name, caller)
        try:
            answer = await self.tenant.stack.conn.request(subject, data, timeout=20)
        except NATS_TROUBLE as error:
            self.wrong.append(f"{number} {verb.name}: {error!r}")
            return
        reply = decode_object(answer.data)
        self.statuses[f"nats {reply['status']}"] += 1
        if reply["status"] == "error":
            self.wrong.append(f"{number} {verb.name}: {reply}")

    async def _http(self, number: int) -> None:
        ask = self.doors.ask(number)
        try:
            async with asyncio.timeout(LEFT_SECONDS):
                status, size, body = await self._answer(ask)
        except TimeoutError:  # it waits for a turn, or is a stream
            self.statuses["left"] += 1
            return
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.wrong.append(f"{number} {ask.method} {ask.name}: {error!r}")
            return
        self.statuses[f"http {status}"] += 1
        if status >= 500 and not (status == 503 and b"overloaded" in body):
            self.wrong.append(f"{number} {ask.method} {ask.name} {status}: {body[:500]!r}")
        if size > ANSWER_BYTES:
            self.wrong.append(f"{number} {ask.name}: an answer of {size} bytes")
        if status < 300:
            self._learn(body)

    async def _answer(self, ask: Ask) -> tuple[int, int, bytes]:
        """Status, size and begin of the answer; a connection that is reset raises."""
        place = urlsplit(self.doors.origin)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        body = ask.body or b""
        own = {"host": place.netloc, "connection": "close", "content-length": str(len(body)), **ask.headers}
        lines = [f"{ask.method} {ask.path} HTTP/1.1", *(f"{name}: {value}" for name, value in own.items()), "", ""]
        try:
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
            status = int((await reader.readuntil(b"\r\n")).split()[1])
            size, kept = 0, b""
            while part := await reader.read(1 << 17):
                size += len(part)
                kept = (kept + part)[:50_000]
            return status, size, kept
        finally:
            writer.close()

    def lines(self, seconds: float) -> list[str]:
        """What came of the cases."""
        times = sorted(self.times)
        p50, p99 = (times[round(len(times) * share)] * 1000 for share in (0.5, 0.99))
        count = f"{len(times)} requests in {seconds:.0f} s, answers in {p50:.0f} ms (p50) and {p99:.0f} ms (p99)"
        return [count, ", ".join(f"{self.statuses[status]} {status}" for status in sorted(self.statuses))]

    def _learn(self, body: bytes) -> None:
        for part in body[:5000].split(b'"agent_turn_id":"')[1:3]:
            self.doors.ids.append(part.partition(b'"')[0].decode())


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(LONG_CASES, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
async def test_no_request_holds_a_loop(cases: int, served: Served, stack: Stack, fuzz_report: Report) -> None:
    tenant, began = new_tenant(stack), time.monotonic()
    await tenant.agent("echo", ALICE)
    token = await token_of(stack, tenant.project)
    secret = read_secret(token)
    assert secret is not None
    async with composed(stack) as gateway:
        port = served.url.rpartition(":")[2].strip("/")
        cookie = f"turnstile_console_{port}={token}"
        doors = Doors.of(gateway, REQUESTS, token, cookie, csrf_of(secret), served.url)
        doors.ids.extend([ALICE, "demo", "public"])
        driver, slots = Driver(tenant, doors), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with slots:
                await driver.send(number)

        await asyncio.gather(*(one(-number) for number in range(1, WARM_CASES)))
        for file in served.files.values():  # what is loaded and compiled at its first use
            file.write_text("")
        held, new, before = Counter[str](), Counter[str](), served.holds()
        for first in range(0, cases, BATCH):
            for _ in range(RUNS):
                await asyncio.gather(*(one(number) for number in range(first, min(cases, first + BATCH))))
                now = served.holds()
                new, before = now - before, now
                if not new:
                    break
            else:
                held += new
    for process in served.processes:
        assert await process.stop() == 0
    recorded = {role: Holds.read(file) for role, file in served.files.items()}
    for line in (*driver.lines(time.monotonic() - began), *(_line(role, holds) for role, holds in recorded.items())):
        fuzz_report(line)
    assert not driver.wrong, "\n".join(driver.wrong[:30])
    assert not held, "\n".join(list(held)[:30])


def _line(role: str, holds: Holds) -> str:
    longest = holds.longest[0].seconds if holds.longest else NOTED_SECONDS
    where = holds.longest[0].where if holds.longest else ""
    return (
        f"{role}: {sum(holds.counts.values())} callbacks, CPU of 99 % below {holds.quantile(0.99) * 1000:.1f} ms,"
        f" of all at most {longest * 1000:.0f} ms {where}"
    )
