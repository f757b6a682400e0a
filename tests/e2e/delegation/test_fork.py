"""`fork_join` from a model's call to the answer (protocol §12): order, joins, refusals, deadlines."""

import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.conditions import until
from tests.support.delegation import CHIEF, answer, chief_says, fork, result, says, staff, steps, task
from tests.support.tenants import CHANNEL, Ended, Tenant, turn_of
from tests.support.tools import call_of, calling
from tests.turnstile.support import turnstile
from turnstile.cli.turns.turn_tree import picture
from turnstile.ledger.roster import add_agent, put_tool
from turnstile.ledger.trees.tree_views import tree
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.ids import AgentId, ChannelId
from turnstile.schema.states import TurnStatus
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire import headers
from turnstile.schema.wire.descriptions import DescribeReply, TreeTurn

pytestmark = pytest.mark.shared_stack

FAILS = steps({"error": {"code": "model_error", "message": "no"}})
NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)


def statuses(ended: Ended) -> tuple[str, list[str]]:
    """The batch's status, and its tasks' in their order."""
    told = result(ended)
    assert [each["task_index"] for each in told["results"]] == list(range(len(told["results"])))
    assert answer(ended).status == told["status"]
    return told["status"], [each["status"] for each in told["results"]]


async def children(tenant: Tenant) -> int:
    return await tenant.count("state.turn_nodes", "parent_turn_id IS NOT NULL")


async def test_results_come_in_the_order_of_the_tasks(tenant: Tenant) -> None:
    await staff(tenant)
    tasks = [task(instruction=says(f"number {n}", delay_seconds=0.3 - n / 10), label=f"n{n}") for n in range(3)]
    ended = await chief_says(tenant, fork(tasks))
    assert statuses(ended) == ("success", ["success"] * 3)
    results = result(ended)["results"]
    assert [(r["summary"], r["label"]) for r in results] == [(f"number {n}", f"n{n}") for n in range(3)]
    for each in results:
        child = await tenant.ended(each["agent_turn_id"])
        assert (child.view.output_box_id, child.view.deliverable_card_id) == (
            each["output_box_id"],
            each["deliverable_card_id"],
        )
    assert len({r["agent_id"] for r in results}) == 3
    edges = await tenant.rows(
        "SELECT edge_phase FROM state.execution_edges WHERE project_id = $1 AND primitive = 'join' ORDER BY 1",
        tenant.project,
    )
    assert [edge["edge_phase"] for edge in edges] == ["request", "response"]


async def test_a_summary_is_the_text_or_the_fields_and_is_bounded(tenant: Tenant) -> None:
    await staff(tenant)
    fields = [{"name": name, "value": value} for name, value in (("summary", "all"), ("output", ""), ("n", 3))]
    submits = steps(calling(("submit_result", {"result": {"fields": fields}})))
    ended = await chief_says(tenant, fork([task(instruction=says("word " * 1000)), task(instruction=submits)]))
    long, short = (each["summary"] for each in result(ended)["results"])
    assert (len(long), short) == (2000, "summary: all | n: 3")


@pytest.mark.parametrize(
    ("instructions", "fields", "expected"),
    [
        ((says("a"), FAILS), {}, ("partial", ["success", "failed"])),
        ((FAILS, FAILS), {}, ("failed", ["failed", "failed"])),
        ((FAILS, NEVER), {"fail_fast": True}, ("failed", ["failed", "canceled"])),
        ((says("a"), NEVER), {"deadline_seconds": 2}, ("timeout", ["success", "timeout"])),
        ((says("a"), NEVER), {"deadline_seconds": 2, "join": "all"}, ("partial", ["success", "timeout"])),
        ((says("a"), NEVER), {"join": "any"}, ("success", ["success", "canceled"])),
        ((says("a"), says("b"), NEVER), {"join": "first_k", "k": 2}, ("success", ["success", "success", "canceled"])),
        ((says("a"), says("b"), NEVER), {"join": "quorum"}, ("success", ["success", "success", "canceled"])),
        ((FAILS, FAILS, NEVER), {"join": "quorum"}, ("failed", ["failed", "failed", "canceled"])),
    ],
)
async def test_joins(
    tenant: Tenant, instructions: tuple[str, ...], fields: dict[str, Any], expected: tuple[str, list[str]]
) -> None:
    await staff(tenant)
    ended = await chief_says(tenant, fork([task(instruction=instruction) for instruction in instructions], **fields))
    assert ended.view.status == "success"  # a child's failure is data for its parent
    status, each = statuses(ended)
    assert (status, [one if one != "dispatched" else "canceled" for one in each]) == expected
    await tenant.all_ended([ended.view.agent_turn_id] * (1 + len(instructions)), 20)


@pytest.mark.parametrize(
    ("tasks", "fields", "code", "reason"),
    [
        ([task(), task("nobody")], {}, "not_found", "unknown_profile"),
        ([task(), task("secret")], {}, "auth_failed", "delegation_denied"),
        ([task()] * 1001, {}, "bad_request", "too_many_tasks"),
        ([task()], {"deadline_seconds": 0}, "bad_request", "invalid_arguments"),
        ([task()], {"join": "first_k", "k": 2}, "bad_request", "invalid_arguments"),
        ([], {}, "bad_request", "invalid_arguments"),
        ([task("mate", target_strategy="reuse")] * 2, {}, "bad_request", "duplicate_agent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_one_bad_task_refuses_the_batch(
    tenant: Tenant, tasks: list[JsonObject], fields: dict[str, Any], code: str, reason: str
) -> None:
    await staff(tenant, policy={"target_profiles": ["worker"]})
    await tenant.profile("secret", "player")
    await add_agent(tenant.pool, tenant.project, AgentId("mate"), "worker")
    ended = await chief_says(tenant, fork(tasks, **fields))
    told = answer(ended)
    assert (told.status, told.error and told.error.code, ended.view.status) == (TurnStatus.FAILED, code, "success")
    assert result(ended)["error_detail"] == {"reason": reason}
    assert (await children(tenant), await tenant.count("state.pmo_batches")) == (0, 0)


async def test_text_of_all_tasks_counts_towards_the_limit(tenant: Tenant) -> None:
    """Each is well within it. A model cannot say so much in one answer; a row of the project's may add to that."""
    await staff(tenant)
    said = {"steps": [fork([task(instruction="{instruction}")] * 2)], "more": "x" * 300_000}
    cut = await tenant.turn(CHIEF, json.dumps(said))
    assert [r[:2] for r in cut.results()] == [("failed", "invalid_arguments")]
    given = {"args": {"fixed": {"tasks": [task(instruction="x" * 300_000)] * 2}}}
    row = kernel_tools()["fork_join"].model_dump(exclude={"options"}, exclude_none=True)
    await put_tool(tenant.pool, tenant.project, ToolDefinition.model_validate({**row, "options": given}))
    ended = await chief_says(tenant, fork([]))
    assert [r[:2] for r in ended.results()] == [("failed", "bad_request")]
    assert result(ended)["error_detail"] == {"reason": "text_too_large"}
    assert (cut.view.status, ended.view.status) == ("success", "success")
    assert (await children(tenant), await tenant.count("state.pmo_batches")) == (0, 0)


async def test_commands_for_a_fork_that_waits_make_no_more_children(tenant: Tenant) -> None:
    """Its own again, which finds the batch; and forged ones, which are recorded."""
    await staff(tenant)
    turn = turn_of(await tenant.enqueue(CHIEF, steps(fork([task(instruction=NEVER)] * 2))))

    async def forked() -> bool:
        return await children(tenant) == 2

    await until(forked, 25, "two children are there")
    subject = f"cg.v1r4.{tenant.project}.public.cmd.sys.pmo.internal."
    body: JsonObject = {"tool_call_card_id": "x", "tool_name": "fork_join", "after_execution": "suspend"}
    call: dict[str, str] = {headers.TOOL_CALL_ID: call_of(turn)}
    forged: list[tuple[str, JsonObject, dict[str, str]]] = [
        ("fork_join", body, call),
        ("fork_join", body, {**call, headers.TURN_ID: "another"}),
        ("fork_join", body, {**call, headers.AGENT_ID: "another"}),
        ("fork_join", body, {**call, headers.TURN_EPOCH: "9"}),
        ("delegate_async", {**body, "tool_name": "delegate_async"}, call),
        ("fork_join", body, {**call, headers.PROJECT_ID: "another"}),
        ("fork_join", {**body, "tool_name": "delegate_async"}, call),
        ("fork_join", {**body, "arguments": {"tasks": [task()]}}, call),
        ("no_tool_of_ours", body, call),
    ]
    for tool, payload, given in forged:
        await tenant.stack.conn.js.publish(subject + tool, json.dumps(payload).encode(), headers=given)

    async def recorded() -> list[str] | None:
        rows = await tenant.rows(
            "SELECT error_code FROM state.rejections WHERE project_id = $1 ORDER BY error_code", tenant.project
        )
        return [row["error_code"] for row in rows] if len(rows) >= len(forged) - 1 else None

    assert await until(recorded, 25, "all but one are recorded") == ["bad_request"] * 4 + ["not_your_call"] * 4
    assert (await children(tenant), await tenant.count("state.pmo_batches")) == (2, 1)
    await tenant.client.request("stop", {"agent_turn_id": turn, "reason": "enough"})
    await tenant.all_ended([turn] * 3, 30)


async def test_with_a_join_a_bad_task_fails_alone(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await chief_says(tenant, fork([task("nobody"), task(), task("nobody")], join="all"))
    assert statuses(ended) == ("partial", ["failed", "success", "failed"])
    assert [each["error"] for each in result(ended)["results"]] == ["unknown_profile", None, "unknown_profile"]
    ended = await chief_says(tenant, fork([task("nobody")], join="any"))
    assert statuses(ended) == ("failed", ["failed"])


async def test_an_inactive_agent_fails_its_task_alone(tenant: Tenant) -> None:
    await staff(tenant)
    await add_agent(tenant.pool, tenant.project, AgentId("mate"), "worker")
    reply = await tenant.client.request("agent.retire", {"agent_id": "mate"})
    assert reply["status"] == "accepted"
    ended = await chief_says(tenant, fork([task("mate", target_strategy="reuse"), task()]))
    assert statuses(ended) == ("partial", ["failed", "success"])
    assert result(ended)["results"][0]["error"] == "agent_inactive"


async def test_a_fork_too_deep_fails_each_of_its_tasks(tenant: Tenant) -> None:
    await staff(tenant)
    reply = await tenant.ask(
        {"agent_id": CHIEF, "instruction": steps(fork([task(), task()]))}, headers={"CG-Recursion-Depth": "19"}
    )
    assert reply.agent_turn_id is not None
    ended = await tenant.ended(reply.agent_turn_id)
    assert statuses(ended) == ("failed", ["failed", "failed"])
    assert {each["error"] for each in result(ended)["results"]} == {"recursion_depth_exceeded"}


async def test_children_fork_in_their_turn(tenant: Tenant) -> None:
    await staff(tenant)
    below = [task("chief", steps(fork([task(instruction=says("leaf"))] * 2), {"text": "joined"}))] * 2
    ended = await chief_says(tenant, fork(below))
    assert statuses(ended) == ("success", ["success", "success"])
    assert [each["summary"] for each in result(ended)["results"]] == ["joined", "joined"]
    assert await children(tenant) == 6


async def test_a_tree_is_described_and_shown(tenant: Tenant) -> None:
    await staff(tenant)
    below = [task("chief", steps(fork([task(instruction=FAILS)]), {"text": "went on"}), label="left"), task()]
    ended = await chief_says(tenant, fork(below))
    turn = ended.view.agent_turn_id
    plain = await tenant.client.request("describe", {"agent_turn_id": turn})
    assert plain["tree"] is None
    told = DescribeReply.model_validate(await tenant.client.request("describe", {"agent_turn_id": turn, "tree": True}))
    assert told.tree is not None
    assert [(each.depth, each.status, each.label, each.task_index) for each in told.tree] == [
        (0, "success", None, None),
        (1, "success", "left", 0),
        (2, "failed", None, 0),
        (1, "success", None, 1),
    ]
    leaf = told.tree[2].agent_turn_id
    found = await tenant.pool.run(lambda conn: tree(conn, tenant.project, leaf))
    assert [each.agent_turn_id for each in found] == [each.agent_turn_id for each in told.tree]
    paged: list[TreeTurn] = []
    while len(paged) < len(found):
        after = paged[-1].agent_turn_id if paged else None
        paged += await tenant.pool.run(
            lambda conn, after=after: tree(conn, tenant.project, turn, channel=CHANNEL, after=after, row_limit=1)
        )
    assert paged == found
    assert await tenant.pool.run(lambda conn: tree(conn, tenant.project, turn, channel=ChannelId("u_x"))) == []
    lines = drawn(found)
    assert lines[0].startswith("! chief success")
    assert "with all 4 turns" in lines[0]
    assert "✗" in lines[2]
    assert "failed" in lines[2]
    assert "✗" not in lines[3]


def drawn(nodes: list[TreeTurn]) -> list[str]:
    console = Console(width=200, file=StringIO())
    with console.capture() as captured:
        console.print(picture(nodes, datetime.now(UTC)))
    return captured.get().splitlines()


async def test_a_stop_of_the_parent_reaches_those_it_waits_for(tenant: Tenant) -> None:
    await staff(tenant)
    reply = await tenant.enqueue(CHIEF, steps(fork([task(instruction=NEVER)] * 2)))
    assert reply.agent_turn_id is not None

    async def forked() -> bool:
        return await children(tenant) == 2

    await until(forked, 25, "two children are there")
    stopped = await tenant.client.request("stop", {"agent_turn_id": reply.agent_turn_id, "reason": "enough"})
    assert stopped["status"] == "accepted"
    await tenant.all_ended([reply.agent_turn_id] * 3, 30)
    rows = await tenant.rows("SELECT status FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
    assert [row["status"] for row in rows] == ["canceled"] * 3


async def test_the_command_stops_whom_it_is_told_to_and_says_how_many(tenant: Tenant) -> None:
    await staff(tenant)
    alone = calling(("delegate_async", task(instruction=NEVER)))
    reply = await tenant.enqueue(CHIEF, steps(alone, fork([task(instruction=NEVER)])))

    async def streams() -> bool:
        return await tenant.count("state.agent_state_head", f"status = 'running' AND agent_id <> '{CHIEF}'") == 2

    await until(streams, 25, "two children stream")
    turn = str(reply.agent_turn_id)
    own = ("--config", str(tenant.stack.config), "--project", tenant.project)
    ran = await turnstile("turn", "stop", turn, *own, cwd=Path.cwd())
    line = "is stopped, with 1 turn below it; 1 had a step or calls in progress, whose results may still arrive"
    assert (ran.code, " ".join(ran.out.split())) == (0, f"turn {turn} {line}"), ran
    await tenant.all_ended([turn_of(reply)] * 2, 30)
    ran = await turnstile("turn", "stop", turn, "--cascade", "all", *own, "--json", cwd=Path.cwd())
    told = ran.json()
    assert (told["already_final"], told["marked"], told["on_their_way"]) == (True, 1, 1)
    await tenant.all_ended([turn_of(reply)] * 3, 30)
