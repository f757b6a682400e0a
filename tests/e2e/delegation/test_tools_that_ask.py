"""A user's tool asks other agents while it answers a call (protocol §12): as its caller, once, and waited for."""

import asyncio
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.delegation import ALL, CHIEF, answer, chief_says, result, says, serving, steps
from tests.support.tenants import Ended, Tenant, turn_of
from tests.support.tools import call_of, calling
from turnstile import ChildTask, Refused, ToolCall, ToolService
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import ChannelId
from turnstile.sdk.client import BridgeClient

pytestmark = pytest.mark.shared_stack

FAILS = steps({"error": {"code": "model_error", "message": "no"}})
NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)


async def children(tenant: Tenant) -> int:
    return await tenant.count("state.turn_nodes", "parent_turn_id IS NOT NULL")


async def asked(tenant: Tenant, tool: str, **arguments: Any) -> Ended:
    return await chief_says(tenant, calling((tool, arguments)))


def research(tenant: Tenant) -> ToolService:
    """Tools that ask."""
    service = ToolService(tenant.project)
    named: dict[str, Any] = {"target": "research", "timeout_seconds": 30}

    @service.tool(suffix="ask", **named)
    async def ask(call: ToolCall, instruction: str, profile: str = "worker") -> JsonObject:
        """Ask one agent."""
        told = await call.delegate(instruction, profile=profile)
        return {"said": told.value, "status": told.status, "error": told.error}

    @service.tool(suffix="gather", **named)
    async def gather(call: ToolCall, instructions: list[str], join: str | None = None) -> JsonObject:
        """Ask several, twice."""
        tasks = [ChildTask(instruction=each, profile="worker", label=f"n{n}") for n, each in enumerate(instructions)]
        first = await call.fork(tasks, join=join)  # pyright: ignore[reportArgumentType]  # checked by the bridge
        second, expert = await asyncio.gather(
            call.delegate(says("second"), profile="worker"), call.ask_expert("worker", says("third"))
        )
        return {"first": first.model_dump(mode="json"), "then": [second.value, expert.value]}

    @service.tool(suffix="shy", **named)
    async def shy(call: ToolCall, instruction: str) -> str:
        """Ask one agent, and say what was refused."""
        try:
            await call.delegate(instruction, profile="secret")
        except Refused as error:
            return error.code
        return "asked"

    del ask, gather, shy  # the service has them
    return service


async def test_a_tool_waits_for_an_agent_and_goes_on_with_its_answer(tenant: Tenant) -> None:
    async with serving(tenant, research(tenant)):
        ended = await asked(tenant, "ask", instruction=says("forty-two"))
        assert result(ended) == {"said": "forty-two", "status": "success", "error": None}
        failed = await asked(tenant, "ask", instruction=FAILS)
        assert (result(failed)["status"], result(failed)["error"]) == ("failed", "model_error")
    [node, _] = await tenant.rows(
        "SELECT * FROM state.turn_nodes WHERE project_id = $1 AND parent_turn_id IS NOT NULL ORDER BY agent_turn_id",
        tenant.project,
    )
    assert (node["parent_turn_id"], node["waited"]) == (ended.view.agent_turn_id, True)
    child = await tenant.ended(node["agent_turn_id"])
    [agent] = await tenant.rows("SELECT * FROM resource.project_agents WHERE agent_id = $1", child.view.agent_id)
    assert agent["owner_agent_id"] == CHIEF


async def test_a_tool_forks_and_asks_again_by_keys_of_its_own(tenant: Tenant) -> None:
    async with serving(tenant, research(tenant)):
        told = result(await asked(tenant, "gather", instructions=[says("a"), FAILS, says("c")], join="all"))
        assert told["then"] == ["second", "third"]
        assert told["first"]["status"] == "partial"
        results = told["first"]["results"]
        assert [(r["label"], r["status"], r["summary"]) for r in results if r["status"] == "success"] == [
            ("n0", "success", "a"),
            ("n2", "success", "c"),
        ]
        assert await children(tenant) == 5
        bad = answer(await asked(tenant, "gather", instructions=[says("a")], join="most"))
        assert (bad.status, bad.error and bad.error.code) == ("failed", "invalid_arguments")
        assert await children(tenant) == 5


@pytest.mark.parametrize(
    ("policy", "code"),
    [(ALL, "unknown_profile"), (None, "unknown_profile"), ({"target_profiles": []}, "delegation_denied")],
)
async def test_what_the_caller_may_not_the_tool_may_not(tenant: Tenant, policy: JsonObject | None, code: str) -> None:
    async with serving(tenant, research(tenant), policy=policy):
        if code == "delegation_denied":
            await tenant.profile("secret", "player")
        ended = await asked(tenant, "shy", instruction=says("no"))
        assert result(ended) == code
        if policy is not ALL:  # a refusal that the tool does not catch is the code of its result
            told = answer(await asked(tenant, "ask", instruction=says("no")))
            assert (told.status, told.error and told.error.code) == ("failed", "delegation_denied")
    assert await children(tenant) == 0


async def test_a_chain_too_deep_is_refused(tenant: Tenant) -> None:
    async with serving(tenant, research(tenant)):
        line = steps(calling(("ask", {"instruction": says("no")})))
        reply = await tenant.ask({"agent_id": CHIEF, "instruction": line}, headers={"CG-Recursion-Depth": "19"})
        told = answer(await tenant.ended(turn_of(reply)))
    assert (told.error and told.error.code, await children(tenant)) == ("recursion_depth_exceeded", 0)


async def test_a_stop_of_the_caller_reaches_what_its_tool_waits_for(tenant: Tenant) -> None:
    async with serving(tenant, research(tenant)):
        reply = await tenant.enqueue(CHIEF, steps(calling(("ask", {"instruction": NEVER}))))

        async def asks() -> bool:
            return await children(tenant) == 1

        await until(asks, 25, "the child is there")
        stopped = await tenant.client.request("stop", {"agent_turn_id": turn_of(reply)})
        assert (stopped["status"], stopped["marked"]) == ("accepted", 2)
        await tenant.all_ended([turn_of(reply)] * 2, 30)
        rows = await tenant.rows("SELECT status FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
        assert [row["status"] for row in rows] == ["canceled"] * 2


async def test_a_call_that_is_answered_first_withdraws_what_its_tool_asked(tenant: Tenant) -> None:
    service = ToolService(tenant.project)

    @service.tool(target="research", suffix="hasty", timeout_seconds=1)
    async def hasty(call: ToolCall) -> str:
        """Ask one agent that never ends."""
        return str(await call.delegate(NEVER, profile="worker"))

    async with serving(tenant, service):
        ended = await asked(tenant, hasty.__name__)
        error = answer(ended).error
        assert error is not None
        assert error.code == "tool_timeout"
        await tenant.all_ended([ended.view.agent_turn_id] * 2, 30)
    [batch] = await tenant.rows("SELECT * FROM state.pmo_batches WHERE project_id = $1", tenant.project)
    assert (batch["status"], batch["result"]) == ("withdrawn", None)


async def test_a_forged_request_makes_no_child(tenant: Tenant) -> None:
    async with serving(tenant, research(tenant)):
        reply = await tenant.enqueue(CHIEF, steps(calling(("ask", {"instruction": NEVER}))))
        turn = turn_of(reply)

        async def asks() -> bool:
            return await children(tenant) == 1

        await until(asks, 25, "the child is there")
        arguments: JsonObject = {"target_strategy": "new", "target_ref": "worker", "instruction": "x"}
        call = call_of(turn)
        asked: JsonObject = {"tool_call_id": call, "key": "2", "tool": "delegate_async", "arguments": arguments}
        elsewhere = BridgeClient(tenant.stack.conn, tenant.project, ChannelId("other"))
        cases: tuple[tuple[BridgeClient, JsonObject, dict[str, str], str], ...] = (
            (tenant.client, {"tool_call_id": "call_none"}, {}, "unknown_call"),
            (tenant.client, {"key": "a/b"}, {}, "bad_request"),
            (tenant.client, {"tool": "provision_agent"}, {}, "bad_request"),
            (tenant.client, {"parent": "x"}, {}, "bad_request"),
            (tenant.client, {"key": "1"}, {}, "key_conflict"),
            (tenant.client, {"arguments": {**arguments, "epoch": 1}}, {}, "invalid_arguments"),
            (tenant.client, {}, {"CG-Turn-Id": "other"}, "not_your_call"),
            (elsewhere, {}, {}, "unknown_call"),
        )
        for client, given, headers, code in cases:
            told = await client.request("delegate", asked | given, headers=headers)
            assert (told["status"], told["error_code"]) == ("rejected", code), given
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await tenant.ended(turn)
        told = await tenant.client.request("delegate", asked)
        assert (told["status"], told["error_code"]) == ("rejected", "parent_over")
        assert await children(tenant) == 1
