"""`run_agent` in a workflow of somebody else: one turn a call, whatever dies, and what its history holds."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.worker import Replayer, Worker

from tests.e2e.temporal.agent_workflows import WORKFLOWS, AskAgain, AskAndTellOfItsEnd, Asked, AskMany, AskOnce
from tests.e2e.temporal.conftest import Theirs
from tests.support.conditions import until
from tests.support.gateway import serving, token_of
from tests.support.pump.payloads import payloads_in
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import call_of, calling, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId
from turnstile.temporal import AgentResult, TurnstileAgents
from turnstile.temporal.agent_calls import WAIT

pytestmark = pytest.mark.shared_stack

SECRET = "a word that no history has"


def says(text: str) -> str:
    """An instruction that the script `player` answers so."""
    return json.dumps({"steps": [{"text": text}]})


async def written(handle: WorkflowHandle[Any, Any]) -> str:
    """All that the history holds, with payloads decoded."""
    history = await handle.fetch_history()
    payloads = [each.data.decode() for event in history.events for each in payloads_in(event)]
    return "\n".join([history.to_json(), *payloads])


async def turn_of(theirs: Theirs) -> AgentTurnId:
    """The only turn of the project, once there is one."""

    async def there() -> list[dict[str, Any]]:
        return await theirs.tenant.rows(
            "SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1 AND message_type = 'turn'",
            theirs.tenant.project,
        )

    [row] = await until(there, 25, "a turn is enqueued")
    return AgentTurnId(row["agent_turn_id"])


async def turns_of(tenant: Tenant) -> int:
    """Turns of the project."""
    return await tenant.count("state.agent_inbox", "message_type = 'turn'")


async def waited_for(handle: WorkflowHandle[Any, Any]) -> None:
    """The call's wait has begun."""

    async def begun() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any(each.activity_type.name == WAIT and each.HasField("last_started_time") for each in pending)

    await until(begun, 25, "a worker waits for the turn")


async def test_a_call_is_a_turn_of_which_the_workflow_gets_ids(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    async with theirs.working():
        handle = await theirs.start(AskOnce.run, Asked({"agent_id": ALICE, "instruction": says(SECRET)}))
        result = await handle.result()
    assert isinstance(result, AgentResult)
    ended = await theirs.tenant.ended(AgentTurnId(result.agent_turn_id))
    assert (result.ok, result.status, result.value, result.agent_id) == (True, "success", None, ALICE)
    assert (result.card_id, result.output_box_id) == (ended.view.deliverable_card_id, ended.view.output_box_id)
    assert ended.deliverable() == SECRET


async def test_neither_prompt_nor_deliverable_is_in_the_history_of_a_call_with_a_box(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    asked: JsonObject = {"parts": [{"text": says(SECRET)}]}
    box = (await theirs.tenant.client.request("box_make", asked))["box_id"]
    async with theirs.working():
        handle = await theirs.start(AskOnce.run, Asked({"agent_id": ALICE, "context_box_id": box}))
        assert (await handle.result()).ok
        told = await theirs.start(AskOnce.run, Asked({"agent_id": ALICE, "context_box_id": box, "with_value": True}))
        assert (await told.result()).value == SECRET
    assert SECRET not in await written(handle)
    assert SECRET in await written(told)


async def test_fields_are_asked_for_and_read_by_name(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    submit = {"name": "submit_result", "arguments": {"fields": [{"name": "city", "value": "Riga"}]}}
    told = json.dumps({"steps": [{"tool_calls": [submit]}]})
    async with theirs.working():
        result = await theirs.run(
            AskOnce.run, agent_id=ALICE, instruction=told, result_fields=["city"], with_value=True
        )
    assert result.fields == {"city": "Riga"}


async def test_a_turn_that_fails_is_a_result_and_a_refusal_is_a_failure_with_its_code(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    fails = json.dumps({"steps": [{"error": {"code": "invalid_request", "retryable": False}}]})
    async with theirs.working():
        result = await theirs.run(AskOnce.run, agent_id=ALICE, instruction=fails)
        assert (result.ok, result.status) == (False, "failed")
        assert result.error_code
        for given, code in (({"agent_id": "nobody", "instruction": "hello"}, "unknown_agent"), ({}, "bad_request")):
            with pytest.raises(WorkflowFailureError) as failed:
                await theirs.run(AskOnce.run, **given)
            activity = failed.value.cause
            assert isinstance(activity, ActivityError)
            assert isinstance(activity.cause, ApplicationError)
            assert activity.cause.type == code


async def test_a_workflow_that_is_cancelled_stops_the_turn_and_may_look_at_what_it_came_to(theirs: Theirs) -> None:
    async with hand_of(theirs.tenant) as hand, theirs.working():
        asked = Asked({"agent_id": ALICE, "instruction": json.dumps({"steps": [calling("search")]})})
        plain = await theirs.start(AskOnce.run, asked)
        await hand.heard()
        await waited_for(plain)
        await plain.cancel()
        with pytest.raises(WorkflowFailureError) as failed:
            await plain.result()
        assert isinstance(failed.value.cause, CancelledError)
        assert (await plain.describe()).status is WorkflowExecutionStatus.CANCELED
        curious = await theirs.start(AskAndTellOfItsEnd.run, asked)
        await hand.heard(2)
        await waited_for(curious)
        await curious.cancel()
        assert (await curious.result()).status == "canceled"
    assert await theirs.tenant.count("state.turn_outcomes", "status = 'canceled'") == 2


async def test_a_turn_is_stopped_when_the_time_of_its_call_is_over(theirs: Theirs) -> None:
    async with hand_of(theirs.tenant) as hand, theirs.working():
        given: dict[str, Any] = {"agent_id": ALICE, "instruction": json.dumps({"steps": [calling("search")]})}
        handle = await theirs.start(AskOnce.run, Asked(given, timeout_seconds=3))
        await hand.heard()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        ended = await theirs.tenant.ended(await turn_of(theirs))
    assert ended.view.status == "canceled"


async def test_each_run_of_a_workflow_makes_turns_of_its_own_unless_it_names_them(theirs: Theirs) -> None:
    await theirs.tenant.profile("helper", "player", instances=True)
    asked = Asked({"profile_name": "helper", "instruction": says("done")})
    async with theirs.working():
        await (await theirs.start(AskAgain.run, asked, 2)).result()
        assert await turns_of(theirs.tenant) == 2
        results = await (await theirs.start(AskMany.run, asked, 3)).result()
        assert len({result.agent_turn_id for result in results}) == 3
        assert await turns_of(theirs.tenant) == 5
        named = Asked({**asked.given, "correlation_id": "order-17"})
        one = await (await theirs.start(AskAgain.run, named, 2)).result()
        assert one == (await (await theirs.start(AskOnce.run, named)).result()).agent_turn_id
    assert await turns_of(theirs.tenant) == 6


async def test_a_client_may_carry_the_plugin_for_all_of_its_workers(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    agents = TurnstileAgents(theirs.tenant.stack.endpoints.nats_url, project=theirs.tenant.project)
    client = Client(theirs.client.service_client, namespace=theirs.client.namespace, plugins=[agents])
    async with Worker(client, task_queue=theirs.queue, workflows=WORKFLOWS):
        assert (await theirs.run(AskOnce.run, agent_id=ALICE, instruction=says("hello"))).ok


async def test_a_worker_asks_by_way_of_a_gateway_with_a_token(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    async with serving(theirs.tenant.stack) as url:
        plugin = TurnstileAgents(url, token=await token_of(theirs.tenant.stack, theirs.tenant.project))
        async with theirs.working(plugin):
            result = await theirs.run(AskOnce.run, agent_id=ALICE, instruction=says("by HTTP"), with_value=True)
    assert result.value == "by HTTP"


async def test_a_worker_killed_before_it_said_that_it_enqueued_a_turn_makes_no_second(
    theirs: Theirs, tmp_path: Path
) -> None:
    await theirs.tenant.agent("player")
    made = tmp_path / "made"
    async with theirs.process(made) as dying:
        handle = await theirs.start(AskOnce.run, Asked({"agent_id": ALICE, "instruction": says("once")}))
        async with asyncio.timeout(25):
            await dying.wait()
    async with theirs.working():
        result = await handle.result()
    assert (result.agent_turn_id, result.status) == (made.read_text(), "success")
    assert await turns_of(theirs.tenant) == 1


@pytest.mark.long
async def test_another_worker_waits_on_where_one_was_killed(theirs: Theirs) -> None:
    async with hand_of(theirs.tenant) as hand:
        async with theirs.process() as dying:
            told = json.dumps({"steps": [calling("search"), {"text": "found"}]})
            handle = await theirs.start(AskOnce.run, Asked({"agent_id": ALICE, "instruction": told}))
            await hand.heard()
            await waited_for(handle)
            dying.kill()
        turn = await turn_of(theirs)
        await hand.report(call_of(turn))
        await hand.ended(turn)
        async with theirs.working():
            result = await handle.result()
    assert (result.agent_turn_id, result.status) == (turn, "success")
    assert await turns_of(theirs.tenant) == 1


async def test_a_history_replays_without_us(theirs: Theirs) -> None:
    await theirs.tenant.agent("player")
    async with theirs.working():
        asked = Asked({"agent_id": ALICE, "instruction": says("done")})
        handles = [await theirs.start(AskOnce.run, asked), await theirs.start(AskMany.run, asked, 3)]
        for handle in handles:
            await handle.result()
    for handle in handles:
        await Replayer(workflows=WORKFLOWS).replay_workflow(await handle.fetch_history())


def test_a_workflow_that_imports_run_agent_loads_no_server_and_no_model() -> None:
    script = "import sys, turnstile.temporal as t; t.run_agent; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {"pydantic", "nats", "httpx", "asyncpg", "litellm"} & set(told)
    assert {each for each in told if each.startswith("turnstile.")} == {
        "turnstile.temporal",
        "turnstile.temporal.agent_calls",
    }
