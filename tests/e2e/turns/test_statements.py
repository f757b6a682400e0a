"""How many statements a turn sends to PostgreSQL, counted where they are made, with a safety net that stands still."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.faults.points import DONE
from tests.support.processes.net import STILL
from tests.support.processes.stack import Stack, running_here
from tests.support.tenants import new_tenant, turn_of
from tests.support.tools import calling
from turnstile.embedded.ports import free_port
from turnstile.ledger.roster import put_tool
from turnstile.processes.run import run_both, run_bridge, run_worker
from turnstile.schema.base import JsonObject
from turnstile.sdk.tools.service import ToolService

# A stack whose safety net runs no rule.
pytestmark = pytest.mark.stack(STILL)

TURNS = 10
MOST = {"plain": 5, "tool": 10}
COUNTER = "turnstile_database_round_trips_total"


@dataclass(frozen=True)
class Served:
    """A stack whose processes count their statements at these ports."""

    stack: Stack
    ports: Sequence[int]

    async def statements(self) -> float:
        """How many there were so far."""
        return sum([await asyncio.to_thread(_scrape, port) for port in self.ports])


def _scrape(port: int) -> float:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return sum(sample.value for family in families for sample in family.samples if sample.name == COUNTER)


@pytest.fixture(scope="module", params=["one-process", "apart"])
async def served(stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """Worker and bridge as one, then each with pools and connections of its own."""
    runs = [run_both] if request.param == "one-process" else [run_bridge, run_worker]
    ports = [free_port() for _ in runs]
    async with AsyncExitStack() as opened:
        for run, port in zip(runs, ports, strict=True):
            told = stack.settings.observability.model_copy(update={"metrics_port": port})
            own = replace(stack, settings=stack.settings.model_copy(update={"observability": told}))
            await opened.enter_async_context(running_here(own, run))
        yield Served(stack, ports)


@asynccontextmanager
async def serving(service: ToolService, stack: Stack) -> AsyncGenerator[None]:
    """The tool, while the block runs."""
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(service.run(stack.endpoints.nats_url, stop=stop, ready=ready.set))
    async with asyncio.timeout(25):
        await ready.wait()
    try:
        yield
    finally:
        stop.set()
        await task


@pytest.mark.parametrize("kind", MOST)
async def test_a_turn_takes_few_statements(served: Served, kind: str) -> None:
    """One turn after the other, so that none shares a claim or a mark with another."""
    tenant = new_tenant(served.stack)
    service = ToolService(tenant.project)

    @service.tool(target="counted", suffix="run", name="look")
    async def look(q: str) -> str:
        """Look something up."""
        return q

    assert look is not None
    [definition] = service.definitions()
    await put_tool(tenant.pool, tenant.project, definition)
    agent = await tenant.agent("player", allowed_tools=["look"])
    lines: list[JsonObject] = [DONE] if kind == "plain" else [calling("look"), DONE]
    async with serving(service, served.stack):
        taken: list[float] = []
        for _ in range(TURNS + 1):
            before = await served.statements()
            ended = await tenant.ended(turn_of(await tenant.enqueue(agent, json.dumps({"steps": lines}))))
            assert (ended.view.status, len(ended.steps)) == ("success", len(lines))
            await asyncio.sleep(0.2)  # its end is marked with those of 0.1 s
            taken.append(await served.statements() - before)
    assert sorted(taken)[TURNS // 2] <= MOST[kind], taken
