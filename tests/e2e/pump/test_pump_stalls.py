"""A handler that holds up the only worker: the log names it, and what it returns is not lost (protocol §9)."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.processes.stack import QUICK, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.pump.organism import Order
from tests.support.pump.pump import assert_threads, calling_in, pump_config
from turnstile.processes.run import run_bridge, run_worker

HEARTBEAT_SECONDS = 1.0
CONFIG = {**QUICK, "worker": {**QUICK["worker"], "activity_heartbeat_timeout_seconds": HEARTBEAT_SECONDS}}


@pytest.fixture
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One that soon takes a worker for dead."""
    async with stacks.open(pump_config(CONFIG)) as opened:
        yield opened


@asynccontextmanager
async def worker_beside(stack: Stack) -> AsyncGenerator[None]:
    """A worker on a loop of its own, in a thread of its own: who holds it up does not hold up the test."""
    here = asyncio.get_running_loop()
    ready, told = asyncio.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    def is_ready() -> None:
        here.call_soon_threadsafe(ready.set)

    async def work() -> None:
        stop = asyncio.Event()
        told.append((asyncio.get_running_loop(), stop))
        await run_worker(stack.settings, stack.endpoints, stop, ready=is_ready)

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    try:
        await ready.wait()
        yield
    finally:
        [(loop, stop)] = told
        loop.call_soon_threadsafe(stop.set)
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive(), "the worker does not end"


@pytest.mark.long
async def test_what_a_handler_returns_that_held_up_its_worker_is_its_answer(
    stack: Stack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine has taken the worker for dead meanwhile, and offered the message again: to the same worker."""
    release = tmp_path / "release"
    async with running_here(stack, run_bridge), worker_beside(stack), calling_in(stack) as caller:
        sent = await caller.send("worker", Order(do="ask", what=f"clerk/block/{release}"))

        async def is_told() -> bool:
            return any("event loop" in record.getMessage() for record in caplog.records)

        try:
            await until(is_told, 25, "the log tells of it, after more than two heartbeat timeouts")
        finally:
            release.touch()
        assert (await caller.heard(sent)).said == 'clerk said {"said":"too late"}'
        assert [message.attempt for message in await caller.messages(sent)] == [1, 1, 1]
        async with stack.pool.connection() as conn:
            await assert_threads(conn)
    lines = [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]
    holder = "the handler of clerk at block (organism.py:"
    assert lines[0].startswith("the event loop has been held up for "), lines
    assert f" s by {holder}" in lines[0], lines
    assert any(line.startswith(f"the event loop goes on: {holder}") for line in lines), lines
