"""Typed answers through every door: a value that matches its schema, or no success (protocol §18)."""

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, UnprocessableEntityError
from pydantic import BaseModel, TypeAdapter

import turnstile
from tests.support.gateway import token_of
from tests.support.tenants import ALICE, Tenant
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import AgentId


class Order(BaseModel):
    """What is wanted."""

    id: int
    lines: list[str] = []


GOOD: JsonObject = {"id": 7, "lines": ["bread"]}
SCHEMA: JsonObject = Order.model_json_schema()


def submits(value: Any, text: str = "Here it is.") -> JsonObject:
    """A line of a player that gives a value."""
    return {"text": text, "tool_calls": [{"name": "submit_result", "arguments": {"value": value}}]}


def plays(*lines: JsonObject) -> str:
    """An instruction for a player."""
    return json.dumps({"steps": lines})


RIGHT = plays(submits({"id": "7"}), {"text": "Order 7."}, submits(GOOD))
NEVER = plays(*[submits({"id": "7"})] * 9)
FENCED = plays({"text": f"This is it:\n\n```json\n{json.dumps(GOOD)}\n```"})


@pytest.fixture(params=["nats", "http"])
async def asker(request: pytest.FixtureRequest, url: str, tenant: Tenant) -> Any:
    """The Python client, over either way."""
    if request.param == "http":
        async with turnstile.Client(url, token=await token_of(tenant.stack, tenant.project)) as made:
            yield made
    else:
        async with turnstile.Client(tenant.stack.endpoints.nats_url, project=tenant.project) as made:
            yield made


async def test_a_program_gets_an_object_of_its_type(asker: turnstile.Client, tenant: Tenant) -> None:
    await tenant.agent("player")
    result = await asker.ask(ALICE, RIGHT, output=Order).result(20)
    assert (result.value, result.ok, result.stats["steps"]) == (Order(id=7, lines=["bread"]), True, 3)
    fenced = await asker.ask(ALICE, FENCED, output=TypeAdapter(dict[str, Any])).result(20)
    assert fenced.value == GOOD
    raw = await asker.ask(ALICE, RIGHT, output_schema=SCHEMA).result(20)
    assert raw.value == {"value": GOOD}
    with pytest.raises(turnstile.TurnFailed) as failed:
        await asker.ask(ALICE, NEVER, output=Order).result(20)
    got = failed.value.result
    assert (got.status.value, got.error_code, got.partial) == ("partial", "output_invalid", True)
    assert (got.value, got.stats["steps"]) == ({"value": {"id": "7"}}, 3)
    with pytest.raises(turnstile.BadRequest, match="either output or output_schema"):
        asker.ask(ALICE, "x", output=Order, output_schema=SCHEMA)
    with pytest.raises(turnstile.BadRequest, match="unevaluatedProperties"):
        asker.ask(ALICE, "x", output_schema={"unevaluatedProperties": False})


async def test_a_profile_says_what_its_agents_answer_and_a_rerun_keeps_it(tenant: Tenant) -> None:
    await tenant.agent("player", output_schema=SCHEMA)
    async with turnstile.Client(tenant.stack.endpoints.nats_url, project=tenant.project) as asker:
        turn = asker.ask(ALICE, RIGHT)
        assert (await turn.result(20)).value == {"value": GOOD}
        again = await (await turn.rerun()).result(20)
        assert again.value == {"value": GOOD}
        other = await asker.ask(ALICE, plays(submits([1])), output=TypeAdapter(list[int])).result(20)
        assert other.value == [1]
        fields = await asker.ask(
            ALICE,
            plays(
                {
                    "tool_calls": [
                        {"name": "submit_result", "arguments": {"fields": [{"name": "city", "value": "Graz"}]}}
                    ]
                }
            ),
            result_fields=["city"],
        ).result(20)
        assert fields.fields == {"city": "Graz"}


async def test_a_delegated_task_asks_for_a_value(tenant: Tenant) -> None:
    await tenant.profile("worker", "player")
    await tenant.agent(
        "player", allowed_tools=["delegate_async"], delegation_policy=DelegationPolicy(target_profiles=["worker"])
    )
    task = {"target_strategy": "new", "target_ref": "worker", "instruction": RIGHT, "wait": True}
    call: JsonObject = {"name": "delegate_async", "arguments": {**task, "output_schema": SCHEMA}}
    ended = await tenant.turn(ALICE, plays({"tool_calls": [call]}))
    assert ended.view.status == "success"
    [child] = await tenant.rows(
        "SELECT c.content -> 'data' AS data FROM state.turn_outcomes o JOIN public.cards c"
        " ON c.card_id = o.deliverable_card_id WHERE o.project_id = $1 AND o.agent_turn_id <> $2",
        *(tenant.project, ended.view.agent_turn_id),
    )
    assert json.loads(child["data"]) == {"value": GOOD}


async def test_what_is_typed_waits_for_an_upgrade_while_older_processes_run(tenant: Tenant) -> None:
    """By its request, by its profile, or as a delegated task; all else goes on."""
    await tenant.agent("player")
    await tenant.profile("worker", "player")
    await tenant.profile("typed", "player", output_schema=SCHEMA)
    await tenant.agent(
        "player",
        AgentId("parent"),
        allowed_tools=["delegate_async", "fork_join"],
        delegation_policy=DelegationPolicy(target_profiles=["worker", "typed"]),
    )
    older = "INSERT INTO state.workers (worker_target, instance, protocol_level) VALUES ('elsewhere', $1, 1)"
    await tenant.rows(older, tenant.project)
    said: JsonObject = {"agent_id": ALICE, "instruction": RIGHT}
    by_request: JsonObject = {**said, "runtime_config": {"output_schema": SCHEMA}, "correlation_id": "k"}
    by_setting: JsonObject = {**said, "runtime_config": {"seed": 7}}
    by_profile: JsonObject = {**said, "profile_name": "typed"}

    def delegates(ref: str, **more: Any) -> JsonObject:
        return {"target_strategy": "new", "target_ref": ref, "instruction": RIGHT, **more}

    plain = delegates("worker") | {"instruction": plays({"text": "as ever"})}
    tasks = [plain, delegates("worker", output_schema=SCHEMA), delegates("typed")]
    steps: list[Any] = [{"tool_calls": [{"name": "delegate_async", "arguments": task}]} for task in tasks]
    forks: Any = {"tool_calls": [{"name": "fork_join", "arguments": {"tasks": tasks}}]}
    codes = (
        "SELECT t.error_code FROM state.pmo_batch_tasks t JOIN state.pmo_batches b USING (batch_id)"
        " WHERE b.project_id = $1 ORDER BY t.task_index"
    )
    try:
        for asked in (by_request, by_setting, by_profile):
            reply = await tenant.ask(asked)
            assert (reply.status.value, reply.error_code) == ("busy", "upgrade_under_way")
        assert (await tenant.turn(ALICE, plays({"text": "as ever"}))).view.status == "success"
        parent = await tenant.turn(AgentId("parent"), plays(*steps, forks, {"text": "done"}))
        assert [code for _, code, _ in parent.results()][:3] == [None, "upgrade_under_way", "upgrade_under_way"]
        assert [row["error_code"] for row in await tenant.rows(codes, tenant.project)] == [
            None,
            "upgrade_under_way",
            "upgrade_under_way",
        ]
    finally:
        await tenant.rows("UPDATE state.workers SET left_at = now() WHERE instance = $1", tenant.project)
    for asked in (by_request, by_setting, by_profile):
        assert (await tenant.ask(asked)).status.value == "accepted"


def answer(dice: random.Random, value: JsonObject, *, is_right: bool) -> JsonObject:
    """An answer of a player: a value that matches, or one of the ways in which models are wrong."""
    whole, bad = json.dumps(value), json.dumps({**value, "id": "7"})
    right: list[JsonObject] = [
        submits(value),
        {"text": whole},
        {"text": f"This is it:\n\n```json\n{whole}\n```\nI hope that it helps."},
    ]
    wrong: list[JsonObject] = [
        submits({**value, "id": "7"}),
        submits(None),
        submits([value]),
        {"text": bad},
        {"text": f"```json\n{bad}\n```"},
        {"text": f"{whole} I hope that it helps."},
        {"text": f"```json\n{whole}\n```\nor\n```json\n{whole}\n```"},
        {"text": "Order 7."},
        {"tool_calls": [{"name": "submit_result", "arguments": f'{{"value": {whole[:-1]}'}]},
        {"tool_calls": [{"name": "submit_result", "arguments": whole}]},
        {"text": "so", "tool_calls": [{"name": "submit_result", "arguments": f'{{"value": {bad}}}'}]},
    ]
    return dice.choice(right if is_right else wrong)


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_no_turn_succeeds_without_a_value_that_matches(tenant: Tenant, count: int) -> None:
    """Of a model that is wrong in a third of its answers: the first right one of three is delivered, or none."""
    dice, few = random.Random(4711), asyncio.Semaphore(20)  # noqa: S311 -- the same in each run
    agents = await tenant.agents("player", 20, output_schema=SCHEMA)
    scripts = [[dice.random() >= 1 / 3 for _ in range(3)] for _ in range(count)]

    async def ask(number: int) -> tuple[bool, str | None]:
        value: JsonObject = {"id": number, "lines": ["bread"]}
        lines = [answer(dice, value, is_right=is_right) for is_right in scripts[number]]
        async with few:
            ended = await tenant.turn(agents[number % len(agents)], plays(*lines))
        if is_success := ended.view.status == "success":
            assert ended.deliverable() == {"value": value}
        return is_success, ended.view.error_code

    ended = await asyncio.gather(*map(ask, range(count)))
    assert ended == [(True, None) if any(script) else (False, "output_invalid") for script in scripts]
    assert {status for status, _ in ended} == {True, False} or count < 1000


@pytest.fixture
async def openai(url: str, tenant: Tenant) -> Any:
    """OpenAI's own client."""
    async with AsyncOpenAI(
        base_url=f"{url}/openai/v1", api_key=await token_of(tenant.stack, tenant.project), max_retries=0
    ) as made:
        yield made


async def test_chat_completions_parse(openai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")

    async def parsed(told: str) -> Any:
        asked: Any = [{"role": "user", "content": told}]
        answer = await openai.chat.completions.parse(model=ALICE, messages=asked, response_format=Order)
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.parsed

    assert [await parsed(RIGHT), await parsed(FENCED)] == [Order(id=7, lines=["bread"])] * 2
    with pytest.raises(UnprocessableEntityError) as refused:
        await parsed(NEVER)
    assert refused.value.code == "output_invalid"
    asked: Any = [{"role": "user", "content": RIGHT}]
    stream = await openai.chat.completions.create(
        model=ALICE, messages=asked, response_format={"type": "json_object"}, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert json.loads("".join(pieces)) == {"id": "7"}


async def test_responses_parse(openai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    answer = await openai.responses.parse(model=ALICE, input=RIGHT, text_format=Order)
    assert (answer.output_parsed, answer.status) == (Order(id=7, lines=["bread"]), "completed")
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"
    read = await openai.responses.retrieve(answer.id)
    assert (json.loads(read.output_text), read.text) == (GOOD, answer.text)
    async with openai.responses.stream(model=ALICE, input=FENCED, text_format=Order) as stream:
        said = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert (json.loads("".join(said)), final.output_parsed) == (GOOD, Order(id=7, lines=["bread"]))
    form: Any = {"format": {"type": "json_object"}}
    failed = await openai.responses.create(model=ALICE, input=plays(*[submits(7)] * 9), text=form)
    assert failed.error is not None
    assert (failed.status, failed.error.code) == ("incomplete", "output_invalid")


@pytest.mark.parametrize(
    ("form", "param", "code"),
    [
        ({"type": "grammar"}, "response_format.type", "unsupported_parameter"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.name", "bad_request"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"unevaluatedItems": True}}},
            "response_format.schema",
            "schema_not_supported",
        ),
        ("json", "response_format", "bad_request"),
    ],
)
async def test_a_form_that_cannot_be_held_is_refused_by_name(
    web: httpx.AsyncClient, tenant: Tenant, form: Any, param: str, code: str
) -> None:
    await tenant.agent("player")
    body = {"model": ALICE, "messages": [{"role": "user", "content": "x"}], "response_format": form}
    refused = await web.post("/openai/v1/chat/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, param, code)
    assert await tenant.count("state.agent_inbox") == 0


async def test_a_schema_that_cannot_be_held_is_refused_by_the_verb(tenant: Tenant) -> None:
    await tenant.agent("player")
    config: JsonObject = {"output_schema": {"type": "object", "unevaluatedProperties": False}}
    reply = await tenant.ask({"agent_id": ALICE, "instruction": "x", "runtime_config": config})
    assert (reply.status.value, reply.error_code) == ("rejected", "schema_not_supported")
    assert "unevaluatedProperties" in str(reply.error)
