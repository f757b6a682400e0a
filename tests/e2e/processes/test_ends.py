"""A worker that is told to end ends, whatever its handlers do; and so does a service."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from lab.support.proxy import HOST
from tests.e2e.crashes.test_slow_servers import proxied
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.paths import ROOT
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import Role, TurnstileProcess, processes_of
from tests.support.processes.stack import Stack, open_stack
from tests.support.pump.organism import Order
from tests.support.pump.pump import calling_in, pump_config
from tests.support.tenants import CHANNEL, new_tenant
from turnstile.embedded import Endpoints
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.intake import enqueue
from turnstile.runtime.program import LATE_SECONDS
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.wire.inbox import EnqueueRequest

# A stack with the organism's listeners.
pytestmark = pytest.mark.stack(pump_config())

END_SECONDS = 6
"""Five are promised, and one for a slow machine."""
SERVICE = """
import asyncio
from turnstile.processes.services import run_service

async def deaf(turn):
    print("in hand", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

run_service("svc1_deaf_main", deaf)
"""


async def test_a_worker_ends_though_handlers_do_not_hear_that_they_are_to_end(stack: Stack, hatching: Hatchery) -> None:
    """Long after their messages were answered for them."""
    async with processes_of(stack.config, hatching) as both, calling_in(stack) as caller:
        for process in (both.bridge, both.worker):
            process.env["PYTHONPATH"] = str(ROOT)
        await asyncio.gather(both.bridge.start(), both.worker.start())
        answers = await asyncio.gather(*(caller.ask("worker", Order(do=deed)) for deed in ("deaf", "thread")))
        assert all("timeout" in str(answer.payload) for answer in answers)
        began = time.monotonic()
        log = both.worker.says
        assert await both.worker.stop() == 0
        assert time.monotonic() - began < END_SECONDS
        assert "left behind, as it does not end: the handler of worker at " in log()
        assert "in deaf" in log()
        assert "thread uvloop_" in log()
        assert await both.bridge.stop() == 0


@pytest.mark.long
async def test_a_service_ends_though_its_handler_does_not_hear_it(stack: Stack, tmp_path: Path) -> None:
    tenant = new_tenant(stack)
    profile = Profile(name="deaf", worker_target="svc1_deaf_main", llm_config=LlmConfig(model="scripted/plain"))
    await put_profile(tenant.pool, tenant.project, profile)
    await add_agent(tenant.pool, tenant.project, AgentId("deaf"), "deaf")
    request = EnqueueRequest(agent_id=AgentId("deaf"), instruction="hello")
    await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
    log = tmp_path / "log"
    with log.open("wb") as out:
        command = [sys.executable, "-c", SERVICE, "--config", str(stack.config)]
        service = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)  # noqa: ASYNC220 -- it starts at once

    async def in_hand() -> bool:
        assert service.poll() is None, log.read_text()
        return "in hand" in log.read_text()

    try:
        await until(in_hand, 40, "the handler runs")
        service.send_signal(signal.SIGTERM)
        assert service.wait(END_SECONDS) == 0
        assert "left behind, as it does not end: handler of turn" in log.read_text()
    finally:
        service.kill()
        service.wait()


ROLES_THAT_ASK: dict[str, tuple[Role, ...]] = {
    "postgres": ("worker", "bridge", "gateway"),
    "temporal": ("worker", "bridge"),
}


async def ends_soon(process: TurnstileProcess) -> None:
    """It ends in five seconds, and names what it did not wait for."""
    began = time.monotonic()
    assert await process.stop() == 0, process.says()
    seconds, said = time.monotonic() - began, process.says()
    assert seconds < END_SECONDS, said
    if seconds > LATE_SECONDS:
        assert len(said) < 50_000
        assert re.search(r"not ended 4\.3 s after the signal, and canceled: .+ at .+\.py:\d+ in ", said), said


async def test_every_process_ends_in_five_seconds_though_a_server_hangs(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path: Path, hatching: Hatchery
) -> None:
    name = await databases.create(migrated)
    url, address = urlsplit(databases.url(name)), urlsplit(f"//{servers.temporal_address}")
    async with AsyncExitStack() as opened:
        proxies = {
            "postgres": await opened.enter_async_context(proxied(url.port)),
            "temporal": await opened.enter_async_context(proxied(address.port)),
        }
        through = {
            "postgres": {
                "database_url": url._replace(
                    netloc=f"{url.netloc.rpartition('@')[0]}@{HOST}:{proxies['postgres'].port}"
                ).geturl()
            },
            "temporal": {"database_url": url.geturl(), "temporal_address": f"{HOST}:{proxies['temporal'].port}"},
        }
        processes: list[TurnstileProcess] = []
        for server, roles in ROLES_THAT_ASK.items():
            directory = tmp_path / server
            directory.mkdir()
            endpoints = servers.model_copy(update=through[server])
            stack = await opened.enter_async_context(open_stack(endpoints, directory))
            for role in roles:
                process = TurnstileProcess(role, stack.config, hatching)
                opened.push_async_callback(process.remove)
                processes.append(process)
        await asyncio.gather(*(process.start() for process in processes))
        hanging = [asyncio.create_task(proxy.stall(60)) for proxy in proxies.values()]
        await asyncio.sleep(2)  # whoever asks now and then has asked
        try:
            await asyncio.gather(*(ends_soon(process) for process in processes))
        finally:
            for task in hanging:
                task.cancel()
            await asyncio.wait(hanging)
            for proxy in proxies.values():
                proxy.cut()
    await databases.drop(name)
