"""A worker that is told to end ends, whatever its handlers do; and so does a service."""

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.paths import ROOT
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import processes_of
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import Stacks
from tests.support.pump.organism import Order
from tests.support.pump.pump import calling_in, pump_config
from tests.support.tenants import CHANNEL, new_tenant
from turnstile.ledger.turns.intake import enqueue
from turnstile.ledger.turns.roster import add_agent, put_profile
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.wire.inbox import EnqueueRequest

STOP_SECONDS = 12
"""Five for handlers, a second each for what does not hear, and a slow machine."""
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


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One with the organism's listeners."""
    async with stacks.open(pump_config()) as opened:
        yield opened


async def test_a_worker_ends_though_handlers_do_not_hear_that_they_are_to_end(stack: Stack, hatching: Hatchery) -> None:
    """Long after their messages were answered for them."""
    async with processes_of(stack.config, hatching) as both, calling_in(stack) as caller:
        for process in (both.bridge, both.worker):
            process.env["PYTHONPATH"] = str(ROOT)
            await process.start()
        for deed in ("deaf", "thread"):
            assert "timeout" in str((await caller.ask("worker", Order(do=deed))).payload)
        began = time.monotonic()
        log = both.worker.says
        assert await both.worker.stop() == 0
        assert time.monotonic() - began < STOP_SECONDS
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
        assert service.wait(STOP_SECONDS) == 0
        assert "left behind, as it does not end: handler of turn" in log.read_text()
    finally:
        service.kill()
        service.wait()
