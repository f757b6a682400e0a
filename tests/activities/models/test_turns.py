"""Whole turns on a provider's stub: outcomes, recorded attempts, what a crash keeps, and where nothing may leak."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.asking import PROMPT
from tests.activities.models.openai_stub import OpenAIStub
from tests.activities.models.provider_stub import API_KEY, COMPLETION_TOKENS, PROMPT_TOKENS, Call, Fault, Said
from tests.support.conditions import until
from tests.support.paths import ROOT
from tests.support.processes.process import TurnstileProcess
from tests.support.processes.stack import QUICK, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Ended, Tenant, new_tenant, turn_of
from tests.support.tools import definition
from turnstile.activities.models.forms import is_strict
from turnstile.activities.models.litellm_sdk import TESTED_VERSION
from turnstile.doctor.examine import check_models, examine, key_files
from turnstile.ledger.roster import put_tool
from turnstile.ledger.turns.usage import Grouping, list_profile_models, sum_usage
from turnstile.processes.run import run_bridge
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId, workflow_id
from turnstile.schema.states import TurnStatus

ANSWER = "answer-marker-2342"
TOTAL = PROMPT_TOKENS + COMPLETION_TOKENS


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[OpenAIStub]:
    """One stub for the module, whose replies each test sets."""
    async with OpenAIStub(Said(text=("x",))) as running:
        yield running


@pytest.fixture(scope="module")
async def stack(stacks: Stacks, stub: OpenAIStub, key_file: Path) -> AsyncIterator[Stack]:
    """A stack whose models of OpenAI are the stub's."""
    own = {"api_key_files.openai": str(key_file), "api_bases.openai": stub.api_base, "timeout_seconds": 10.0}
    config = {**QUICK, "model": {**QUICK["model"], **own}}
    async with stacks.open(config) as opened:
        yield opened


@pytest.fixture
async def tenant(stack: Stack, stub: OpenAIStub) -> AsyncIterator[Tenant]:
    """A project of the test alone, with worker and bridge in this process."""
    stub.requests.clear()
    async with running_here(stack):
        yield new_tenant(stack)


async def _turn(tenant: Tenant, stub: OpenAIStub, *replies: Said | Fault) -> Ended:
    stub.replies = list(replies)
    agent = await tenant.agent("x", llm={"model": stub.model}, system_prompt_template=PROMPT, max_steps=3)
    return await tenant.turn(agent, PROMPT)


LOOSE: JsonObject = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["id"],
}
STRICT: JsonObject = {**LOOSE, "required": ["id", "note"], "additionalProperties": False}


@pytest.mark.parametrize(("schema", "is_strict"), [(STRICT, True), (LOOSE, False)])
async def test_a_provider_that_takes_a_schema_gets_it_in_place_of_the_tool(
    tenant: Tenant, stub: OpenAIStub, schema: JsonObject, is_strict: bool
) -> None:
    """What it answers is checked all the same."""
    value = {"id": 7, "note": ANSWER}
    wrong = Said(text=('{"id": "7", "note": "x"}',))
    stub.replies[:] = [wrong, wrong, Said(text=(json.dumps(value),))]  # one may be lost to a step that is run again
    agent = await tenant.agent("x", llm={"model": stub.model}, output_schema=schema)
    ended = await tenant.turn(agent, PROMPT)
    assert (ended.view.status, ended.deliverable()) == ("success", {"value": value})
    first, *_, again = (json.loads(request.body) for request in stub.requests)
    named = {"name": "answer", "schema": schema, "strict": is_strict}
    assert (first["response_format"], "tools" in first) == ({"type": "json_schema", "json_schema": named}, False)
    assert "does not match its schema at id" in again["messages"][-1]["content"]


async def test_the_tool_takes_the_value_where_no_schema_can_go(tenant: Tenant, stub: OpenAIStub) -> None:
    """Beside other tools, for a value that is no object, or for a model that is not known to take a schema."""
    await put_tool(tenant.pool, tenant.project, definition())
    numbers: JsonObject = {"type": "array", "items": {"type": "integer"}}
    turns: list[tuple[str, list[str], JsonObject, Any]] = [
        (stub.model, [], numbers, [1]),
        ("openai/gpt-3.5-turbo", [], LOOSE, {"id": 7}),
        (stub.model, ["search"], LOOSE, {"id": 7}),
    ]
    for number, (model, tools, schema, answer) in enumerate(turns):
        stub.requests.clear()
        stub.replies[:] = [Said(calls=(Call("submit_result", (json.dumps({"value": answer}),)),))]
        agent = await tenant.agent(
            "x", AgentId(f"a-{number}"), llm={"model": model}, output_schema=schema, allowed_tools=tools
        )
        ended = await tenant.turn(agent, PROMPT)
        assert (ended.view.status, ended.deliverable()) == ("success", {"value": answer})
        body = json.loads(stub.requests[0].body)
        names = [tool["function"]["name"] for tool in body["tools"]]
        assert (names, "response_format" in body) == ([*tools, "submit_result"], False)


def test_a_schema_is_strict_as_openai_has_it() -> None:
    """What its own client makes of a model is; each thing that is not is found, wherever it is."""
    inner: Any = {"$ref": "#/$defs/S"}
    parts: list[Any] = [
        STRICT,
        inner,
        {"anyOf": [inner, {"type": "null"}]},
        {"type": "array", "items": inner},
        {"enum": [1]},
    ]
    bads: list[Any] = [LOOSE, {"pattern": "x"}, {"anyOf": [LOOSE]}, {"items": LOOSE}, {"$defs": {"x": LOOSE}}, True]
    bads += [{}, {"type": "array"}, {"type": ["object", "null"], "properties": {}}, {"items": STRICT}]
    for part in parts:
        for bad in (None, *bads):
            fields: JsonObject = {"a": part} if bad is None else {"a": part, "b": bad}
            whole: JsonObject = {"type": "object", "properties": fields, "required": [*fields]}
            whole |= {"additionalProperties": False, "$defs": {"S": STRICT}, "title": "T", "description": "D"}
            assert is_strict(whole) == (bad is None), (part, bad)
    assert not is_strict({"type": "array", "items": STRICT})
    deep: Any = STRICT
    for _ in range(12):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"], "additionalProperties": False}
    assert not is_strict(deep)


def _attempts(ended: Ended) -> list[tuple[object, object, object]]:
    found: list[tuple[object, object, object]] = []
    for step in ended.steps:
        records = step.metadata["attempts"]
        assert isinstance(records, list)
        for record in records:
            assert isinstance(record, dict)
            found.append((record["attempt"], record.get("error_code"), record["usage_kind"]))
    return found


async def test_a_turn_that_passes_a_rate_limit(tenant: Tenant, stub: OpenAIStub) -> None:
    ended = await _turn(tenant, stub, Fault(429, headers={"retry-after": "0.01"}), Said(text=(ANSWER,)))
    assert (ended.view.status, ended.deliverable()) == (TurnStatus.SUCCESS, ANSWER)
    assert _attempts(ended) == [(1, "rate_limited", "unknown"), (2, None, "exact")]
    [step] = ended.steps
    assert step.metadata["llm_usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": COMPLETION_TOKENS,
        "total_tokens": TOTAL,
    }
    assert step.metadata["llm_response_cost"] == pytest.approx(9.75e-05)
    await _assert_usage(tenant)


async def _assert_usage(tenant: Tenant) -> None:
    groupings: dict[Grouping, str | None] = {"agent": ALICE, "model": "openai/gpt-4o", "day": None}
    for grouping, name in groupings.items():
        line, total = await tenant.pool.run(lambda conn, by=grouping: sum_usage(conn, tenant.project, by))
        assert name is None or line.name == name
        assert total.name is None
        assert line.model_dump(exclude={"name"}) == total.model_dump(exclude={"name"})
        assert (total.turns, total.steps, total.attempts, total.failed_attempts) == (1, 1, 2, 1)
        assert (total.total_tokens, total.response_cost) == (TOTAL, pytest.approx(9.75e-05))
        assert (total.estimated_attempts, total.unknown_attempts) == (0, 1)
    [none] = await tenant.pool.run(lambda conn: sum_usage(conn, ProjectId("nobody"), "agent"))
    assert (none.attempts, none.total_tokens, none.response_cost) == (0, 0, None)
    models = await tenant.pool.run(lambda conn: list_profile_models(conn, tenant.project))
    assert [(model.profile_name, model.model) for model in models] == [("alice-profile", "openai/gpt-4o")]


@pytest.mark.parametrize(
    ("reply", "code", "attempts"),
    [
        (Fault(401, PROMPT), "auth_failed", 1),
        (Fault(503, PROMPT), "model_overloaded", 4),
        (Fault(400, f"maximum context length {PROMPT}"), "context_window_exceeded", 1),
        (Said(text=(ANSWER,), finish="content_filter"), "content_filtered", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_turn_that_fails(
    tenant: Tenant, stub: OpenAIStub, reply: Said | Fault, code: str, attempts: int
) -> None:
    ended = await _turn(tenant, stub, reply)
    assert (ended.view.status, ended.view.error_code) == (TurnStatus.FAILED, code)
    assert [record[1] for record in _attempts(ended)] == [code] * attempts
    assert PROMPT not in str(ended.view.error)
    fallback = ended.deliverable()
    assert isinstance(fallback, dict)
    reason, rest = fallback.pop("reason"), fallback
    quoted = 'the provider says: "' in str(
        reason
    )  # as a card may, which people with rights read; and as a quotation alone
    assert (PROMPT in str(reason).partition("the provider says:")[0], PROMPT in json.dumps(rest)) == (False, False)
    assert quoted == isinstance(reply, Fault)


async def test_nothing_leaks(tenant: Tenant, stub: OpenAIStub, caplog: pytest.LogCaptureFixture) -> None:
    """Logs of every level, rows that are not cards, events and histories hold no key, prompt or answer."""
    caplog.set_level(logging.DEBUG)
    replies = (Fault(500, f"{PROMPT} {API_KEY}"), Said(text=(ANSWER,), events=2, ending="cut"), Said(text=(ANSWER,)))
    ended = [await _turn(tenant, stub, *replies)]
    failing = new_tenant(tenant.stack)
    ended.append(await _turn(failing, stub, Fault(400, f"{PROMPT} {API_KEY}")))
    told = [caplog.text]
    for own, done in ((tenant, ended[0]), (failing, ended[1])):
        told += [json.dumps(event.payload) + str(event.headers) for event in await own.events()]
        told.append((await own.stack.history(done.view.agent_turn_id)).to_json())
    tables = await tenant.rows(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
        " WHERE schemaname IN ('state', 'resource', 'public') AND tablename NOT IN ('cards', 'profiles')"
    )
    for table in tables:
        told += [str(row) for row in await tenant.rows(f"SELECT to_jsonb(t)::text FROM {table['name']} t")]  # noqa: S608 -- names of our tables
    for marker in (API_KEY, PROMPT, ANSWER):
        assert [text[:300] for text in told if marker in text] == []
    assert any(card.type == CardType.THOUGHT for card in ended[0].cards)


@pytest.mark.long
async def test_a_crash_keeps_the_attempts(stack: Stack, stub: OpenAIStub, tmp_path: Path) -> None:
    """The worker is killed in the middle of an answer; its attempts are in the step all the same."""
    tenant = new_tenant(stack)
    second = tmp_path / "config.toml"
    second.write_bytes(stack.config.read_bytes())
    doomed, other = TurnstileProcess("worker", stack.config), TurnstileProcess("worker", second)
    stub.replies = [Fault(500), Said(text=("Hel",), events=2, ending="stall"), Said(text=(ANSWER,))]
    stub.stalled.clear()
    stop = asyncio.Event()
    bridge = asyncio.create_task(run_bridge(stack.settings, stack.endpoints, stop))
    try:
        await doomed.start()
        reply = await tenant.enqueue(await tenant.agent("x", llm={"model": stub.model}))
        await stub.stalled.wait()
        await asyncio.gather(other.start(), _until_told(stack, turn_of(reply)))
        await doomed.kill()
        ended = await tenant.ended(turn_of(reply), timeout=30)
    finally:
        await doomed.remove()
        await other.remove()
        stop.set()
        await bridge
    assert ended.deliverable() == ANSWER
    assert [record[1] for record in _attempts(ended)] == ["model_server_error", "attempt_lost", None]


async def _until_told(stack: Stack, turn: AgentTurnId) -> None:
    """Returns when the engine has been told of both attempts."""

    async def told() -> bool:
        handle = stack.temporal.get_workflow_handle(workflow_id(turn))
        pending = (await handle.describe()).raw_description.pending_activities
        details = [payload.data for each in pending for payload in each.heartbeat_details.payloads]
        return any(b"model_server_error" in detail and b"attempt_lost" in detail for detail in details)

    await until(told, 25, "a heartbeat told the attempts", pause=0.1)


async def test_the_doctor(stack: Stack) -> None:
    checks = await examine(stack.settings, None, ["openai/gpt-4o", "mistral/x"])
    found = {check.name: check.status for check in checks}
    assert {found[name] for name in ("Python", "litellm", "PostgreSQL", "NATS", "Temporal", "openai/gpt-4o")} == {"ok"}
    assert found["mistral/x"] == "fail"
    assert any("MISTRAL_API_KEY" in check.says for check in checks)
    assert API_KEY not in str(checks)
    assert [check.status for check in await check_models(stack.settings, ["scripted/nosuch"])] == ["fail"]


def test_a_key_file_that_others_may_read(stack: Stack, key_file: Path) -> None:
    key_file.chmod(0o644)
    assert [check.status for check in key_files(stack.settings)] == ["warn"]
    key_file.chmod(0o600)
    assert [check.status for check in key_files(stack.settings)] == ["ok"]


def test_the_tested_version_is_the_pinned_one() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'"litellm=={TESTED_VERSION}"' in text
