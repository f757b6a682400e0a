"""What comes of a stream: text, reasoning, calls however they are cut and numbered, usage and cost last."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from tests.activities.models.anthropic_stub import AnthropicStub
from tests.activities.models.asking import LIMITS, question, request_to
from tests.activities.models.http_stub import HttpReply, HttpRequest
from tests.activities.models.provider_stub import COMPLETION_TOKENS, PROMPT_TOKENS, Call, ProviderStub, Said
from turnstile.activities.models import LitellmModel, ModelAccess
from turnstile.activities.models.provider import _Calls
from turnstile.activities.models.wire_forms import ToolCallFragment
from turnstile.runtime.ports import ContentDelta, ModelDone, ReasoningDelta, ToolCallDelta

ModelOf = Callable[[ProviderStub], LitellmModel]
_MANY = 102
WHOLE = Said(text=("Hel", "lo"), reasoning=("h", "m"), calls=(Call("a", ('{"q": 1}',)), Call("b", ('{"q": 2}',))))


async def test_deltas_come_in_order_and_the_end_last(provider: type[ProviderStub], model_of: ModelOf) -> None:
    async with provider(WHOLE) as stub:
        events = [event async for event in model_of(stub).stream(request_to(stub.model))]
        base = stub.api_base
        assert stub.refusals == []
    done = events[-1]
    assert [kind for kind, _ in groupby(map(type, events))] == [ReasoningDelta, ContentDelta, ToolCallDelta, ModelDone]
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm"
    assert "".join(event.text for event in events if isinstance(event, ContentDelta)) == "Hello"
    assert isinstance(done, ModelDone)
    assert (done.finish_reason, done.usage_kind) == ("tool_calls", "exact")
    assert (done.usage["prompt_tokens"], done.usage["completion_tokens"]) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    assert all(isinstance(count, int) for count in done.usage.values())
    assert done.response_id in ("chatcmpl-1", "r1", "msg_1", None)  # the provider's own, none that was made up
    assert done.server == base
    assert done.response_cost is not None
    assert 0 < done.response_cost < 0.01


async def test_split_repeated_and_empty_call_ids(provider: type[ProviderStub], model_of: ModelOf) -> None:
    split = ('{"q": 1}',) if provider.prefix == "gemini" else ("", '{"q"', ": ", "1}")
    calls = (Call("a", split, id="call_0"), Call("b", id="call_0"), Call("c", id=""), Call("d", id=None))
    async with provider(Said(calls=calls)) as stub:
        said = (await question(model_of(stub), stub.model)).said()
    assert [(call.name, call.arguments_text) for call in said.calls] == [
        ("a", '{"q": 1}'),
        ("b", "{}"),
        ("c", "{}"),
        ("d", "{}"),
    ]


async def test_malformed_arguments_are_handed_on(provider: type[ProviderStub], model_of: ModelOf) -> None:
    if provider.prefix == "gemini":
        pytest.skip("sends objects, not text")
    async with provider(Said(calls=(Call("a", ('{"q": ',)),))) as stub:
        [call] = (await question(model_of(stub), stub.model)).said().calls
    assert call.arguments_text == '{"q": '


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([(0, "c1", "a", '{"x"'), (0, None, None, ": 1}")], ['0a{"x": 1}']),
        ([(0, "c1", "a", "{}"), (0, "c2", "b", "{}")], ["0a{}", "1b{}"]),
        ([(0, "", "a", "{}"), (0, "", "a", "{}")], ["0a{}", "1a{}"]),
        ([(0, "c1", "a", '{"x"'), (0, "c1", "a", ": 1}")], ['0a{"x": 1}']),
        ([(0, "", "a", '{"x"'), (0, "", "a", ": 1}")], ['0a{"x": 1}']),
        ([(3, "c1", "a", ""), (1, "c2", "b", ""), (3, None, None, "{}")], ["0a{}", "1b"]),
    ],
)
def test_calls_under_one_index_are_told_apart(
    pieces: list[tuple[int, str | None, str | None, str]], calls: list[str]
) -> None:
    """Providers that give every call the index 0, that repeat a call's name in each piece, or leave out ids."""
    folded, sorter = dict[int, str](), _Calls()
    for piece in pieces:
        delta = sorter.delta(ToolCallFragment(*piece))
        folded.setdefault(delta.index, f"{delta.index}{delta.name}")
        folded[delta.index] += delta.arguments
    assert list(folded.values()) == calls


async def test_usage_that_is_missing(provider: type[ProviderStub], model_of: ModelOf) -> None:
    """Anthropic's is never estimated by litellm."""
    async with provider(Said(text=("Hello",), usage=False)) as stub:
        said = (await question(model_of(stub), stub.model)).said()
    if provider.prefix == "anthropic":
        assert (said.usage_kind, said.usage, said.response_cost) == ("unknown", {}, None)
    else:
        assert said.usage_kind == "estimated"
        assert said.usage["completion_tokens"] == 1


async def test_a_model_without_a_price(model_of: ModelOf, provider: type[ProviderStub]) -> None:
    if provider.prefix == "openai":
        pytest.skip("has the price of the model that its answer names")
    async with provider(Said(text=("Hello",))) as stub:
        said = (await question(model_of(stub), f"{stub.prefix}/house-model-1")).said()
    assert (said.usage_kind, said.response_cost) == ("exact", None)


async def test_an_unknown_finish_reason_is_an_end(provider: type[ProviderStub], model_of: ModelOf) -> None:
    async with provider(Said(text=("Hello",), finish="weird_reason")) as stub:
        said = (await question(model_of(stub), stub.model)).said()
    assert (said.text, said.truncated) == ("Hello", "weird_reason")


async def test_a_length_is_told(provider: type[ProviderStub], model_of: ModelOf) -> None:
    words = {"openai": "length", "anthropic": "max_tokens", "gemini": "MAX_TOKENS"}
    async with provider(Said(text=("Hel",), finish=words[provider.prefix])) as stub:
        said = (await question(model_of(stub), stub.model)).said()
    assert (said.text, said.finish_reason) == ("Hel", "length")


class _Together(AnthropicStub):
    """Answers when so many requests are open."""

    open = 0
    all_open = asyncio.Event()

    async def reply(self, request: HttpRequest) -> HttpReply:
        _Together.open += 1
        if _Together.open == _MANY:
            _Together.all_open.set()
        await asyncio.wait_for(_Together.all_open.wait(), 40)
        return await super().reply(request)


async def test_one_process_holds_more_streams_than_a_client_of_http_has_connections_by_default(key_file: Path) -> None:
    async with _Together(Said(text=("Hello",))) as stub:
        model = LitellmModel(ModelAccess({stub.prefix: key_file}, {stub.prefix: stub.api_base}))
        once = replace(LIMITS, model_attempts=1)
        try:
            answered = await asyncio.gather(*(question(model, stub.model, limits=once) for _ in range(_MANY)))
        finally:
            await model.close()
    assert {one.said().text for one in answered} == {"Hello"}
    assert stub.refusals == []


async def test_requests_go_through_the_proxy_that_the_environment_names(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AnthropicStub(Said(text=("Hello",))) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        base = "http://provider.invalid"
        model = LitellmModel(ModelAccess({"anthropic": key_file}, {"anthropic": base}))
        try:
            answered = await question(model, proxy.model)
        finally:
            await model.close()
    assert answered.said().text == "Hello"
