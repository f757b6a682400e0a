"""Client tools through HTTP's doors: calls that the caller runs, and turns that go on with their outputs (§19)."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, UnprocessableEntityError

from tests.support.conditions import until
from tests.support.gateway import client, token_of
from tests.support.paths import ROOT
from tests.support.people import Person
from tests.support.tenants import ALICE, CHANNEL, Tenant
from tests.support.tools import Hand, call_of, calling, definition
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.ledger.roster import put_tool
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus
from turnstile.schema.wire.subjects import bridge_request
from turnstile.transport.json_messages import encode

pytestmark = pytest.mark.shared_stack

MODEL = "profile:helper"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
MOVE: Any = {"type": "function", "function": {"name": "move"}}
ASKS: JsonObject = calling(("weather", {"city": "Graz"}), text="I look.")


def offered(name: str, parameters: JsonObject | None = None) -> Any:
    """A function of a client."""
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {})}}


def plays(*lines: JsonObject) -> Any:
    """The messages of a user whose instruction is a script."""
    return [{"role": "user", "content": json.dumps({"steps": lines})}]


@pytest.fixture
async def helper(tenant: Tenant) -> Tenant:
    """A profile whose instances play what they were told last, and one whose instances show what they read."""
    await tenant.profile("helper", "talks", instances=True)
    await tenant.profile("mirror", "mirror", instances=True)
    return tenant


@pytest.fixture
async def openai(url: str, tenant: Tenant) -> Any:
    """OpenAI's own client, with a token of a client."""
    token = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)
    async with AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0) as made:
        yield made


async def open_calls(tenant: Tenant, count: int = 1) -> list[Interrupt]:
    """Wait until so many calls wait for their client; the oldest first."""

    async def there() -> list[Interrupt] | None:
        found = await tenant.pool.run(
            lambda conn: list_interrupts(
                conn, tenant.project, status=InterruptStatus.OPEN, reason="any", row_limit=1000
            )
        )
        return list(found)[::-1] if len(found) >= count else None

    return await until(there, 25, f"{count} calls wait")


def outputs(message: Any, **by_name: str) -> list[Any]:
    """The messages that answer all calls of one."""
    return [
        {"role": "tool", "tool_call_id": c.id, "content": by_name.get(c.function.name, "sunny")}
        for c in message.tool_calls
    ]


async def test_a_completion_ends_with_calls_and_the_turn_goes_on_with_their_outputs(
    openai: AsyncOpenAI, helper: Tenant
) -> None:
    said = plays(ASKS, calling(("weather", {"city": "Wien"}), ("move", {})), {"text": "Sunny in both."})
    first = await openai.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER, MOVE])
    [choice] = first.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    [call] = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Graz"})
    said += [choice.message, *outputs(choice.message)]
    again = [await openai.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER, MOVE]) for _ in range(2)]
    assert again[0] == again[1]
    second = again[0].choices[0].message
    assert [c.function.name for c in second.tool_calls or () if c.type == "function"] == ["weather", "move"]
    said += [second, *outputs(second, weather="hot", move="done")]
    stream = await openai.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER, MOVE], stream=True)
    pieces = [chunk async for chunk in stream]
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == "Sunny in both."
    assert pieces[-1].choices[0].finish_reason == "stop"
    assert await helper.count("state.turn_outcomes") == await helper.count("state.agent_inbox", "message_type = 'turn'")
    [turn] = await helper.rows(
        "SELECT status, stats ->> 'steps' AS steps FROM state.turn_outcomes WHERE project_id = $1", helper.project
    )
    assert (turn["status"], turn["steps"]) == ("success", "3")
    answered: Any = {"role": "assistant", "content": "Sunny in both."}
    last: Any = [*said, answered, *plays({"text": "You know."})]
    other = await openai.chat.completions.create(model=MODEL, messages=last)
    assert other.choices[0].message.content == "You know."


async def test_calls_are_checked_before_a_client_gets_them(openai: AsyncOpenAI, helper: Tenant) -> None:
    wrong = calling(("weather", {"town": "Graz"}), ("weather", '{"city"'), ("nothing", {}))
    said = plays(wrong, ASKS, {"text": "Good."})
    first = await openai.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER])
    message = first.choices[0].message
    [call] = message.tool_calls or []
    said += [message, *outputs(message)]
    assert (await openai.chat.completions.create(model=MODEL, messages=said)).choices[0].message.content == "Good."
    [turn] = await helper.rows("SELECT agent_turn_id FROM state.turn_outcomes WHERE project_id = $1", helper.project)
    ended = await helper.ended(AgentTurnId(turn["agent_turn_id"]))
    assert [(status, code) for status, code, _ in ended.results()] == [
        *([("failed", "invalid_arguments")] * 2),
        ("failed", "unknown_tool"),
        ("success", None),
    ]
    assert call.id in {card.tool_call_id for card in ended.cards}


async def test_a_stream_has_the_calls_last_and_a_client_that_leaves_after_them_stops_nothing(
    openai: AsyncOpenAI, helper: Tenant
) -> None:
    said = plays(calling(("weather", {"city": "Graz"}), ("move", {}), text="I look."), {"text": "Good."})
    stream = await openai.chat.completions.create(
        model=MODEL, messages=said, tools=[WEATHER, MOVE], stream=True, stream_options={"include_usage": True}
    )
    pieces = [chunk async for chunk in stream]
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == "I look."
    calls = [c for p in pieces if p.choices for c in p.choices[0].delta.tool_calls or ()]
    assert [(c.index, c.function.name) for c in calls if c.function] == [(0, "weather"), (1, "move")]
    assert (pieces[-2].choices[0].finish_reason, pieces[-1].usage is not None) == ("tool_calls", True)
    assert len(await open_calls(helper, 2)) == 2


async def test_a_history_with_calls_in_it_is_read_as_it_is_given(openai: AsyncOpenAI, helper: Tenant) -> None:
    call = {"id": "call_elsewhere", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rom"}'}}
    history: Any = [
        {"role": "user", "content": "The weather in Rome?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_elsewhere", "content": [{"type": "text", "text": "rain"}]},
    ]
    answer = await openai.chat.completions.create(model="profile:mirror", messages=history, tools=[MOVE])
    shown = json.loads(answer.choices[0].message.content or "")
    assert [role for role, _ in shown["messages"]] == ["user", "assistant", "tool"]
    assert json.loads(shown["messages"][2][1]) == {"status": "success", "result": "rain"}
    assert [tool["name"] for tool in shown["tools"]] == ["move", "submit_result"]
    said = [*history, *plays(calling(("move", {})))]
    again = await openai.chat.completions.create(model=MODEL, messages=said, tools=[MOVE])
    assert again.choices[0].finish_reason == "tool_calls"
    orphans = [*history[:1], history[2]]
    assert (await openai.chat.completions.create(model="profile:mirror", messages=orphans)).choices[0].message.content


async def turns_of(tenant: Tenant) -> list[tuple[str, str | None]]:
    """How each turn stands: its end, or that it is not over; the oldest first."""
    rows = await tenant.rows(
        "SELECT coalesce(o.status, 'open') AS status, o.error_code FROM state.agent_inbox i"
        " LEFT JOIN state.turn_outcomes o USING (agent_turn_id)"
        " WHERE i.project_id = $1 AND i.message_type = 'turn' ORDER BY i.created_at, i.inbox_id",
        tenant.project,
    )
    return [(row["status"], row["error_code"]) for row in rows]


async def waiting(openai: AsyncOpenAI, *more: JsonObject) -> list[Any]:
    """The messages of a client whose turn waits for the weather, and with them the answer."""
    said = plays(ASKS, *(more or ({"text": "Good."},)))
    answer = await openai.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER])
    message = answer.choices[0].message
    return [*said, message, *outputs(message)]


async def said_to(openai: AsyncOpenAI, messages: list[Any]) -> str | None:
    """What a completion says."""
    answer = await openai.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    return answer.choices[0].message.content


async def test_other_answers_than_the_first_are_another_history(openai: AsyncOpenAI, url: str, helper: Tenant) -> None:
    said = await waiting(openai)
    stranger = await token_of(helper.stack, helper.project, GatewayRole.CLIENT)
    async with AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=stranger, max_retries=0) as other:
        assert await said_to(other, said) == "I look."
    assert await turns_of(helper) == [("open", None), ("open", None)]
    assert await said_to(openai, said) == "Good."
    assert await said_to(openai, said) == "Good."
    assert [status for status, _ in await turns_of(helper)] == ["success", "open"]
    changed = [*said[:-1], {**said[-1], "content": "snow"}]
    assert await said_to(openai, changed) == "I look."
    assert [status for status, _ in await turns_of(helper)] == ["success", "open", "open"]


async def test_a_client_that_disappears_ends_its_turn_and_its_late_answer_is_read_by_a_new_one(
    openai: AsyncOpenAI, helper: Tenant
) -> None:
    said = await waiting(openai)
    [asked] = await open_calls(helper)
    assert (asked.expires_at - asked.created_at).total_seconds() == pytest.approx(600, abs=1)
    await helper.rows(
        "UPDATE state.interrupts SET expires_at = now() - interval '1 s' WHERE interrupt_id = $1", asked.interrupt_id
    )
    await helper.ended(asked.agent_turn_id)
    assert await turns_of(helper) == [("canceled", "client_gone")]
    assert await said_to(openai, said) == "I look."
    assert [status for status, _ in await turns_of(helper)] == ["canceled", "open"]


async def test_an_answer_after_a_stop_is_read_by_a_new_turn(
    openai: AsyncOpenAI, web: httpx.AsyncClient, helper: Tenant
) -> None:
    said = await waiting(openai)
    [asked] = await open_calls(helper)
    assert (await web.post(f"/v1/turns/{asked.agent_turn_id}/stop", json={})).status_code == 202
    await helper.ended(asked.agent_turn_id)
    assert await said_to(openai, said) == "I look."
    assert await turns_of(helper) == [("canceled", "stopped"), ("open", None)]


async def test_two_doors_answer_one_call_and_the_first_answer_counts(
    openai: AsyncOpenAI, url: str, web: httpx.AsyncClient, helper: Tenant
) -> None:
    said = await waiting(openai)
    [asked] = await open_calls(helper)
    path = f"/v1/interrupts/{asked.interrupt_id}/decision"
    assert (await web.get("/v1/interrupts")).json()["interrupts"] == []
    listed = (await web.get("/v1/interrupts?reason=client_tool")).json()["interrupts"]
    assert [i["interrupt_id"] for i in listed] == [asked.interrupt_id]
    shown = (await web.get(f"/v1/interrupts/{asked.interrupt_id}")).json()
    assert (shown["reason"], shown["arguments"]) == ("client_tool", {"city": "Graz"})
    for role, code in ((GatewayRole.CLIENT, "not_yours"), (GatewayRole.APPROVER, "forbidden")):
        async with client(url, await token_of(helper.stack, helper.project, role)) as other:
            refused = await other.post(path, json={"decision": "respond", "response": "x"})
            assert (refused.status_code, refused.json()["code"]) == (403, code)
    refused = await web.post(path, json={"decision": "respond", "response": "x"})
    assert (refused.status_code, refused.json()["code"]) == (403, "not_yours")
    async with client(url, openai.api_key) as own:
        answer = await own.post(path, json={"decision": "respond", "response": "sunny"})
        assert answer.status_code == 200, answer.text
        assert (await own.post(path, json={"decision": "respond", "response": "rain"})).json()[
            "code"
        ] == "already_decided"
    assert await said_to(openai, said) == "Good."
    assert await turns_of(helper) == [("success", None)]


async def test_an_operator_may_reject_a_call_and_its_client_learns_of_it_by_a_new_turn(
    openai: AsyncOpenAI, web: httpx.AsyncClient, helper: Tenant
) -> None:
    said = await waiting(openai)
    [asked] = await open_calls(helper)
    rejected = {"decision": "reject", "message": "No such city."}
    assert (await web.post(f"/v1/interrupts/{asked.interrupt_id}/decision", json=rejected)).status_code == 200
    ended = await helper.ended(asked.agent_turn_id)
    assert ended.results() == [("failed", "client_tool_failed", "No such city.")]
    assert await said_to(openai, said) == "I look."


async def test_a_completion_stays_open_for_people_and_tools_and_ends_with_the_clients_calls(
    openai: AsyncOpenAI, tenant: Tenant
) -> None:
    hand = Hand(tenant, ALICE)
    for name in ("search", "pay"):
        await put_tool(tenant.pool, tenant.project, definition(name))
    await tenant.profile(
        "helper", "talks", instances=True, allowed_tools=["search", "pay"], interrupt_on={"pay": {}, "weather": {}}
    )
    said = plays(calling("search", ("weather", {"city": "Graz"}), "pay"), {"text": "Good."})
    running = asyncio.create_task(openai.chat.completions.create(model=MODEL, messages=said, tools=[WEATHER]))
    [asked] = await Person(tenant).asked()
    assert asked.tool_name == "pay"
    [weather] = [call for call in await open_calls(tenant, 2) if call.tool_name == "weather"]
    await tenant.rows(  # its time begins when the client gets it
        "UPDATE state.interrupts SET expires_at = now() - interval '1 s' WHERE interrupt_id = $1", weather.interrupt_id
    )
    await Person(tenant).decide(asked, Decision.RESPOND, response="paid")
    assert not running.done()
    await hand.report(call_of(asked.agent_turn_id))
    answer = await running
    message = answer.choices[0].message
    assert [call.function.name for call in message.tool_calls or () if call.type == "function"] == ["weather"]
    assert await said_to(openai, [*said, message, *outputs(message)]) == "Good."
    assert await turns_of(tenant) == [("success", None)]


async def test_no_caller_masks_a_tool_and_tools_need_a_profile(openai: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player", instances=True, allowed_tools=[])
    await put_tool(tenant.pool, tenant.project, definition("skills.load"))
    named = f"profile:{ALICE}-profile"
    for taken in ("skills_load", "submit_result", "ask_human", "delegate_async"):
        tool: Any = {"type": "function", "function": {"name": taken}}
        with pytest.raises(UnprocessableEntityError) as failed:
            await openai.chat.completions.create(model=named, messages=plays(ASKS), tools=[tool])
        assert failed.value.code == "tool_name_taken"
    assert await turns_of(tenant) == [("failed", "tool_name_taken")] * 4
    with pytest.raises(BadRequestError) as refused:
        await openai.chat.completions.create(model=ALICE, messages=plays(ASKS), tools=[MOVE])
    assert (refused.value.param, refused.value.code) == ("tools", "unsupported_parameter")


async def test_128_tools_and_a_choice_of_the_first_call(openai: AsyncOpenAI, helper: Tenant) -> None:
    tools: list[Any] = [{"type": "function", "function": {"name": f"tool_{n}"}} for n in range(129)]
    with pytest.raises(BadRequestError) as refused:
        await openai.chat.completions.create(model=MODEL, messages=plays(ASKS), tools=tools)
    assert refused.value.param == "tools"
    choices: list[Any] = ["required", offered("tool_7")]
    for choice in choices:
        answer = await openai.chat.completions.create(
            model="profile:mirror", messages=plays(ASKS), tools=tools[:128], tool_choice=choice
        )
        shown = json.loads(answer.choices[0].message.content or "")
        assert (len(shown["tools"]), shown["config"]["tool_choice"]) == (129, choice)
    none = await openai.chat.completions.create(
        model="profile:mirror", messages=plays(ASKS), tools=tools[:1], tool_choice="none"
    )
    assert len(json.loads(none.choices[0].message.content or "")["tools"]) == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "custom"}]}, "tools.0.type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "bad_request"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "bad_request"),
        (
            {"tools": [offered("a", {"type": "object", "unevaluatedProperties": False})]},
            "tools.0.function.parameters",
            "schema_not_supported",
        ),
        ({"tools": [MOVE, MOVE]}, "tools", "bad_request"),
        (
            {"tools": [MOVE], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "bad_request",
        ),
        ({"tool_choice": "required"}, "tool_choice", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
            "messages.1.tool_call_id",
            "bad_request",
        ),
    ],
)
async def test_what_cannot_be_offered_is_refused_by_name(
    web: httpx.AsyncClient, helper: Tenant, fields: JsonObject, param: str, code: str
) -> None:
    body: JsonObject = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **fields}
    refused = await web.post("/openai/v1/chat/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, param, code)
    assert await helper.count("state.agent_inbox") == 0


async def test_only_a_caller_that_the_subject_names_has_tools(tenant: Tenant) -> None:
    await tenant.agent("player")
    config: JsonObject = {"client_tools": [{"name": "move"}]}
    request: JsonObject = {"agent_id": ALICE, "instruction": "x", "runtime_config": config}
    subject = bridge_request(tenant.project, CHANNEL, "enqueue", None)
    reply = json.loads((await tenant.stack.conn.request(subject, encode(request), timeout=25)).data)
    assert (reply["status"], reply["error_code"]) == ("rejected", "principal_required")


FUNCTION: Any = {"type": "function", **WEATHER["function"]}
OTHER: Any = {"type": "function", "name": "move"}


def script(*lines: JsonObject) -> str:
    """The instruction of a player."""
    return json.dumps({"steps": lines})


def returned(response: Any, output: str = "sunny") -> list[Any]:
    """The outputs of all calls of a response."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": call.call_id, "output": output} for call in calls]


async def test_a_response_ends_with_function_calls_and_stays_as_it_was(openai: AsyncOpenAI, helper: Tenant) -> None:
    both = calling(("weather", {"city": "Wien"}), ("move", {}))
    told = script(calling(("weather", {}), text="Hm."), ASKS, both, {"text": "Good."})
    tools = [FUNCTION, OTHER]
    first = await openai.responses.create(model=MODEL, input=told, tools=tools)
    kinds = [item.type for item in first.output]
    assert (first.status, kinds) == ("completed", ["message", "mcp_call", "message", "function_call"])
    assert [tool.name for tool in first.tools if tool.type == "function"] == ["weather", "move"]
    second = await openai.responses.create(
        model=MODEL, input=returned(first), previous_response_id=first.id, tools=tools
    )
    assert [item.type for item in second.output] == ["function_call", "function_call"]
    assert second.id == f"{first.id}_2"
    again = await openai.responses.create(model=MODEL, input=returned(first), previous_response_id=first.id)
    assert again == second
    third = await openai.responses.create(model=MODEL, input=returned(second), previous_response_id=second.id)
    assert (third.id, third.status, third.output_text) == (f"{first.id}_3", "completed", "Good.")
    for response in (first, second, third):
        assert await openai.responses.retrieve(response.id) == response
        assert await openai.responses.cancel(response.id) == response
    usage = [response.usage.output_tokens for response in (first, second, third) if response.usage is not None]
    assert len(usage) == 3
    assert 0 < usage[2] < usage[0]
    with pytest.raises(NotFoundError):
        await openai.responses.retrieve(f"{first.id}_1")
    assert await turns_of(helper) == [("success", None)]
    after = await openai.responses.create(model=MODEL, input=script({"text": "Bye."}), previous_response_id=third.id)
    assert after.output_text == "Bye."


async def test_a_response_streams_its_function_calls_and_goes_on_from_any_place(
    openai: AsyncOpenAI, helper: Tenant
) -> None:
    told = script(calling(("weather", {"city": "Graz"}), ("move", {}), text="I look."), {"text": "Good."})
    async with openai.responses.stream(model=MODEL, input=told, tools=[FUNCTION, OTHER]) as stream:
        events = [event async for event in stream]
        first = await stream.get_final_response()
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    arguments = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
    assert [json.loads(text) for text in arguments] == [{"city": "Graz"}, {}]
    whole = await openai.responses.retrieve(first.id, stream=True)
    numbers = [event.sequence_number async for event in whole]
    rest = await openai.responses.retrieve(first.id, stream=True, starting_after=numbers[-4])
    assert [event.sequence_number async for event in rest] == numbers[-3:]
    second = await openai.responses.create(
        model=MODEL, input=returned(first), previous_response_id=first.id, stream=True
    )
    last = [event async for event in second][-1]
    assert last.type == "response.completed"
    assert (last.response.output_text, last.response.id) == ("Good.", f"{first.id}_1")


async def test_a_background_response_is_over_when_its_client_must_run_something(
    openai: AsyncOpenAI, tenant: Tenant
) -> None:
    await put_tool(tenant.pool, tenant.project, definition())
    await tenant.profile("helper", "talks", instances=True, allowed_tools=["search"])
    told = script(calling("search", ("weather", {"city": "Graz"})), {"text": "Good."})
    begun = await openai.responses.create(model=MODEL, input=told, tools=[FUNCTION], background=True)
    [asked] = await open_calls(tenant)
    assert (await openai.responses.retrieve(begun.id)).status == "in_progress"
    await Hand(tenant, ALICE).report(call_of(asked.agent_turn_id))

    async def over() -> Any:
        read = await openai.responses.retrieve(begun.id)
        return read if read.status == "completed" else None

    first = await until(over, 25, "the response is over")
    assert [item.type for item in first.output] == ["mcp_call", "function_call"]
    second = await openai.responses.create(
        model=MODEL, input=returned(first), previous_response_id=first.id, background=True
    )
    await tenant.ended(asked.agent_turn_id)
    assert (await openai.responses.retrieve(second.id)).output_text == "Good."
    assert (await openai.responses.retrieve(begun.id)).output == first.output


async def test_items_that_are_sent_back_are_a_history(openai: AsyncOpenAI, helper: Tenant) -> None:
    told: Any = [{"role": "user", "content": script(ASKS, {"text": "Good."})}]
    first = await openai.responses.create(model=MODEL, input=told, tools=[FUNCTION], store=False)
    sent: list[Any] = [item.model_dump(exclude_none=True) for item in first.output]
    on = await openai.responses.create(model=MODEL, input=[*told, *sent, *returned(first)], tools=[FUNCTION])
    assert on.output_text == "Good."
    other = await openai.responses.create(model="profile:mirror", input=[*told, *sent, *returned(first, "rain")])
    shown = json.loads(other.output_text)["messages"]
    assert [role for role, _ in shown] == ["user", "assistant", "tool"]
    assert shown[1][1] == "I look."
    assert json.loads(shown[2][1])["result"] == "rain"
    assert [status for status, _ in await turns_of(helper)] == ["success", "success"]
    with pytest.raises(BadRequestError, match="previous_response_id, or the items before"):
        await openai.responses.create(
            model=MODEL, input=[{"type": "function_call_output", "call_id": "call_gone", "output": "x"}]
        )


async def test_the_programs_of_the_page_run_their_functions(url: str, tenant: Tenant) -> None:
    await tenant.profile("helper", "weather", instances=True)
    page = (ROOT / "docs/client-tools.md").read_text()
    program, own = [part.partition("```")[0] for part in page.split("```python\n")[1:]]
    token = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)
    typed = program.replace("http://127.0.0.1:8080", url).replace("tsk_…", token)
    await tenant.agent("weather", AgentId("helper"))
    env = {**os.environ, "TURNSTILE_URL": url, "TURNSTILE_TOKEN": token}
    running = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=PIPE, env=env)
        for script in (typed, own)
    ]
    for process in running:
        out, _ = await process.communicate()
        assert (process.returncode, "It is sunny in Graz." in out.decode()) == (0, True)
    assert await turns_of(tenant) == [("success", None)] * 2
