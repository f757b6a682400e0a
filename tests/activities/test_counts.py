"""Tokens of a request, counted by litellm, which asks nobody (protocol §7.3)."""

import pytest

from turnstile.activities.models.provider import LitellmModel, estimated_tokens
from turnstile.runtime.ports import ModelMessage, ModelRequest, ModelToolCall
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import LlmConfig

CALL = ModelToolCall(id="c", name="search", arguments='{"q": 1}')
SAID = (
    ModelMessage(role="system", content="Be good."),
    ModelMessage(role="user", content="hello there " * 50),
    ModelMessage(role="assistant", content="", tool_calls=(CALL,)),
    ModelMessage(role="tool", content="found", tool_call_id="c", name="search"),
)
TOOLS: tuple[JsonObject, ...] = (
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}},
)


def request(model: str, *, tools: tuple[JsonObject, ...] = ()) -> ModelRequest:
    return ModelRequest(LlmConfig(model=model), SAID, tools, 1, 1, 1.0)


@pytest.mark.parametrize(
    ("model", "exact"), [("openai/gpt-4o", True), ("anthropic/claude-sonnet-4-5", False), ("ollama/llama-3", False)]
)
async def test_litellm_counts_and_says_whether_as_the_model_does(model: str, *, exact: bool) -> None:
    counter = LitellmModel()
    plain, tools = await counter.count(request(model)), await counter.count(request(model, tools=TOOLS))
    assert 100 < plain.tokens < tools.tokens < 200
    assert plain.exact is tools.exact is exact


async def test_what_litellm_cannot_count_is_estimated_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = LitellmModel()
    sdk = await counter.warm_up()

    def fails(_: object) -> int:
        raise ValueError("a form that it does not know")

    monkeypatch.setattr(sdk, "count", fails)
    found = await counter.count(request("openai/gpt-4o"))
    assert (found.exact, 200 < found.tokens < 400) == (False, True)


def test_an_estimate_is_of_bytes() -> None:
    assert estimated_tokens({"messages": ["ä" * 300]}) > 200


async def test_a_model_of_nobody_is_not_counted() -> None:
    with pytest.raises(ModelError) as raised:
        await LitellmModel().count(request("nobody/knows"))
    assert raised.value.code == "model_unknown"
