"""A workflow of two hundred calls, while everything that serves them is killed again and again (make test-long)."""

import asyncio
import itertools
import json
import logging

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from tests.e2e.temporal.agent_workflows import Asked, AskMany
from tests.e2e.temporal.conftest import Theirs, hatched
from tests.e2e.temporal.order_workflow import PlaceOrder
from tests.e2e.temporal.their_tool import order_service
from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes, TurnstileProcess
from tests.support.tenants import Tenant
from tests.support.tools import calling
from turnstile.ledger.roster import put_tool
from turnstile.schema.ids import uuid7

CALLS, TURNS_BETWEEN = 200, 8
log = logging.getLogger(__name__)


class Mortal:
    """A process of theirs, which says `works` when it does."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it works."""
        self._process = await hatched(*self._words)
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"works\n"

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def kill_in_turn(tenant: Tenant, victims: list[TurnstileProcess | Mortal], deaths: list[int]) -> None:
    """Kill one after the other each time that some more turns are over, until cancelled."""
    killed_at = 0

    async def went_on() -> bool:
        return await tenant.count("state.turn_outcomes") >= killed_at + TURNS_BETWEEN

    for number in itertools.cycle(range(len(victims))):
        await until(went_on, 120, "turns end", pause=0.1)
        killed_at = await tenant.count("state.turn_outcomes")
        await victims[number].kill()
        deaths[number] += 1
        await victims[number].start()


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_two_hundred_calls_are_two_hundred_turns_whatever_dies(
    apart: Tenant, processes: Processes, their_client: Client
) -> None:
    theirs = Theirs(apart, their_client, f"theirs-{uuid7()}")
    at, orders, target = apart.stack.endpoints, f"orders-{uuid7()}", f"t{uuid7()}"
    [tool] = order_service("", "", "", target).definitions()
    await put_tool(apart.pool, apart.project, tool)
    await apart.profile("buyer", "player", instances=True, allowed_tools=[tool.tool_name])
    told = json.dumps({"steps": [calling(("place_order", {"order": {"item": "tea"}})), {"text": "ordered"}]})
    asked = Asked({"profile_name": "buyer", "instruction": told, "with_value": True}, heartbeat_seconds=5)
    words = (at.nats_url, at.temporal_address, at.temporal_namespace, orders, target)
    loop = asyncio.get_running_loop()
    their_worker, their_tool = Mortal(*theirs.worker_words), Mortal("tests.e2e.temporal.their_tool", *words)
    await asyncio.gather(their_worker.start(), their_tool.start())
    async with Worker(their_client, task_queue=orders, workflows=[PlaceOrder]):
        began = loop.time()
        handle = await theirs.start(AskMany.run, asked, CALLS)
        victims = [their_worker, processes.worker, their_tool, processes.bridge]
        deaths = [0] * len(victims)
        try:
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(kill_in_turn(apart, victims, deaths))
                results = await handle.result()
                killing.cancel()
        finally:
            await asyncio.gather(their_worker.kill(), their_tool.kill())
        took = loop.time() - began
    turns = await apart.count("state.agent_inbox", "message_type = 'turn'")
    executions = (await their_client.count_workflows(f'TaskQueue = "{orders}"')).count
    log.warning("%d turns, %d workflows of the tool, in %.0f s; deaths %s", turns, executions, took, deaths)
    assert [result.value for result in results] == ["ordered"] * CALLS
    assert len({result.agent_turn_id for result in results}) == turns == executions == CALLS
    assert min(deaths) >= 1
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
