"""Rows that v1r4's bootstrap wrote, and its principal that maps and reduces, with scripted models (protocol §12)."""

import json
from typing import Any

import pytest
from pydantic import JsonValue

from tests.support.conditions import until
from tests.support.delegation import answers, fork, says, steps, task
from tests.support.tenants import Tenant
from tests.support.tools import calling
from turnstile.ledger.roster import add_agent
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import TextContent, content_of
from turnstile.schema.ids import AgentId, AgentTurnId, new_box_id
from turnstile.schema.wire import headers

pytestmark = pytest.mark.shared_stack

TASK: JsonObject = {
    "type": "object",
    "properties": {
        "target_strategy": {"type": "string", "enum": ["new", "reuse", "clone"]},
        "target_ref": {"type": "string"},
        "instruction": {"type": "string"},
        "context_box_id": {"type": "string"},
    },
    "required": ["target_strategy", "target_ref", "instruction"],
    "additionalProperties": False,
}
FORK: JsonObject = {
    "type": "object",
    "properties": {
        "tasks": {"type": "array", "items": TASK},
        "fail_fast": {"type": "boolean"},
        "deadline_seconds": {"type": "number"},
    },
    "required": ["tasks"],
    "additionalProperties": False,
}
PRINCIPAL = AgentId("principal")
PROMPT = 'You are {display_name}.\n{downstream_roster}\nSubmit {{"result": {{"fields": []}}}} for {project_id}.'
SAVE_CARD = """
    INSERT INTO cards (card_id, tenant_id, content, metadata) VALUES ($1, $2, $3::text::jsonb, $4::text::jsonb)"""
SAVE_BOX = """
    INSERT INTO card_boxes (box_id, tenant_id, card_ids, parent_ids, updated_at)
    VALUES ($1::text::uuid, $2, $3::text::jsonb, NULL, current_timestamp)"""
UPSERT = """
    INSERT INTO resource.profiles (project_id, profile_box_id, name, worker_target, tags, system_prompt_compiled,
        updated_at)
    VALUES ($1, $2, $3, $4, $5::text::jsonb, $6, NOW())
    ON CONFLICT (project_id, name) DO UPDATE SET profile_box_id=EXCLUDED.profile_box_id,
        worker_target=EXCLUDED.worker_target, tags=EXCLUDED.tags,
        system_prompt_compiled=EXCLUDED.system_prompt_compiled, updated_at=NOW()
    RETURNING project_id, profile_box_id, name, worker_target, tags, system_prompt_compiled, updated_at"""


async def bootstrapped(tenant: Tenant) -> None:
    rows: list[tuple[str, JsonObject, JsonObject]] = [
        ("fork_join", FORK, {"suspend_timeout_seconds": 120}),
        ("delegate_async", TASK, {"ui_allowed": True}),
    ]
    for name, parameters, options in rows:
        await tenant.rows(
            "INSERT INTO resource.tools (project_id, tool_name, target_subject, after_execution, parameters, options)"
            " VALUES ($1, $2, $3, 'suspend', $4::jsonb, $5::jsonb)",
            tenant.project,
            name,
            f"cg.v1r4.{{project_id}}.{{channel_id}}.cmd.sys.pmo.internal.{name}",
            json.dumps(parameters),
            json.dumps(options),
        )
    nobody: JsonObject = {"target_tags": [], "target_profiles": []}
    await put(tenant, "Associate_WordCount_Mapper", "associate", delegation_policy=nobody)
    policy: JsonObject = {"target_tags": ["associate"], "target_profiles": ["Associate_WordCount_Mapper"]}
    await put(
        tenant,
        "Principal_WordCount",
        "principal",
        allowed_tools=["fork_join", "delegate_async"],
        must_end_with=["submit_result"],
        delegation_policy=policy,
    )
    await add_agent(tenant.pool, tenant.project, PRINCIPAL, "Principal_WordCount", display_name="The {Chief}")


async def put(tenant: Tenant, name: str, tag: str, **fields: JsonValue) -> None:
    """A profile as v1r4's API writes it: card, box and row, each with a statement of its own."""
    [target] = tenant.stack.settings.worker.worker_targets
    data: JsonObject = {
        "name": name,
        "worker_target": target,
        "tags": [tag],
        "description": None,
        "system_prompt_template": PROMPT,
        "delegation_policy": None,
        "allowed_tools": [],
        "allowed_internal_tools": [],
        "must_end_with": [],
        "llm_config": {"model": "scripted/player", "temperature": 1.0, "stream": True, "provider": "gemini"},
        "unknown_key": {"a": 1},
        **fields,
    }
    metadata = {"name": name, "worker_target": target, "tags": [tag], "type": "sys.profile", "author_id": "api"}
    for _ in range(2):  # a profile that is put again
        card, box = new_box_id(), new_box_id()
        content = {"__type__": "JsonContent", "data": data}
        await tenant.rows(SAVE_CARD, card, tenant.project, json.dumps(content), json.dumps(metadata))
        await tenant.rows(SAVE_BOX, box, tenant.project, json.dumps([card]))
        await tenant.rows(UPSERT, tenant.project, box, name, target, json.dumps([tag]), PROMPT)


async def test_the_principal_maps_and_submits(tenant: Tenant) -> None:
    await bootstrapped(tenant)
    chunk = '{"chunk_index": %d, "counts_map": {"a": 1}}'
    mapper = "Associate_WordCount_Mapper"
    tasks = [
        task(
            mapper,
            steps(calling(("submit_result", {"result": {"fields": [{"name": "summary", "value": chunk % n}]}}))),
        )
        for n in range(3)
    ]
    last = calling(("submit_result", {"fields": [{"name": "summary", "value": "a: 3"}]}))
    ended = await tenant.turn(PRINCIPAL, steps(fork(tasks, deadline_seconds=120), last))
    assert ended.deliverable() == {"fields": [{"name": "summary", "value": "a: 3"}]}
    forked = answers(ended)[0].result
    assert isinstance(forked, dict)
    assert forked["status"] == "success"
    results = forked["results"]
    assert isinstance(results, list)
    assert [result["summary"] for result in results] == [f"summary: {chunk % n}" for n in range(3)]  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]
    prompts = {card.type: card for card in ended.cards}
    assert content_of(prompts["sys.rendered_prompt"]) == TextContent(
        text="You are The {Chief}.\n- Associate_WordCount_Mapper (associate)\n"
        f'Submit {{"result": {{"fields": []}}}} for {tenant.project}.'
    )


async def test_what_is_ours_is_refused_by_a_row_that_does_not_have_it(tenant: Tenant) -> None:
    await bootstrapped(tenant)
    last = calling(("submit_result", {"fields": [{"name": "x", "value": 1}]}))
    ended = await tenant.turn(PRINCIPAL, steps(fork([task("Associate_WordCount_Mapper", says("x"))], join="any"), last))
    assert ended.results()[0][1] == "invalid_arguments"
    assert ended.view.status == "success"


ANCHOR = """
    INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, channel_id, message_type, enqueue_mode,
        correlation_id, agent_turn_id, turn_epoch, context_headers, payload, status, retry_count, next_retry_at,
        last_error, defer_reason, created_at)
    VALUES ($1, $2, $3, 'public', 'command_anchor', 'call', $4, $5, 0, $6::text::jsonb, '{}', 'consumed', 0, NOW(),
        NULL, NULL, NOW()) ON CONFLICT DO NOTHING RETURNING inbox_id"""
SAVE_CALL = """
    INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata)
    VALUES ($1, $2, $3::text::jsonb, $4, $5::text::jsonb)"""


EDGE = """
    INSERT INTO state.execution_edges (edge_id, project_id, channel_id, primitive, edge_phase, source_agent_id,
        source_agent_turn_id, source_step_id, target_agent_id, target_agent_turn_id, correlation_id, enqueue_mode,
        recursion_depth, trace_id, parent_step_id, metadata, created_at)
    VALUES ($1, $2, 'public', 'enqueue', 'request', $3, $4, $5, 'sys.pmo', NULL, $6, 'call', 0, $7, $5, $8::text::jsonb,
        NOW()) ON CONFLICT (project_id, md5(correlation_id), primitive, edge_phase) DO NOTHING"""
TRACE = "0123456789abcdef0123456789abcdef"


async def called(tenant: Tenant, tool: str, arguments: JsonObject, key: str = "", *, by_edge: bool = False) -> Any:
    """What their `ToolCaller` reads, after it has written card and anchor and sent the command, in the chief's name.

    `by_edge`: what their bench reads, which writes an edge instead, and an epoch into its headers alone.
    """
    key = f"{key or tool}-{tenant.project}"
    call, turn, step = f"call_{key}", f"turn_gc_{key}", f"step_gc_{key}"
    content = {"__type__": "ToolCallContent", "tool_name": tool, "arguments": arguments, "status": "called"}
    metadata = {"type": "tool.call", "author_id": PRINCIPAL, "agent_turn_id": turn, "step_id": step}
    await tenant.rows(SAVE_CALL, f"card-{key}", tenant.project, json.dumps(content), call, json.dumps(metadata))
    sent = {
        headers.TRACEPARENT: f"00-{TRACE}-0123456789abcdef-01",
        headers.DEPTH: "0",
        headers.PROJECT_ID: tenant.project,
        headers.CHANNEL_ID: "public",
        headers.AGENT_ID: PRINCIPAL,
        headers.TURN_ID: turn,
        headers.TURN_EPOCH: "1" if by_edge else "0",
        headers.TOOL_CALL_ID: call,
    }
    if by_edge:
        marks = json.dumps({"message_type": "tool_call", "inbox_id": call})
        await tenant.rows(EDGE, f"edge_{key}", tenant.project, PRINCIPAL, turn, step, call, TRACE, marks)
    else:
        await tenant.rows(ANCHOR, f"anchor-{key}", tenant.project, PRINCIPAL, call, turn, json.dumps(sent))
    payload = {"tool_name": tool, "after_execution": "suspend", "tool_call_card_id": f"card-{key}"}
    subject = f"cg.v1r4.{tenant.project}.public.cmd.sys.pmo.internal.{tool}"
    for _ in range(2):
        await tenant.stack.conn.js.publish(subject, json.dumps(payload).encode(), headers=sent)

    async def card() -> JsonObject | None:
        rows = await tenant.rows(
            "SELECT c.content, c.metadata FROM state.agent_inbox i"
            " JOIN cards c ON c.card_id = i.payload ->> 'tool_result_card_id'"
            " WHERE i.project_id = $1 AND i.agent_id = $2 AND i.correlation_id = $3 AND i.message_type = 'tool_result'",
            tenant.project,
            PRINCIPAL,
            call,
        )
        if not rows:
            return None
        assert json.loads(rows[0]["metadata"])["trace_id"] == TRACE
        return json.loads(rows[0]["content"])

    return await until(card, 25, f"{tool} is answered")


async def test_calls_of_their_programs_are_served_or_refused(tenant: Tenant) -> None:
    await bootstrapped(tenant)
    mapper = "Associate_WordCount_Mapper"
    asked: JsonObject = {"target_strategy": "new", "target_ref": mapper, "instruction": says("mapped")}
    one = await called(tenant, "delegate_async", {**asked, "metadata": {"source": "theirs"}})
    assert (one["status"], one["result"]["status"]) == ("success", "accepted")
    child = await tenant.ended(AgentTurnId(one["result"]["agent_turn_id"]))
    assert child.deliverable() == "mapped"
    # the lineage check of their demo
    lineage = {(card.metadata.parent_step_id, card.metadata.trace_id) for card in child.cards}
    assert lineage == {(f"step_gc_delegate_async-{tenant.project}", TRACE)}
    made = await called(tenant, "provision_agent", {"action": "ensure", "agent_id": "made", "profile_name": mapper})
    assert made["result"] == {"status": "accepted", "agent_id": "made", "roster_updated": True}
    denied = await called(tenant, "launch_principal", {"profile_name": "Principal_WordCount", "instruction": "x"})
    assert (denied["status"], denied["error"]["code"]) == ("failed", "auth_failed")
    audit = await tenant.rows("SELECT 1 FROM state.rejections WHERE project_id = $1", tenant.project)
    assert not audit


async def test_calls_of_their_programs_that_wait_are_answered_by_what_their_children_come_to(tenant: Tenant) -> None:
    await bootstrapped(tenant)
    mapper = "Associate_WordCount_Mapper"
    await called(tenant, "provision_agent", {"action": "ensure", "agent_id": "made", "profile_name": mapper})
    one: JsonObject = {"target_strategy": "new", "target_ref": mapper, "instruction": says("one")}
    two: JsonObject = {"target_strategy": "reuse", "target_ref": "made", "instruction": says("two")}
    forked = await called(tenant, "fork_join", {"tasks": [one, {**one, "instruction": says("two")}], "fail_fast": True})
    assert (forked["status"], forked["result"]["status"]) == ("success", "success")
    assert [task["summary"] for task in forked["result"]["results"]] == ["one", "two"]
    benched = await called(tenant, "fork_join", {"tasks": [two], "deadline_seconds": 60}, "bench", by_edge=True)
    assert [task["agent_id"] for task in benched["result"]["results"]] == ["made"]
    [batch] = await tenant.rows(  # as their bench looks for it
        "SELECT status FROM state.pmo_batches WHERE project_id = $1 AND parent_tool_call_id = 'call_bench-' || $1",
        tenant.project,
    )
    assert batch["status"] == "success"
    waits = await called(tenant, "delegate_async", {**one, "wait": True})
    assert (waits["status"], waits["result"]["value"]) == ("success", "one")
    slow: JsonObject = {"tasks": [{**one, "instruction": says("x", delay_seconds=60)}], "deadline_seconds": 1}
    late = await called(tenant, "fork_join", slow, "late")
    assert (late["result"]["status"], late["error"]["code"]) == ("timeout", "batch_failed")  # their card store wants it
    denied = await called(
        tenant,
        "fork_join",
        {"tasks": [{"target_strategy": "new", "target_ref": "Principal_WordCount", "instruction": "x"}]},
        "denied",
    )
    assert (denied["status"], denied["error"]["code"]) == ("failed", "auth_failed")
