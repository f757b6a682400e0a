"""Rows that v1r4's bootstrap wrote, and its principal that maps and reduces, with scripted models (protocol §12)."""

import json

from tests.support.delegation import answers, fork, says, steps, task
from tests.support.tenants import Tenant
from tests.support.tools import calling
from turnstile.ledger.roster import add_agent
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId

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
    policy = {"target_tags": ["associate"], "target_profiles": ["Associate_WordCount_Mapper"]}
    allowed = ["fork_join", "delegate_async"]
    await tenant.profile("Associate_WordCount_Mapper", "player", tags=["associate"])
    await tenant.profile(
        "Principal_WordCount",
        "player",
        tags=["principal"],
        allowed_tools=allowed,
        must_end_with=["submit_result"],
        delegation_policy=policy,
    )
    await add_agent(tenant.pool, tenant.project, PRINCIPAL, "Principal_WordCount")


async def test_the_principal_maps_and_submits(tenant: Tenant) -> None:
    await bootstrapped(tenant)
    chunk = '{"chunk_index": %d, "counts_map": {"a": 1}}'
    mapper = "Associate_WordCount_Mapper"
    tasks = [
        task(mapper, steps(calling(("submit_result", {"fields": [{"name": "summary", "value": chunk % n}]}))))
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
    assert [str(n) in str(each) for n, each in enumerate(results)] == [True] * 3


async def test_what_is_ours_is_refused_by_a_row_that_does_not_have_it(tenant: Tenant) -> None:
    await bootstrapped(tenant)
    last = calling(("submit_result", {"fields": [{"name": "x", "value": 1}]}))
    ended = await tenant.turn(PRINCIPAL, steps(fork([task("Associate_WordCount_Mapper", says("x"))], join="any"), last))
    assert ended.results()[0][1] == "invalid_arguments"
    assert ended.view.status == "success"
