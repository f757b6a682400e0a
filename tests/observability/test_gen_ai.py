"""Names and values of span attributes: those of the conventions' package, bounded, and without secrets."""

import json
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names

from turnstile.runtime import gen_ai
from turnstile.runtime.ports import ModelMessage, ModelToolCall
from turnstile.runtime.span_content import LIMIT_BYTES, answered, asked, call_content
from turnstile.schema.base import JsonObject
from turnstile.schema.wire import headers

KNOWN = {value for name, value in vars(names).items() if name.startswith("GEN_AI_")}
EVERY: JsonObject = {
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "cached_tokens"), 3),
    **dict.fromkeys(("cache_creation_tokens", "reasoning_tokens"), 3),
}
PARAMETERS = ("temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "top_k")


def plain(text: str) -> str:
    """A text that holds no secret."""
    return text


def test_every_attribute_is_one_of_the_conventions() -> None:
    made = {
        **gen_ai.operation("chat", "gpt-4o")[1],
        **gen_ai.agent("a", "Chief"),
        **gen_ai.conversation({headers.CONVERSATION_ID: "c"}, "box"),
        **gen_ai.tool("look", "call_1"),
        **gen_ai.requested("openai/gpt-4o", {**dict.fromkeys(PARAMETERS, 1), "stop": ["x"]}),
        **gen_ai.usage_attributes(EVERY),
        **call_content({}, {}, plain),
        **asked((), plain),
        **answered("", (), "stop", plain),
    }
    assert made.keys() <= KNOWN, made.keys() - KNOWN
    assert made["gen_ai.conversation.id"] == "c"
    assert len(made) == 27


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("openai/gpt-4o", "openai", "gpt-4o"),
        ("azure/mine", "azure.ai.openai", "mine"),
        ("bedrock/eu.x", "aws.bedrock", "eu.x"),
        ("openrouter/meta/llama", "openrouter", "meta/llama"),
        ("gpt-4o", "_OTHER", "gpt-4o"),
    ],
)
def test_providers_have_the_conventions_names(model: str, provider: str, name: str) -> None:
    assert gen_ai.model_names(model) == (provider, name)


def test_the_server_is_what_the_operator_set() -> None:
    assert gen_ai.server("https://u:p@models.example/v1") == {"server.address": "models.example", "server.port": 443}
    assert gen_ai.server("http://[::1]:8000") == {"server.address": "::1", "server.port": 8000}
    assert gen_ai.server(None) == gen_ai.server("nonsense") == {}


def test_a_long_history_keeps_its_begin_and_its_end() -> None:
    said = [ModelMessage(role="user", content=f"{n} " + "x" * 9000) for n in range(40)]
    text = str(asked(said, plain)["gen_ai.input.messages"])
    shown: Any = json.loads(text)
    assert len(text.encode()) <= LIMIT_BYTES
    assert [each["parts"][0]["content"].split()[0] for each in shown][0 :: len(shown) - 1] == ["0", "39"]
    assert all(each["parts"][0]["content"].endswith("x…") for each in shown)


def test_whatever_is_written_becomes_json_of_a_bounded_size() -> None:
    deep: Any = "end"
    for _ in range(50):
        deep = [deep]
    wide: Any = {f"k{n}": "é" * 5000 for n in range(200)}
    odd: list[Any] = [deep, wide, "\ud800", {"a": float("inf")}, [None] * 1000]
    for value in odd:
        found = call_content(value, value, plain)
        for text in map(str, found.values()):
            assert len(text.encode(errors="replace")) <= LIMIT_BYTES
            assert "Infinity" not in text
            json.loads(text)
    call = ModelToolCall(id="1", name="look", arguments="{no json")
    [message] = json.loads(str(answered("", [call] * 500, "tool_calls", plain)["gen_ai.output.messages"]))
    assert message["finish_reason"] == "tool_call"
    assert message["parts"][0] == {"type": "tool_call", "id": "1", "name": "look", "arguments": "{no json"}


def test_a_secret_is_taken_out_before_a_text_is_cut() -> None:
    key = "sk-123456789"
    text = "x" * 4090 + key
    [given] = call_content({"text": text, key: 1}, None, lambda said: said.replace(key, "***")).values()
    assert "sk-" not in str(given)
    tool = ModelMessage(role="tool", content=json.dumps({"key": key}), tool_call_id="1")
    assert key not in str(asked([tool], lambda said: said.replace(key, "***")))
