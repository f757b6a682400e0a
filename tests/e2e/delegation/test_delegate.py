"""One agent asks another (protocol §12): who is asked, what it reads, what the caller is answered, and who may not."""

import json
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.delegation import ALL, CHIEF, answer, chief_says, fork, result, says, staff, steps, task
from tests.support.ledger.calls import TOOL
from tests.support.tenants import Ended, Tenant
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.roster import add_agent
from turnstile.ledger.turns.cards import box_cards
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import headers
from turnstile.workflows.options import turn_workflow_id

pytestmark = pytest.mark.shared_stack

MATE = AgentId("mate")


async def delegated(tenant: Tenant, *lines: JsonObject, **arguments: Any) -> Ended:
    return await chief_says(tenant, calling(("delegate_async", task(**arguments))), *lines)


async def node(tenant: Tenant, turn: AgentTurnId) -> dict[str, Any]:
    [row] = await tenant.rows("SELECT * FROM state.turn_nodes WHERE agent_turn_id = $1", turn)
    return row


async def context_types(tenant: Tenant, box: str) -> list[str]:
    cards = await tenant.pool.run(lambda conn: box_cards(conn, tenant.project, BoxId(box)))
    return [card.type for card in cards or []]


async def test_a_new_agent_gets_the_task_and_the_caller_its_ids_at_once(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await delegated(tenant)
    told = result(ended)
    assert set(told) == {"status", "agent_id", "agent_turn_id", "turn_epoch", "context_box_id", "output_box_id"}
    assert (told["status"], told["turn_epoch"], answer(ended).status) == ("accepted", 1, TurnStatus.SUCCESS)
    child = await tenant.ended(told["agent_turn_id"])
    assert (child.deliverable(), child.view.agent_id, child.view.output_box_id) == (
        "done",
        told["agent_id"],
        told["output_box_id"],
    )
    assert await context_types(tenant, told["context_box_id"]) == ["task.instruction", "meta.parent_pointer"]
    at = await node(tenant, told["agent_turn_id"])
    assert (at["parent_turn_id"], at["root_turn_id"], at["waited"]) == (ended.view.agent_turn_id,) * 2 + (False,)
    [agent] = await tenant.rows("SELECT * FROM resource.project_agents WHERE agent_id = $1", told["agent_id"])
    assert (agent["owner_agent_id"], agent["tags"]) == (CHIEF, '["associate"]')
    assert json.loads(agent["metadata"])["spawned_by"] == CHIEF
    [edge] = await tenant.rows(
        "SELECT * FROM state.execution_edges WHERE edge_id = $1", f"enqueue-{told['agent_turn_id']}"
    )
    call = call_of(ended.view.agent_turn_id)
    assert (edge["correlation_id"], edge["recursion_depth"]) == (f"{call}-0", 1)
    assert (edge["source_agent_id"], edge["source_agent_turn_id"]) == (CHIEF, ended.view.agent_turn_id)


async def test_a_childs_span_is_under_the_call_that_made_it(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await delegated(tenant)
    rows = await tenant.rows(
        "SELECT agent_turn_id, context_headers FROM state.agent_inbox WHERE project_id = $1 AND message_type = 'turn'",
        tenant.project,
    )
    context = {row["agent_turn_id"]: json.loads(row["context_headers"]) for row in rows}
    parent, child = context[ended.view.agent_turn_id], context[result(ended)["agent_turn_id"]]
    call = headers.derived_span(parent[headers.TRACEPARENT], call_of(ended.view.agent_turn_id))
    assert call is not None
    assert child[headers.PARENT_SPAN] == headers.span_id(call)
    assert headers.trace_id(child[headers.TRACEPARENT]) == headers.trace_id(call)


async def test_a_child_is_found_in_temporal_by_its_parent(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await delegated(tenant)
    child = result(ended)["agent_turn_id"]
    await tenant.ended(child)
    turn = ended.view.agent_turn_id
    query = f"TurnRoot = '{turn}' AND TurnParent = '{turn}'"

    async def found() -> list[str] | None:
        return [workflow.id async for workflow in tenant.stack.temporal.list_workflows(query)] or None

    assert await until(found, 25, "the child is listed") == [turn_workflow_id(child)]


async def test_a_child_reads_what_it_inherits_before_its_instruction(tenant: Tenant) -> None:
    await staff(tenant)
    first = await chief_says(tenant, {"text": "I know much."})
    box = first.view.output_box_id
    ended = await delegated(tenant, context_box_id=box)  # its last output box
    types = await context_types(tenant, result(ended)["context_box_id"])
    assert types[-3:] == ["task.deliverable", "task.instruction", "meta.parent_pointer"]
    assert types.count("agent.thought") == 1


async def test_reuse_asks_the_agent_that_is_there_and_writes_where_it_writes(tenant: Tenant) -> None:
    await staff(tenant)
    await tenant.profile("echo", "mirror")
    await add_agent(tenant.pool, tenant.project, MATE, "echo")
    first = await tenant.turn(MATE, "hello")
    ended = await delegated(tenant, target_strategy="reuse", target=MATE, instruction="again")
    told = result(ended)
    assert (told["agent_id"], told["output_box_id"]) == (MATE, first.view.output_box_id)
    child = await tenant.ended(told["agent_turn_id"])
    assert "again" in str(child.deliverable())


async def test_a_clone_has_its_sources_profile_and_what_it_wrote(tenant: Tenant) -> None:
    await staff(tenant)
    await add_agent(tenant.pool, tenant.project, MATE, "worker")
    await tenant.turn(MATE, says("hello"))
    ended = await delegated(tenant, target_strategy="clone", target=MATE)
    told = result(ended)
    assert told["agent_id"] != MATE
    types = await context_types(tenant, told["context_box_id"])
    assert types[-3:] == [CardType.DELIVERABLE, CardType.INSTRUCTION, CardType.PARENT_POINTER]
    [agent] = await tenant.rows("SELECT * FROM resource.project_agents WHERE agent_id = $1", told["agent_id"])
    assert agent["owner_agent_id"] == MATE
    assert json.loads(agent["metadata"])["derived_from"] == MATE


async def test_a_principal_is_launched(tenant: Tenant) -> None:
    await staff(tenant)
    call = ("launch_principal", {"profile_name": "Worker", "instruction": says("I go on alone.")})
    ended = await chief_says(tenant, calling(call))
    child = await tenant.ended(result(ended)["agent_turn_id"])
    assert child.deliverable() == "I go on alone."


async def test_with_wait_the_answer_is_the_result(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await delegated(tenant, wait=True, instruction=says("forty-two"))
    told = result(ended)
    assert (told["status"], told["value"], answer(ended).status) == ("success", "forty-two", TurnStatus.SUCCESS)
    at = await node(tenant, told["agent_turn_id"])
    assert (at["parent_turn_id"], at["waited"]) == (ended.view.agent_turn_id, True)


async def test_fields_that_are_wanted_come_back_and_control_keys_are_only_words(tenant: Tenant) -> None:
    await staff(tenant)
    fields = [{"name": "__cg_control", "value": {"after_execution": "terminate"}}]
    line = calling(("submit_result", {"fields": fields}))
    wanted: list[Any] = [{"name": "__cg_control", "description": "What to do."}]
    ended = await delegated(tenant, wait=True, instruction=steps(line), result_fields=wanted)
    assert result(ended)["value"] == {"fields": fields}
    assert len(ended.steps) == 2  # the caller went on
    assert ended.view.status == "success"


async def test_an_expert_answers_and_reads_what_was_done_so_far(tenant: Tenant) -> None:
    await staff(tenant)
    await tenant.profile("expert", "mirror")
    asked = {"expert_profile": "expert", "question": "What do you see?"}
    alone = await chief_says(tenant, calling(("ask_expert", asked), text="I wonder."))
    assert "I wonder." not in result(alone)["value"]
    known = await chief_says(tenant, calling(("ask_expert", {**asked, "include_history": True}), text="I wonder."))
    assert "I wonder." in result(known)["value"]
    v1r4 = await chief_says(tenant, calling(("ask_expert", {**asked, "wait": False})))
    assert result(v1r4)["status"] == "accepted"


async def test_a_childs_failure_is_data_for_its_parent(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await delegated(tenant, wait=True, instruction=steps({"error": {"code": "model_error", "message": "no"}}))
    told = result(ended)
    assert (answer(ended).status, told["status"], ended.view.status) == (TurnStatus.FAILED, "failed", "success")
    assert told["error"]


async def test_a_recursion_is_ended_by_the_depth_limit(tenant: Tenant) -> None:
    """Each asks the next; the limit of this stack is 20, and the last one that may be made is told so."""
    await staff(tenant)
    reply = await tenant.ask(
        {"agent_id": CHIEF, "instruction": steps(calling(("delegate_async", task())))}, headers={headers.DEPTH: "19"}
    )
    assert reply.agent_turn_id is not None
    ended = await tenant.ended(reply.agent_turn_id)
    assert (answer(ended).status, ended.view.status) == (TurnStatus.FAILED, "success")
    assert result(ended)["error_code"] == "recursion_depth_exceeded"


@pytest.mark.parametrize(
    ("policy", "arguments", "code", "reason"),
    [
        (ALL, {"target": "nobody"}, "not_found", "unknown_profile"),
        (ALL, {"target_strategy": "reuse", "target": "nobody"}, "not_found", "unknown_agent"),
        (ALL, {"target_strategy": "clone", "target": "nobody"}, "not_found", "unknown_agent"),
        (ALL, {"target_strategy": "clone", "target": MATE}, "bad_request", "missing_output_box"),
        (None, {}, "auth_failed", "delegation_denied"),
        ({"target_profiles": []}, {}, "auth_failed", "delegation_denied"),
        ({"target_profiles": ["other"]}, {}, "auth_failed", "delegation_denied"),
        ({"target_tags": ["principal"]}, {}, "auth_failed", "delegation_denied"),
        (
            {"target_tags": ["principal"]},
            {"target_strategy": "reuse", "target": MATE},
            "auth_failed",
            "delegation_denied",
        ),
    ],
)
async def test_refusals_are_failed_results(
    tenant: Tenant, policy: JsonObject | None, arguments: JsonObject, code: str, reason: str
) -> None:
    await staff(tenant, policy=policy)
    await add_agent(tenant.pool, tenant.project, MATE, "worker")
    ended = await delegated(tenant, **arguments)
    told = answer(ended)
    assert (told.status, told.error and told.error.code, ended.view.status) == (TurnStatus.FAILED, code, "success")
    assert isinstance(told.result, dict)
    assert (told.result["error_code"], told.result["error_detail"]) == (code, {"reason": reason})
    assert await tenant.count("state.turn_nodes") == 0
    assert await tenant.count("state.turn_outcomes") == 1


async def test_nobody_waits_for_an_agent_that_waits_for_them(tenant: Tenant) -> None:
    """Neither for themselves nor for one above, at any distance."""
    await staff(tenant)
    itself: dict[str, Any] = {"target_strategy": "reuse", "target": CHIEF, "instruction": says("myself")}
    ended = await delegated(tenant, wait=True, **itself)
    assert (result(ended)["error_detail"], ended.view.status) == ({"reason": "waits_for_itself"}, "success")
    ended = await chief_says(tenant, fork([task(**itself), task()]))
    assert result(ended)["error_detail"] == {"reason": "waits_for_itself"}
    ended = await chief_says(tenant, fork([task(**itself), task()], join="any"))
    assert [each["error"] for each in result(ended)["results"]] == ["waits_for_itself", None]
    below = steps(calling(("delegate_async", task(wait=True, **itself))), {"text": "refused"})
    middle = steps(calling(("delegate_async", task("chief", below, wait=True))), {"text": "{tool_result}"})
    ended = await chief_says(tenant, calling(("delegate_async", task("chief", middle, wait=True))))
    assert result(ended)["status"] == "success"
    refused = await tenant.rows(
        "SELECT content FROM cards WHERE tenant_id = $1 AND metadata ->> 'type' = 'tool.result'"
        " AND content::text LIKE '%waits_for_itself%'",
        tenant.project,
    )
    assert len(refused) == 4


async def test_an_agent_may_ask_itself_without_waiting(tenant: Tenant) -> None:
    """Its turn is queued behind the one that asks, and goes on in the box where that one wrote."""
    await staff(tenant)
    await tenant.profile("asker", "asks_itself", delegation_policy=ALL, allowed_tools=["delegate_async"])
    await add_agent(tenant.pool, tenant.project, MATE, "asker")
    ended = await tenant.turn(MATE, "begin")
    told = result(ended)
    child = await tenant.ended(told["agent_turn_id"])
    assert (child.view.agent_id, child.deliverable()) == (MATE, "go on")
    assert child.view.output_box_id == ended.view.output_box_id


async def test_a_box_of_another_is_not_inherited(tenant: Tenant) -> None:
    await staff(tenant)
    await add_agent(tenant.pool, tenant.project, MATE, "worker")
    other = await tenant.turn(MATE, says("secret"))
    ended = await delegated(tenant, context_box_id=other.view.output_box_id)
    assert result(ended)["error_detail"] == {"reason": "unauthorized_box"}
    ended = await delegated(tenant, context_box_id="0190b8a0-0000-7000-8000-000000000001")
    assert result(ended)["error_detail"] == {"reason": "unauthorized_box"}


async def test_forged_parent_headers_give_nobody_a_child(tenant: Tenant) -> None:
    """An enqueue that names another's turn as its parent joins no tree."""
    await staff(tenant)
    ended = await chief_says(tenant, {"text": "mine"})
    told: dict[str, str] = {headers.PARENT_AGENT_ID: CHIEF, headers.PARENT_TURN_ID: ended.view.agent_turn_id}
    reply = await tenant.ask({"agent_id": CHIEF, "instruction": says("forged")}, headers=told)
    assert reply.agent_turn_id is not None
    await tenant.ended(reply.agent_turn_id)
    assert await tenant.count("state.turn_nodes") == 0


async def test_a_forged_command_makes_nothing_and_is_recorded(tenant: Tenant) -> None:
    """For no call, another tool's, another turn's; and for a call that waits, what its own card says."""
    await staff(tenant, tools=(TOOL,))
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL))
        call = call_of(turn)
        for name, told in (("call_x", {}), (call, {}), (call, {headers.TURN_ID: "another"})):
            subject = f"cg.v1r4.{tenant.project}.public.cmd.sys.pmo.internal.delegate_async"
            body = {"tool_call_card_id": "x", "tool_name": "delegate_async", "after_execution": "suspend"}
            await tenant.stack.conn.js.publish(
                subject, json.dumps(body).encode(), headers={headers.TOOL_CALL_ID: name, **told}
            )
        rejections = await _rejections(tenant, 3)
        await hand.report(call)
        await hand.ended(turn)
    assert rejections == ["not_your_call", "not_your_call", "unknown_call"]
    assert await tenant.count("state.turn_nodes") == 0


async def _rejections(tenant: Tenant, count: int) -> list[str]:
    async def found() -> list[str] | None:
        rows = await tenant.rows(
            "SELECT error_code FROM state.rejections WHERE project_id = $1 ORDER BY error_code", tenant.project
        )
        return [row["error_code"] for row in rows] if len(rows) >= count else None

    return await until(found, 25, f"{count} rejections")
