"""Requests of local models that have to call: what the prompt and the grammar become, and the answer as a call."""

import json
from collections.abc import AsyncGenerator

from turnstile.activities.models.local import _as_call, bound_to_call, must_call
from turnstile.rules.tool_specs import SUBMIT_RESULT_SPEC, function_spec
from turnstile.runtime.ports import (
    ContentDelta,
    ModelDone,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ModelToolCall,
    ToolCallDelta,
)
from turnstile.schema.profiles import LlmConfig

SEARCH = function_spec("search", "Search.", {"type": "object", "properties": {"for": {"type": "string"}}})
CALL = ModelToolCall(id="c1", name="search", arguments='{"for": "x"}')
MESSAGES = (
    ModelMessage(role="system", content="Be brief."),
    ModelMessage(role="user", content="Find x."),
    ModelMessage(role="assistant", content="", tool_calls=(CALL,)),
    ModelMessage(role="tool", content="found", tool_call_id="c1"),
)


def request(**params: object) -> ModelRequest:
    """A request with two functions."""
    config = LlmConfig.model_validate({"model": "local/x", "params": params})
    return ModelRequest(config, MESSAGES, (SEARCH, SUBMIT_RESULT_SPEC), 1, 1, 10.0)


def test_only_who_has_to_call_is_bound() -> None:
    assert must_call(request()) == must_call(request(tool_choice="auto")) == ()
    assert [each["name"] for each in must_call(request(tool_choice="required"))] == ["search", "submit_result"]
    named = {"type": "function", "function": {"name": "search"}}
    assert [each["name"] for each in must_call(request(tool_choice=named))] == ["search"]


def test_a_bound_request_has_its_functions_in_the_prompt_and_calls_as_text() -> None:
    asked = request(tool_choice="required", parallel_tool_calls=False, top_k=3)
    bound = bound_to_call(asked, must_call(asked))
    assert bound.tools == ()
    assert [message.role for message in bound.messages] == ["system", "user", "assistant", "user"]
    first, _, called, result = (message.content for message in bound.messages)
    assert first.startswith("Be brief.\n\nAnswer with one JSON object")
    assert '"name": "submit_result"' in first
    assert json.loads(called) == {"name": "search", "arguments": {"for": "x"}}
    assert result == "The result: found"
    params = bound.config.params
    assert params.keys() == {"top_k", "response_format"}
    form = json.dumps(params["response_format"])
    assert '{"const": "search"}' in form
    assert '{"type": "null"}' in form  # a value of any kind is a simple one
    assert asked.tools == (SEARCH, SUBMIT_RESULT_SPEC)
    assert "anyOf" not in json.dumps(SUBMIT_RESULT_SPEC)


def test_a_bound_request_without_a_system_prompt_gets_one() -> None:
    bound = bound_to_call(
        ModelRequest(LlmConfig(model="local/x"), MESSAGES[1:2], (SEARCH,), 1, 1, 10.0),
        must_call(request(tool_choice="required")),
    )
    assert [message.role for message in bound.messages] == ["system", "user"]


async def read(*pieces: str, finish: str = "stop") -> list[ModelEvent]:
    """What becomes of an answer's pieces."""

    async def events() -> AsyncGenerator[ModelEvent]:
        for piece in pieces:
            yield ContentDelta(piece)
        yield ModelDone(finish, {"total_tokens": 3}, None, "exact")

    return [each async for each in _as_call(events())]


async def test_a_whole_answer_becomes_a_call() -> None:
    got = await read('{"name": "search", ', '"arguments": {"for": "ä"}}\n')
    done = ModelDone("tool_calls", {"total_tokens": 3}, None, "exact")
    assert got == [ToolCallDelta(0, "call_0", "search", '{"for": "ä"}'), done]


async def test_an_answer_that_was_cut_off_stays_text() -> None:
    for text in ('{"name": "search", "arg', '{"name": "search", "arguments": "x"}', "[]"):
        done = ModelDone("length", {"total_tokens": 3}, None, "exact")
        assert await read(text, finish="length") == [ContentDelta(text), done]
