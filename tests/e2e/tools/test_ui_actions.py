"""UI actions from the outside (protocol §7.10): what is pressed, what is told, and what is left behind."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest
import yaml

from lab.support.nats_server import NatsServer
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.delegation import CHIEF, says, staff, task
from tests.support.ledger.actions import (
    ARGS,
    acks,
    allowed,
    began,
    button_of,
    called,
    done,
    pressed,
    raw,
    refused,
    statuses,
    turns,
)
from tests.support.paths import ROOT
from tests.support.processes.net import workflow
from tests.support.processes.stack import QUICK, Config, Stack, open_stack, running_here
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import call_of, definition
from turnstile.activities.budgets.gate import BudgetGate
from turnstile.embedded import Endpoints
from turnstile.ledger.roster import put_tool
from turnstile.processes.migration import migrate_all
from turnstile.processes.run import run_bridge
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.ids import AgentId, AgentTurnId, uuid7
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire import headers
from turnstile.schema.wire.descriptions import DescribeReply
from turnstile.transport.json_messages import encode
from turnstile.transport.streams import UI_ACTIONS_CONSUMER

EXAMPLES = ROOT / "examples" / "ui"
CONFIG: Config = {**QUICK, "bridge": {**QUICK["bridge"], "ui_actions": True}, "tools": {"suspend_timeout_seconds": 0.5}}
# A stack that serves UI actions, and waits for tools no longer than it must.
pytestmark = pytest.mark.stack(CONFIG)


async def test_an_action_whose_time_is_over_calls_nothing(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    def over(_: BudgetGate) -> float:
        return 0.0

    monkeypatch.setattr(BudgetGate, "seconds_left", over)  # as after a long wait for a worker
    async with button_of(tenant) as hand:
        await tenant.profile(f"{hand.agent}-profile", "must-not-be-asked", budget={"max_seconds": 60})
        async with pressed(hand) as waiter:
            ended = await hand.ended(await began(hand, waiter))
        assert hand.commands == []
    assert (ended.view.status, ended.view.error_code) == ("partial", "budget_exhausted")
    assert ended.types() == ["task.deliverable"]


async def test_an_action_is_one_call_whose_result_is_the_deliverable(tenant: Tenant) -> None:
    trace = headers.new_traceparent()
    told = {headers.TRACEPARENT: trace}
    async with button_of(tenant) as hand:
        fields: dict[str, Any] = {"message_id": "m-1", "parent_step_id": "s-0", "metadata": {"source": "test"}}
        turn, last = await done(hand, {"hits": 2}, action_id="a-1", headers=told, **fields)
        ended = await hand.ended(turn)
        [command] = hand.commands
    assert ended.deliverable() == {"hits": 2}
    assert ended.types() == ["tool.call", "tool.result", "task.deliverable"]
    forms = [card.content["__type__"] for card in ended.cards if isinstance(card.content, dict)]
    assert forms == ["ToolCallContent", "ToolResultContent", "JsonContent"]
    assert command.payload["after_execution"] == "terminate"
    assert (ended.view.status, ended.view.correlation_id) == ("success", "m-1")
    assert last.model_dump(exclude_none=True) == {
        "action_id": "a-1",
        "agent_id": hand.agent,
        "status": "done",
        "message_id": "m-1",
        "tool_result_card_id": f"{call_of(turn)}-result",
    }
    [step] = ended.steps
    assert (step.tool_call_ids, step.metadata["attempts"], step.metadata["llm_usage"]) == ([call_of(turn)], [], {})
    first, second = await acks(tenant)
    assert (first.payload["status"], second.payload["status"]) == ("accepted", "done")
    for ack in (first, second):
        assert ack.subject.endswith(".evt.sys.ui.action_ack")
        assert (ack.headers[headers.TURN_ID], ack.headers[headers.AGENT_ID]) == (turn, hand.agent)
        assert headers.trace_id(ack.headers[headers.TRACEPARENT]) == headers.trace_id(trace)
    [edge] = await tenant.rows("SELECT * FROM state.execution_edges WHERE edge_id = $1", f"enqueue-{turn}")
    assert (json.loads(edge["metadata"]), edge["parent_step_id"]) == ({"source": "test"}, "s-0")
    assert await tenant.task_events() == {turn: 1}


async def test_the_arguments_are_filled_and_forced_as_for_a_model(tenant: Tenant) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("q", "unit", "who", "key")}}
    options = {"args": {"defaults": {"unit": "words"}, "fixed": {"who": "{agent_id}"}}, "envs": {"key": "KEY"}}
    async with button_of(tenant, allowed(parameters=schema, options=options)) as hand:
        turn, _ = await done(hand, args={"q": "it", "who": "somebody"})
        ended = await hand.ended(turn)
    [call] = [card for card in ended.cards if card.type == "tool.call"]
    assert isinstance(call.content, dict)
    assert call.content["arguments"] == {"q": "it", "unit": "words", "who": hand.agent, "key": {"$env": "KEY"}}


async def test_an_agent_that_is_not_idle_is_busy_and_nothing_is_written(tenant: Tenant) -> None:
    async with button_of(tenant) as hand, pressed(hand) as first:
        turn = await began(hand, first)
        assert await refused(hand) == ("busy", "agent_busy")
        assert (await turns(tenant), await hand.rejections()) == (1, [])
        await hand.called(call_of(turn))
        await hand.report(call_of(turn))
        assert (await first.last(10)).status == "done"
        _, last = await done(hand)
    assert last.status == "done"


async def test_an_agent_with_a_queue_is_busy_whatever_it_waits_for(tenant: Tenant) -> None:
    """Its queued turn waits for a box that another agent holds, so its head is idle."""
    async with button_of(tenant, allowed(), allowed("hold")) as hand:
        holder = await tenant.agent("player", AgentId("holder"), allowed_tools=["hold"])
        script = json.dumps({"steps": [{"tool_calls": [{"name": "hold", "arguments": ARGS}]}]})
        held = await tenant.enqueue(holder, script)
        await hand.heard()
        waits = await tenant.enqueue(hand.agent, "hello", output_box_id=held.output_box_id)
        assert waits.inbox_status == "queued"
        assert await refused(hand) == ("busy", "agent_busy")
        assert await turns(tenant) == 0
        await hand.report(call_of(turn_of(held)))
        await hand.ended(turn_of(held))
        await hand.ended(turn_of(waits))


@pytest.mark.parametrize(
    ("tool", "args", "fields", "code"),
    [
        ("nosuch", ARGS, {}, "unknown_tool"),
        ("closed", ARGS, {}, "ui_not_allowed"),
        ("search", {"q": 7}, {}, "invalid_arguments"),
        ("search", {"q": "x" * 530_000}, {}, "text_too_large"),
        ("search", {"q": "a\0b"}, {}, "bad_request"),
        ("search", ARGS, {"parent_step_id": "not a token"}, "bad_request"),
        ("search", ARGS, {"metadata": "none"}, "bad_request"),
        ("search", ARGS, {"turn_epoch": 3}, "bad_request"),
        ("search", ARGS, {"headers": {headers.AGENT_ID: "bob"}}, "bad_request"),
        ("search", ARGS, {"headers": {headers.PROJECT_ID: "other"}}, "bad_request"),
        ("search", ARGS, {"headers": {headers.DEPTH: "20"}}, "recursion_depth_exceeded"),
    ],
)
async def test_what_is_refused_is_told_recorded_and_makes_no_turn(
    tenant: Tenant, tool: str, args: JsonObject, fields: dict[str, Any], code: str
) -> None:
    async with button_of(tenant, allowed(), definition("closed")) as hand:
        assert await refused(hand, tool, args, action_id="a-1", **fields) == ("rejected", code)
        assert await hand.rejections() == [(code, {"action_id": "a-1", "agent_id": hand.agent})]
    assert await turns(tenant) == 0
    assert await statuses(tenant) == ["rejected"]


async def test_who_is_not_there_or_not_active_is_refused(tenant: Tenant) -> None:
    async with button_of(tenant) as hand:
        async with tenant.client.ui_action(AgentId("nobody"), "search", ARGS) as waiter:
            assert (await waiter.last(10)).error_code == "unknown_agent"
        await tenant.rows(
            "UPDATE resource.project_agents SET status = 'inactive' WHERE project_id = $1", tenant.project
        )
        assert await refused(hand) == ("rejected", "agent_inactive")


async def test_the_unreadable_is_recorded_answered_where_it_can_be_and_never_seen_again(tenant: Tenant) -> None:
    whose = {headers.AGENT_ID: "alice"}
    async with button_of(tenant) as hand:
        for payload in (b"not json", b"[]", encode({"action_id": "a-1", "tool_name": "search", "args": ARGS})):
            await raw(tenant, payload)
        await raw(tenant, encode({"action_id": "a-2", "agent_id": hand.agent}))
        await raw(tenant, encode({"action_id": "a-3"}), whose)
        await raw(tenant, encode({"action_id": "x" * 257, "tool_name": "search", "args": ARGS}), whose)

        async def settled() -> bool:
            return len(await hand.rejections()) >= 6

        await until(settled, 25, "all are recorded")
        assert {code for code, _ in await hand.rejections()} == {"bad_request"}
        # with the agent in a header alone it is as good
        await raw(tenant, encode({"action_id": "a-4", "tool_name": "search", "args": ARGS}), whose)
        await hand.heard()
        info = await tenant.stack.conn.js.consumer_info("cg_ask_v1r4", UI_ACTIONS_CONSUMER)
        told = {(ack.payload["action_id"], ack.payload["status"]) for ack in await acks(tenant)}
        assert told == {("a-2", "rejected"), ("a-3", "rejected"), ("a-4", "accepted")}
        assert info.num_redelivered == 0
        await hand.report(hand.commands[0].call)
        await hand.ended(AgentTurnId(hand.commands[0].headers[headers.TURN_ID]))


async def test_a_repeat_hears_of_the_first_turn_and_other_content_is_refused(tenant: Tenant) -> None:
    async with button_of(tenant) as hand:
        for key in ("action_id", "message_id"):
            name = f"{key}-1"
            ids: dict[str, Any] = {"action_id": name, **({"message_id": "m-1"} if key == "message_id" else {})}
            async with pressed(hand, **ids) as first:
                turn = await began(hand, first)
                async with pressed(hand, **ids, metadata={"client_ts": "later"}) as again:
                    assert (await again.next()).status == "accepted"
                    assert await refused(hand, args={"q": "other"}, **ids) == ("rejected", "correlation_conflict")
                    await hand.called(call_of(turn))
                    await hand.report(call_of(turn))
                    assert (await again.last(10)).status == (await first.last(10)).status == "done"
            await put_tool(tenant.pool, tenant.project, definition())  # it may be pressed no more
            async with pressed(hand, **ids) as late:
                accepted, last = await late.next(), await late.last(10)
            await put_tool(tenant.pool, tenant.project, allowed())
            assert (accepted.status.value, last.status.value) == ("accepted", "done")
            assert last.tool_result_card_id == f"{call_of(turn)}-result"
        assert await refused(hand, action_id="other", message_id="m-1") == ("rejected", "correlation_conflict")
        assert [command.call for command in hand.commands] == list(dict.fromkeys(c.call for c in hand.commands))
    assert (await turns(tenant), len(await tenant.task_events())) == (2, 2)


async def test_a_turn_and_an_action_share_no_correlation(tenant: Tenant) -> None:
    async with button_of(tenant) as hand:
        _, last = await done(hand, action_id="c-1")
        assert last.status == "done"
        reply = await tenant.ask({"agent_id": hand.agent, "instruction": "hello", "correlation_id": "c-1"})
    assert (reply.status, reply.error_code) == ("rejected", "correlation_conflict")


async def test_a_failed_tool_rejects_the_action_with_its_code(tenant: Tenant) -> None:
    async with button_of(tenant) as hand, pressed(hand) as waiter:
        turn = await called(hand, waiter)
        await hand.report(call_of(turn), status="failed", error={"code": "no_disk", "message": "the disk is full"})
        last = await waiter.last(10)
        ended = await hand.ended(turn)
    assert (last.status, last.error_code, last.tool_result_card_id) == (
        "rejected",
        "no_disk",
        f"{call_of(turn)}-result",
    )
    assert last.error is not None
    assert "disk" not in last.error
    assert ended.view.status == "failed"
    assert ended.deliverable() == {"error": {"code": "no_disk", "message": "the disk is full"}}


async def test_a_tool_that_is_silent_times_the_action_out(tenant: Tenant) -> None:
    async with button_of(tenant, definition(options={"ui_allowed": True})) as hand, pressed(hand) as waiter:
        turn = await began(hand, waiter)
        last = await waiter.last(10)
        ended = await hand.ended(turn)
    assert (last.status, last.error_code) == ("rejected", "tool_timeout")
    assert (ended.view.status, ended.types()) == ("timeout", ["tool.call", "tool.result", "task.deliverable"])


async def test_a_result_that_says_suspend_ends_the_turn_all_the_same(tenant: Tenant) -> None:
    async with button_of(tenant) as hand, pressed(hand) as waiter:
        turn = await called(hand, waiter)
        await hand.answer(call_of(turn), {"n": 1, "__cg_control": {"after_execution": "suspend"}})
        assert (await waiter.last(10)).status == "done"
        ended = await hand.ended(turn)
    assert (ended.deliverable(), len(ended.steps)) == ({"n": 1}, 1)


async def test_an_action_is_stopped_like_any_turn(tenant: Tenant) -> None:
    async with button_of(tenant) as hand, pressed(hand) as waiter:
        turn = await called(hand, waiter)
        reply = await tenant.client.request("stop", {"agent_turn_id": turn})
        last = await waiter.last(10)
        ended = await hand.ended(turn)
    assert reply["status"] == "accepted"
    assert (last.status, last.error_code) == ("rejected", "stopped")
    assert (ended.view.status, ended.results()[0][:2]) == ("canceled", ("canceled", "canceled"))


async def test_an_action_that_is_stopped_while_its_result_ends_it_has_one_step(tenant: Tenant) -> None:
    held = "SELECT FROM state.agent_state_pointers p WHERE p.project_id = $1 FOR UPDATE"
    waiting = (
        "SELECT pid, query_start FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with button_of(tenant) as hand:
        await done(hand, {"n": 1})
        async with pressed(hand) as waiter, tenant.pool.connection() as conn:
            turn = await called(hand, waiter)
            async with conn.transaction():
                await conn.fetch(held, tenant.project)
                await hand.answer(call_of(turn), {"n": 2})
                first = await until(lambda: tenant.rows(waiting), 25, "an end that waits")

                async def by_stop() -> bool:
                    return await tenant.rows(waiting) not in ([], first)

                await workflow(tenant.stack, turn).cancel()
                await until(by_stop, 25, "the end by the stop")
            ended = await hand.ended(turn)
    assert (ended.view.status, ended.view.error_code, len(ended.steps)) == ("canceled", "stopped", 1)


async def test_a_tool_that_changed_before_its_step_fails_the_turn(tenant: Tenant) -> None:
    """What the bridge could not know: the row is taken away once the turn is there."""
    async with button_of(tenant) as hand:
        await tenant.rows(
            "CREATE FUNCTION state.close_tool() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " UPDATE resource.tools SET options = '{}' WHERE project_id = NEW.project_id; RETURN NEW; END $$"
        )
        await tenant.rows(
            "CREATE TRIGGER close_tool AFTER INSERT ON state.agent_inbox FOR EACH ROW"
            f" WHEN (NEW.project_id = '{tenant.project}') EXECUTE FUNCTION state.close_tool()"
        )
        try:
            async with pressed(hand) as waiter:
                turn = await began(hand, waiter)
                last = await waiter.last(10)
        finally:
            await tenant.rows("DROP FUNCTION state.close_tool CASCADE")
        ended = await hand.ended(turn)
    assert (last.status, last.error_code) == ("rejected", "ui_not_allowed")
    assert (ended.view.status, ended.types(), hand.commands) == ("failed", ["task.deliverable"], [])


async def test_two_bridges_make_one_turn_of_actions_pressed_at_once(tenant: Tenant) -> None:
    async with running_here(tenant.stack, run_bridge), button_of(tenant) as hand:
        ids: dict[str, Any] = {"action_id": "a-1"}
        payload = encode({"agent_id": hand.agent, "tool_name": "search", "args": ARGS, **ids})
        async with pressed(hand, **ids) as waiter:
            await asyncio.gather(*(raw(tenant, payload) for _ in range(19)))
            turn = await called(hand, waiter)

            async def all_told() -> bool:
                return (await statuses(tenant)).count("accepted") == 20

            await until(all_told, 25, "each is accepted")
            assert await refused(hand, action_id="a-2") == ("busy", "agent_busy")
            await hand.report(call_of(turn))
            assert (await waiter.last(10)).status == "done"
    assert (await turns(tenant), len(hand.commands)) == (1, 1)
    assert await tenant.task_events() == {turn: 1}


async def test_the_example_switches_a_light(tenant: Tenant) -> None:
    nats = ("--nats", tenant.stack.endpoints.nats_url)
    light = await asyncio.create_subprocess_exec(sys.executable, EXAMPLES / "light.py", *nats)
    row = ToolDefinition.model_validate(yaml.safe_load((EXAMPLES / "light.yaml").read_text()))
    async with button_of(tenant, row) as hand:
        whose = ("--agent", hand.agent, "--project", tenant.project)
        words = (*nats, *whose, "switch_light", '{"on": true}')
        press = await asyncio.create_subprocess_exec(sys.executable, EXAMPLES / "press.py", *words, stdout=PIPE)
        said, _ = await press.communicate()
        light.terminate()
        assert (press.returncode, await light.wait()) == (0, 0)
        first, last = (json.loads(line) for line in said.splitlines())
        ended = await hand.ended(AgentTurnId(hand.commands[0].headers[headers.TURN_ID]))
    assert (first["status"], last["status"], ended.deliverable()) == ("accepted", "done", {"on": True})


async def test_nothing_is_served_unless_it_is_turned_on(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And what was pressed before is not done when it is."""
    server, name = NatsServer(), await databases.create(migrated)
    server.start()
    update = {"database_url": databases.url(name), "nats_url": server.url}
    endpoints = servers.model_copy(update=update)
    try:
        async with open_stack(endpoints, tmp_path_factory.mktemp("off")) as off:
            tenant = new_tenant(off)
            async with running_here(off), button_of(tenant) as hand, pressed(hand, action_id="early"):
                assert (await tenant.turn(await tenant.agent("echo", AgentId("bob")))).view.status
                consumers = {each.name for each in await off.conn.js.consumers_info("cg_ask_v1r4")}
                assert "turnstile_bridge_verbs" in consumers
                assert UI_ACTIONS_CONSUMER not in consumers
                bridge = off.settings.bridge.model_copy(update={"ui_actions": True})
                on = off.settings.model_copy(update={"bridge": bridge})
                assert UI_ACTIONS_CONSUMER in (await migrate_all(on, endpoints)).consumers
                serving = Stack(off.directory, off.config, on, endpoints, off.pool, off.conn, off.temporal)
                async with running_here(serving, run_bridge):
                    turn, last = await done(hand, action_id=uuid7())
            assert (last.status, await turns(tenant)) == ("done", 1)
            assert [ack.payload["action_id"] for ack in await acks(tenant)] == [last.action_id] * 2
            assert (await tenant.task_events())[turn] == 1
    finally:
        await databases.drop(name)
        server.remove()


async def press(tenant: Tenant, tool: str, args: JsonObject) -> tuple[str, str | None, Any]:
    """Press a button of the chief; returns how it ended, and the result of its call."""
    async with tenant.client.ui_action(CHIEF, tool, args) as waiter:
        ack = await waiter.last(20)
    if ack.tool_result_card_id is None:
        return ack.status.value, ack.error_code, None
    reply = await tenant.client.request("describe", {"card_id": ack.tool_result_card_id})
    content = DescribeReply.model_validate(reply).card
    assert content is not None
    assert isinstance(content.content, dict)
    return ack.status.value, ack.error_code, content.content["result"]


async def test_people_delegate_and_provision_as_v1r4_lets_them(tenant: Tenant) -> None:
    """With the kernel's own tools; a fork is a model's, unless a row of the project says otherwise."""
    await staff(tenant)
    status, _, told = await press(tenant, "delegate_async", task(instruction=says("hello")))
    assert (status, told["status"]) == ("done", "accepted")
    assert (await tenant.ended(told["agent_turn_id"])).deliverable() == "hello"
    status, _, told = await press(tenant, "delegate_async", task(instruction=says("hello"), wait=True))
    assert (status, told["value"]) == ("done", "hello")
    status, _, told = await press(
        tenant, "provision_agent", {"action": "ensure", "agent_id": "mate", "profile_name": "worker"}
    )
    assert (status, told["agent_id"]) == ("done", "mate")
    fork: JsonObject = {"tasks": [task()]}
    assert await press(tenant, "fork_join", fork) == ("rejected", "ui_not_allowed", None)
    assert await press(tenant, "launch_principal", {}) == ("rejected", "ui_not_allowed", None)
    own = kernel_tools()["fork_join"].model_dump(mode="json") | {"options": {"ui_allowed": True}}
    await put_tool(tenant.pool, tenant.project, ToolDefinition.model_validate(own))
    status, _, told = await press(tenant, "fork_join", fork)
    assert (status, told["status"], told["results"][0]["summary"]) == ("done", "success", "done")


async def test_people_may_what_the_agent_may_whose_button_it_is(tenant: Tenant) -> None:
    await staff(tenant, policy={"target_profiles": []})
    assert (await press(tenant, "delegate_async", task()))[:2] == ("rejected", "auth_failed")
    assert (await press(tenant, "delegate_async", {**task(), "depth": 1}))[:2] == ("rejected", "invalid_arguments")
    assert await tenant.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == 0
