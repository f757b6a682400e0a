"""A workflow of somebody else as a tool: one execution a call, whoever dies; it ends with the call."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.worker import Worker

from tests.e2e.temporal.conftest import Theirs, hatched
from tests.e2e.temporal.order_workflow import PlaceOrder, RunErrand
from tests.e2e.temporal.their_tool import order_service
from tests.support.conditions import until
from tests.support.delegation import running
from tests.support.tenants import turn_of
from tests.support.tools import Hand, call_of, calling, hand_of, heard_by_model
from turnstile import ToolService
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.schema.ids import AgentId, AgentTurnId, uuid7
from turnstile.schema.profiles import Profile
from turnstile.temporal import WorkflowTool

pytestmark = pytest.mark.shared_stack


class Shop:
    """The workflow's worker, the tool, and an agent that calls it."""

    def __init__(self, theirs: Theirs, hand: Hand, target: str) -> None:
        self.theirs, self.hand, self.target = theirs, hand, target

    @property
    def _words(self) -> tuple[str, str, str, str]:
        endpoints = self.theirs.tenant.stack.endpoints
        return endpoints.temporal_address, endpoints.temporal_namespace, self.theirs.queue, self.target

    def service(self) -> ToolService:
        """The tool's service."""
        return order_service(*self._words)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[ToolService]:
        """A replica of the tool in this process."""
        service, stop, ready = self.service(), asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(
            service.run(self.theirs.tenant.stack.endpoints.nats_url, stop=stop, ready=ready.set)
        )
        await ready.wait()
        try:
            yield service
        finally:
            stop.set()
            await running

    @asynccontextmanager
    async def replica(self) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A replica as a process, which may be killed."""
        nats_url = self.theirs.tenant.stack.endpoints.nats_url
        process = await hatched("tests.e2e.temporal.their_tool", nats_url, *self._words)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def order(self, item: str, **more: Any) -> AgentTurnId:
        """A turn whose agent orders this."""
        arguments = {"order": {"item": item, "count": 3}, **more}
        return await self.hand.start(calling(("place_order", arguments)))

    async def started(self, turn: AgentTurnId) -> WorkflowHandle[Any, Any]:
        """The workflow of the turn's call, once it runs."""
        found = self.theirs.client.get_workflow_handle(f"tool-{call_of(turn)}")
        listed = f'WorkflowId = "{found.id}"'

        async def runs() -> bool:
            return (await self.theirs.client.count_workflows(listed)).count > 0

        await until(runs, 25, "the workflow runs")
        return found


@asynccontextmanager
async def shop_of(theirs: Theirs) -> AsyncGenerator[Shop]:
    """Open; no replica of the tool runs yet."""
    target = f"t{uuid7()}"
    [definition] = order_service("", "", "", target).definitions()
    async with (
        hand_of(theirs.tenant, definition) as hand,
        Worker(theirs.client, task_queue=theirs.queue, workflows=[PlaceOrder]),
    ):
        yield Shop(theirs, hand, target)


async def test_a_call_is_a_workflow_whose_parameters_are_the_arguments(theirs: Theirs) -> None:
    async with shop_of(theirs) as shop, shop.serving() as service:
        [definition] = service.definitions()
        turn = await shop.order("tea", gift=True)
        [result] = heard_by_model(await shop.hand.ended(turn))
    assert result == {"status": "success", "result": {"ordered": 3, "item": "tea", "gift": True}}
    assert definition.tool_name == "place_order"
    assert definition.description == "Place an order."
    assert definition.parameters["required"] == ["order"]
    assert definition.options.timeout_seconds == 86_400


async def test_a_workflow_that_fails_is_a_failed_result_with_its_code(theirs: Theirs) -> None:
    async with shop_of(theirs) as shop, shop.serving():
        ended = await shop.hand.ended(await shop.order("gone"))
    assert ended.results() == [("failed", "sold_out", "there is none left")]


async def test_a_stop_of_the_turn_cancels_the_workflow(theirs: Theirs) -> None:
    async with shop_of(theirs) as shop, shop.serving():
        turn = await shop.order("slow")
        workflow = await shop.started(turn)
        await theirs.tenant.client.request("stop", {"agent_turn_id": turn})
        with pytest.raises(WorkflowFailureError):
            await workflow.result()
        assert (await workflow.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_another_replica_goes_on_with_the_workflow_of_one_that_was_killed(theirs: Theirs) -> None:
    async with shop_of(theirs) as shop:
        async with shop.replica() as dying:
            turn = await shop.order("slow")
            workflow = await shop.started(turn)
            dying.kill()
            await dying.wait()
        async with shop.serving():
            await workflow.signal(PlaceOrder.arrive)
            [result] = heard_by_model(await shop.hand.ended(turn))
        assert result["result"]["ordered"] == 3
        assert (await theirs.client.count_workflows(f'WorkflowId = "{workflow.id}"')).count == 1


async def test_a_replica_cancels_what_a_dead_one_had_begun_for_a_turn_that_was_stopped_meanwhile(
    theirs: Theirs,
) -> None:
    async with shop_of(theirs) as shop:
        async with shop.replica() as dying:
            turn = await shop.order("slow")
            workflow = await shop.started(turn)
            dying.kill()
            await dying.wait()
        await theirs.tenant.client.request("stop", {"agent_turn_id": turn})
        await shop.hand.ended(turn)
        async with shop.serving():
            with pytest.raises(WorkflowFailureError):
                await workflow.result()
        assert (await workflow.describe()).status is WorkflowExecutionStatus.CANCELED


async def test_a_workflow_is_an_agent_and_its_turn_one_execution(theirs: Theirs) -> None:
    tenant, service = theirs.tenant, ToolService(drain_seconds=1)
    WorkflowTool(
        RunErrand.run, client=theirs.client, task_queue=theirs.queue, target=f"t{uuid7()}", suffix="run", name="errand"
    ).add_to(service)
    await put_tool(tenant.pool, tenant.project, service.definitions()[0])
    [target] = tenant.stack.settings.worker.worker_targets
    await put_profile(tenant.pool, tenant.project, Profile(name="errand", worker_target=target, run_by="errand"))
    await add_agent(tenant.pool, tenant.project, AgentId("errand"), "errand")
    async with Worker(theirs.client, task_queue=theirs.queue, workflows=[RunErrand]), running(tenant, service):
        ended = await tenant.turn(AgentId("errand"), "bread")
        assert (ended.view.status, ended.deliverable()) == ("success", "ran for bread")
        execution = theirs.client.get_workflow_handle(f"tool-{call_of(ended.view.agent_turn_id)}")
        assert (await execution.describe()).status is WorkflowExecutionStatus.COMPLETED
        turn = turn_of(await tenant.enqueue(AgentId("errand"), "slow"))
        execution = theirs.client.get_workflow_handle(f"tool-{call_of(turn)}")

        async def runs() -> bool:
            return (await theirs.client.count_workflows(f'WorkflowId = "{execution.id}"')).count > 0

        await until(runs, 25, "the workflow runs")
        await tenant.client.request("stop", {"agent_turn_id": turn})
        with pytest.raises(WorkflowFailureError):
            await execution.result()
        assert (await tenant.ended(turn)).view.status == "canceled"
