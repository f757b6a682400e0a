"""Chat completions and models, asked for with OpenAI's own client."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.support.conditions import until
from tests.support.gateway import serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, CHANNEL, Tenant, new_tenant
from turnstile.ledger.access.pages import page_turns
from turnstile.ledger.access.tokens import revoke_token
from turnstile.ledger.roster import LOCAL, set_agent_status
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.access import GatewayRole, read_secret
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.wire.descriptions import TurnView

pytestmark = pytest.mark.shared_stack

WORDS = "".join(f"word-{number} " for number in range(60))


def script(*steps: dict[str, Any]) -> str:
    """What a scripted player says."""
    return json.dumps({"steps": steps})


def says(text: str, **more: Any) -> str:
    """What a scripted player says in one step."""
    return script({"text": text, **more})


SLOW = says("All of this takes long. " * 5, chunks=100, delay_seconds=0.2)
LATE = says("much later", delay_seconds=30)


@pytest.fixture
async def gpt(url: str, tenant: Tenant) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's client with a token of an operator of the test's project."""
    async with AsyncOpenAI(
        base_url=f"{url}/openai/v1", api_key=await token_of(tenant.stack, tenant.project), max_retries=0, timeout=30
    ) as made:
        yield made


async def ask(gpt: AsyncOpenAI, content: str, *, model: str = ALICE, **more: Any) -> ChatCompletion:
    """A completion for one message."""
    create: Any = gpt.chat.completions.create  # its overloads tell nothing of keywords that are not known
    return await create(model=model, messages=[{"role": "user", "content": content}], **more)


async def streamed(gpt: AsyncOpenAI, content: str, **more: Any) -> list[ChatCompletionChunk]:
    """The chunks of a completion for one message."""
    stream = await gpt.chat.completions.create(
        model=ALICE, messages=[{"role": "user", "content": content}], stream=True, **more
    )
    return [chunk async for chunk in stream]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    """What the chunks say."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def shown(made: ChatCompletion) -> list[list[str]]:
    """The messages that a mirror was asked with."""
    return json.loads(made.choices[0].message.content or "")["messages"]


def body_of(error: openai.APIError) -> dict[str, Any]:
    """OpenAI's error object."""
    assert isinstance(error.body, dict)
    return cast("dict[str, Any]", error.body)


async def only_turn(tenant: Tenant) -> TurnView:
    """The project's one turn, once it is there."""

    async def found() -> TurnView | None:
        page = await tenant.pool.run(
            lambda conn: page_turns(
                conn, tenant.project, channel=None, agent=None, conversation=None, before=None, row_limit=2
            )
        )
        if not page:
            return None
        [turn] = page
        return await tenant.pool.run(lambda conn: describe_turn(conn, tenant.project, turn.agent_turn_id))

    return await until(found, 25, "a turn is there")


async def test_a_question_is_answered(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    settings: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.5,
        "seed": 7,
        "reasoning_effort": "low",
        "verbosity": "low",
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "parallel_tool_calls": False,
    }
    noted: dict[str, Any] = {"user": "ada", "prompt_cache_key": "k", "metadata": {"order": "4711"}}
    made = await ask(gpt, says("so it is"), **settings, **noted, stop="END", max_completion_tokens=50, store=True)
    turn = await only_turn(tenant)
    assert (made.id, made.model, made.object) == (f"chatcmpl-{turn.agent_turn_id}", ALICE, "chat.completion")
    [choice] = made.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "so it is", "stop")
    assert made.usage is not None
    assert made.usage.completion_tokens == 3
    assert made.usage.total_tokens == made.usage.prompt_tokens + 3 > 3
    assert abs(made.created - turn.created_at.timestamp()) <= 1
    [row] = await tenant.rows(
        "SELECT i.payload, e.metadata FROM state.agent_inbox i JOIN state.execution_edges e "
        "ON e.target_agent_turn_id = i.agent_turn_id WHERE i.agent_turn_id = $1 AND e.primitive = 'enqueue'",
        turn.agent_turn_id,
    )
    assert json.loads(row["metadata"]) == {"openai": noted}
    assert json.loads(row["payload"])["runtime_config"] == {**settings, "stop": ["END"], "max_tokens": 50}
    rerun = await tenant.client.request(
        "rerun", {"agent_turn_id": turn.agent_turn_id, "runtime_config": {"seed": None}}
    )
    [again] = await tenant.rows(
        "SELECT payload FROM state.agent_inbox WHERE agent_turn_id = $1", rerun["agent_turn_id"]
    )
    del settings["seed"]
    assert json.loads(again["payload"])["runtime_config"] == {**settings, "stop": ["END"], "max_tokens": 50}


async def test_the_messages_are_all_that_a_turn_knows(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    """Also where the agent's profile keeps a conversation: a completion is in none."""
    await tenant.agent("mirror", memory={"keep": "conversation"}, system_prompt_template="You are {agent_id}.")
    await ask(gpt, "something earlier")
    made = await gpt.chat.completions.create(
        model=ALICE,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "who are you"},
            {"role": "assistant", "content": "nobody"},
            {"role": "developer", "content": [{"type": "text", "text": "Be {kind}."}]},
            {"role": "user", "content": [{"type": "text", "text": "and "}, {"type": "text", "text": "I?"}]},
        ],
    )
    assert shown(made) == [
        ["system", "You are alice.\n\nBe brief.\n\nBe {kind}."],
        ["user", "who are you"],
        ["assistant", "nobody"],
        ["user", "and I?"],
    ]
    got = cast("Any", made.choices[0].message.model_dump())  # clients send back what they got, as it is
    hello: Any = {"role": "user", "content": "hello"}
    again = await gpt.chat.completions.create(model=ALICE, messages=[hello, got, hello])
    assert shown(again)[1:] == [["user", "hello"], ["assistant", got["content"]], ["user", "hello"]]
    assert await tenant.count("state.conversations") == 0


async def test_what_is_written_is_streamed(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    chunks = await streamed(gpt, says(WORDS, chunks=30, delay_seconds=0.02), stream_options={"include_usage": True})
    assert text_of(chunks) == WORDS
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 10
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 60
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_clients_own_accumulator_reads_a_stream(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    asked: Any = {"role": "user", "content": says("piece by piece", chunks=5)}
    async with gpt.chat.completions.stream(
        model=ALICE, messages=[asked], stream_options={"include_usage": True}
    ) as all_of:
        final = await all_of.get_final_completion()
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("piece by piece", "stop")
    assert final.usage is not None
    assert final.usage.completion_tokens == 3


async def test_a_completion_ends_with_its_token(gpt: AsyncOpenAI, here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    async with serving(here, heartbeat_seconds=0.2) as url:
        token = await token_of(here, tenant.project)
        known = read_secret(token)
        assert known is not None
        other = gpt.with_options(base_url=f"{url}/openai/v1", api_key=token)
        asking: list[asyncio.Task[Any]] = [
            asyncio.create_task(each) for each in (streamed(other, LATE), ask(other, LATE))
        ]

        async def begun() -> bool:
            return await tenant.count("state.agent_inbox", "message_type = 'turn'") == 2

        await until(begun, 25, "both were asked")
        await tenant.pool.run(lambda conn: revoke_token(conn, tenant.project, known.token_id))
        ended = await asyncio.gather(*asking, return_exceptions=True)
    assert [body_of(error)["code"] for error in ended if isinstance(error, openai.APIError)] == ["unauthenticated"] * 2
    assert isinstance(ended[1], openai.AuthenticationError)

    async def stopped() -> bool:
        return await tenant.count("state.turn_outcomes", "error_code = 'stopped'") == 2

    await until(stopped, 25, "both turns were stopped")


async def test_steps_are_set_apart_and_the_usage_is_of_all(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    both = script(
        {"text": "let me see", "chunks": 4, "tool_calls": [{"name": "missing_tool", "arguments": {}}]},
        {"text": "here it is", "chunks": 4},
    )
    chunks = await streamed(gpt, both)
    assert text_of(chunks) == "let me see\n\nhere it is"
    assert chunks[-1].usage is None
    whole = await ask(gpt, both)
    assert whole.choices[0].message.content == "here it is"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 7  # and one word of arguments


async def test_json_that_is_delivered_is_the_text(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player", must_end_with=["submit_result"])
    call = {"name": "submit_result", "arguments": {"fields": [{"name": "city", "value": "Wien"}]}}
    submits = script({"text": "done", "tool_calls": [call]})
    fields = {"fields": [{"name": "city", "value": "Wien"}]}
    whole = await ask(gpt, submits)
    assert json.loads(whole.choices[0].message.content or "") == fields
    told, apart, rest = text_of(await streamed(gpt, submits)).partition("\n\n")
    assert (told, apart, json.loads(rest)) == ("done", "\n\n", fields)


async def test_an_answer_that_is_cut_short_says_so(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    cut = says("not all of", finish_reason="length")
    assert (await ask(gpt, cut)).choices[0].finish_reason == "length"
    assert (await streamed(gpt, cut))[-1].choices[0].finish_reason == "length"


async def test_an_attempt_that_says_the_same_again_goes_on_and_another_voids_the_stream(
    gpt: AsyncOpenAI, tenant: Tenant
) -> None:
    await tenant.agent("player")
    breaks = {"text": "one two three four", "chunks": 4, "error": {"code": "provider_timeout", "after_chunks": 2}}
    same = script({"attempts": [breaks, {"text": "one two three four", "chunks": 3}]})
    assert text_of(await streamed(gpt, same)) == "one two three four"
    other = script({"attempts": [breaks, {"text": "quite another", "chunks": 3}]})
    with pytest.raises(openai.APIError) as raised:
        await streamed(gpt, other)
    assert body_of(raised.value)["code"] == "stream_voided"
    assert (await ask(gpt, other)).choices[0].message.content == "quite another"


async def test_a_failed_turn_is_an_error_with_its_code_and_runs_once(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    fails = script(
        {"text": "so far", "error": {"code": "provider_auth", "message": "no", "retryable": False, "after_chunks": 1}}
    )
    eager = gpt.with_options(max_retries=3)
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        await ask(eager, fails)
    assert (body_of(raised.value)["code"], body_of(raised.value)["type"]) == ("provider_auth", "invalid_request_error")
    assert raised.value.request_id
    await only_turn(tenant)  # the client did not repeat it
    with pytest.raises(openai.APIError) as ended:
        await streamed(eager, fails)
    assert body_of(ended.value)["code"] == "provider_auth"


async def test_what_does_not_fit_into_the_context_is_told_as_openai_does(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    fails = script({"text": "x", "error": {"code": "context_window_exceeded", "message": "no", "retryable": False}})
    with pytest.raises(openai.BadRequestError) as raised:
        await ask(gpt, fails)
    assert body_of(raised.value)["code"] == "context_length_exceeded"


async def test_a_stopped_turn_is_no_status_that_clients_repeat(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    asking = asyncio.create_task(ask(gpt, LATE))
    turn = await only_turn(tenant)
    await tenant.client.request("stop", {"agent_turn_id": turn.agent_turn_id, "reason": "enough"})
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        await asking
    assert body_of(raised.value)["code"] == "stopped"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_stops_its_turn(gpt: AsyncOpenAI, tenant: Tenant, stream: bool) -> None:
    await tenant.agent("player")
    asking = asyncio.create_task(streamed(gpt, LATE) if stream else ask(gpt, LATE))
    turn = await only_turn(tenant)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await tenant.ended(turn.agent_turn_id)).view.error_code == "stopped"


async def test_a_request_with_a_key_is_found_again(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    """Whatever became of the first connection; another request with the key is a conflict."""
    await tenant.agent("player")
    headers, slow = {"Idempotency-Key": "k-1"}, says(WORDS, chunks=20, delay_seconds=0.05)
    asking = asyncio.create_task(streamed(gpt, slow, extra_headers=headers))
    turn = await only_turn(tenant)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    whole, chunks = await asyncio.gather(
        ask(gpt, slow, extra_headers=headers), streamed(gpt, slow, extra_headers=headers)
    )
    assert whole.id == chunks[0].id == f"chatcmpl-{turn.agent_turn_id}"
    assert whole.choices[0].message.content == text_of(chunks) == WORDS
    with pytest.raises(openai.UnprocessableEntityError) as raised:
        await ask(gpt, says("another"), extra_headers=headers)
    assert body_of(raised.value)["code"] == "correlation_conflict"
    await only_turn(tenant)


async def test_a_gateway_that_stops_ends_completions_with_an_error(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    serves = serving(here)
    address = await serves.__aenter__()
    async with AsyncOpenAI(base_url=f"{address}/openai/v1", api_key=token, max_retries=0) as gpt:
        asking = [asyncio.create_task(each) for each in (ask(gpt, LATE), streamed(gpt, LATE))]

        async def both() -> bool:
            return await tenant.count("state.agent_inbox", "message_type = 'turn'") == 2

        await until(both, 25, "both were asked")
        await asyncio.sleep(0.2)  # until the stream has begun
        await serves.__aexit__(None, None, None)
        ended = await asyncio.gather(*asking, return_exceptions=True)
    assert [body_of(error)["code"] for error in ended if isinstance(error, openai.APIError)] == [
        "server_unavailable"
    ] * 2

    async def stopped() -> bool:
        return await tenant.count("state.turn_outcomes", "error_code = 'stopped'") == 2

    await until(stopped, 25, "both turns were stopped")


async def test_models_are_agents_and_profiles_with_instances(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    await tenant.agent("player", AgentId("retired-one"))
    await set_agent_status(tenant.pool, tenant.project, AgentId("retired-one"), "retire", LOCAL)
    await tenant.profile("Many / of us", "player", instances=True)
    made = await ask(gpt, says("from an instance"), model="profile:many / of us")
    assert (made.choices[0].message.content, made.model) == ("from an instance", "profile:Many / of us")
    listed = [model async for model in gpt.models.list()]
    assert [model.id for model in listed] == [ALICE, "profile:Many / of us"]
    assert {(model.object, model.owned_by) for model in listed} == {("model", tenant.project)}
    for model in listed:
        assert await gpt.models.retrieve(model.id) == model
    for name in ("nobody", "retired-one", "profile:alice-profile", "profile:", "gpt-4o", "x" * 3000, "a\0b", "ü"):
        with pytest.raises(openai.NotFoundError) as raised:
            await ask(gpt, "hello", model=name)
        assert (body_of(raised.value)["code"], body_of(raised.value)["param"]) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as unknown:
        await gpt.models.retrieve("nobody")
    assert body_of(unknown.value)["code"] == "model_not_found"


UNSUPPORTED: list[tuple[str, Any]] = [
    ("tools.0.type", [{"type": "custom"}]),
    ("functions", [{"name": "f"}]),
    ("n", 2),
    ("logprobs", True),
    ("top_logprobs", 3),
    ("response_format.type", {"type": "grammar"}),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "alloy", "format": "wav"}),
    ("logit_bias", {"1": 1}),
    ("prediction", {"type": "content", "content": "x"}),
    ("service_tier", "flex"),
    ("web_search_options", {}),
    ("something_new", "k"),
]


async def test_what_is_not_supported_is_refused_by_name(gpt: AsyncOpenAI, tenant: Tenant) -> None:
    for name, value in UNSUPPORTED:
        with pytest.raises(openai.BadRequestError) as raised:
            await ask(gpt, "hello", extra_body={name.partition(".")[0]: value})
        told = body_of(raised.value)
        assert (told["code"], told["param"], told["type"]) == ("unsupported_parameter", name, "invalid_request_error")
        assert name in told["message"]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    user = {"role": "user", "content": "hello"}
    for messages, param in [
        ([{"role": "user", "content": [image]}], "messages.0.content.0.type"),
        ([user, {"role": "function", "name": "c", "content": "x"}], "messages.1.role"),
        ([{**user, "mood": "good"}], "messages.0.mood"),
        ([{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}], "messages.0.content.0.cache"),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            await gpt.chat.completions.create(model=ALICE, messages=cast("Any", messages))
        assert (body_of(refused.value)["code"], body_of(refused.value)["param"]) == ("unsupported_parameter", param)
    await tenant.agent("player")
    harmless: dict[str, Any] = {
        "n": 1,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "store": False,
        "prompt_cache_key": "k",
        "parallel_tool_calls": False,
    }
    nulls = {"seed": None, "stop": None, "logprobs": None, "stream": None, "metadata": None}
    made = await ask(gpt, says("fine"), extra_body={**harmless, **nulls})
    assert made.choices[0].message.content == "fine"
    part = {"type": "text", "text": says("so it is"), "cache_control": {"type": "ephemeral"}, "role": "user"}
    spoken: Any = [
        {"role": "user", "name": "ada", "content": [part]},
        {"role": "assistant", "content": "yes", "reasoning_content": "because", "tool_calls": None, "refusal": None},
    ]
    again = await gpt.chat.completions.create(model=ALICE, messages=spoken)
    assert again.choices[0].message.content == "so it is"


async def test_bad_requests_are_told_as_openai_tells_them(
    url: str, gpt: AsyncOpenAI, tenant: Tenant, other: AsyncOpenAI
) -> None:
    await tenant.agent("player")
    hello = [{"role": "user", "content": "hello"}]
    bad: list[tuple[dict[str, Any], int, str]] = [
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hello"}, 400, "messages"),
        ({"messages": [{"role": "system", "content": "hello"}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "messages"),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content"),
        ({"messages": ["hello"]}, 400, "messages.0.role"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": [], "content": "x"}]}, 400, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [1]}]}, 400, "messages.0.content.0.type"),
        ({"messages": hello * 10_001}, 400, ""),
        ({"messages": [{"role": "user", "content": "x" * 530_000}]}, 413, ""),
        ({"messages": [{"role": "user", "content": "x" * 1_100_000}]}, 413, ""),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, 400, ""),
        ({"messages": hello, "user": "a\0b"}, 400, ""),
        ({"messages": hello, "temperature": 3}, 400, "temperature"),
        ({"messages": hello, "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": hello, "max_tokens": 1, "max_completion_tokens": 2}, 400, "max_tokens"),
        ({"messages": hello, "metadata": {"a": 1}}, 400, "metadata.a"),
        ({"messages": hello, "metadata": {"a": "x" * 513}}, 400, "metadata"),
        ({"messages": hello, "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"messages": hello, "stream": True, "stream_options": {"more": 1}}, 400, "stream_options.more"),
    ]
    for body, status, param in bad:
        with pytest.raises(openai.APIStatusError) as raised:
            await gpt.post("/chat/completions", cast_to=object, body={"model": ALICE, **body})
        assert raised.value.status_code == status, body_of(raised.value)
        if param:
            assert body_of(raised.value)["param"] == param
    with pytest.raises(openai.NotFoundError):
        await ask(other, "hello")  # another project's agent
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {gpt.api_key}"}) as web:
        for content in (
            b"{",
            b"[]",
            b'{"model": "alice", "messages": [{"role": "user", "content": "\\ud800"}]}',
            b"\xff",
        ):
            answer = await web.post(
                "/openai/v1/chat/completions", content=content, headers={"content-type": "application/json"}
            )
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (await web.get("/openai/v1/chat/completions")).json()["error"]["code"] == "method_not_allowed"
    assert await tenant.count("state.agent_inbox") == 0


@pytest.fixture
async def other(url: str, here: Stack) -> AsyncIterator[AsyncOpenAI]:
    """A client of another project."""
    stranger = new_tenant(here)
    await stranger.profile("strange", "player")
    token = await token_of(here, stranger.project)
    async with AsyncOpenAI(base_url=f"{url}/openai/v1", api_key=token, max_retries=0) as made:
        yield made


async def test_who_may_not_ask_is_told_so(here: Stack, url: str, gpt: AsyncOpenAI, tenant: Tenant) -> None:
    await tenant.agent("player")
    with pytest.raises(openai.AuthenticationError):
        await ask(gpt.with_options(api_key="sk-none"), "hello")
    viewer = gpt.with_options(api_key=await token_of(here, tenant.project, GatewayRole.VIEWER))
    assert [model.id async for model in viewer.models.list()] == [ALICE]
    with pytest.raises(openai.PermissionDeniedError):
        await ask(viewer, "hello")
    own = gpt.with_options(api_key=await token_of(here, tenant.project, GatewayRole.CLIENT, "u_ada"))
    made = await ask(own, says("in my channel"))
    turn = await tenant.ended(AgentTurnId(made.id.removeprefix("chatcmpl-")))
    assert turn.view.channel_id == "u_ada" != CHANNEL
    async with serving(here, max_streams_per_token=1) as small:
        one = gpt.with_options(base_url=f"{small}/openai/v1")
        waiting = asyncio.create_task(ask(one, LATE))

        async def begun() -> bool:
            return await tenant.count("state.agent_inbox", "message_type = 'turn'") == 2

        await until(begun, 25, "the first was asked")
        with pytest.raises(openai.RateLimitError) as raised:
            await ask(one, says("a second one"))
        assert body_of(raised.value)["code"] == "too_many_streams"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
