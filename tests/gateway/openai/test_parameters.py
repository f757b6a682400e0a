"""Every parameter of the installed `openai` package is obeyed, accepted without a meaning, or refused by name.

The tables below are compared with the signatures, so a parameter that comes with another version fails here; and with
the table of docs/gateway.md.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses

from tests.support.paths import ROOT
from turnstile.activities.models.forms import request_form
from turnstile.gateway.http.problems import BadField, Unsupported
from turnstile.gateway.openai.chat_request import ChatCreate, said_in
from turnstile.gateway.openai.messages import composed
from turnstile.gateway.openai.responses.request import ResponseCreate
from turnstile.rules.turn_config import with_runtime
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.profiles import REQUEST_PARAMS, LlmConfig, RuntimeConfig

OF_CLIENTS = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
"""Parameters of the client, which it does not send."""
SHAPE: Any = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}


class Fate(NamedTuple):
    """What becomes of a parameter."""

    obeyed: tuple[Any, ...] = ()
    """Values that change the turn, what is recorded with it, or how it is answered."""
    accepted: tuple[Any, ...] = ()
    """Values that change nothing."""
    refused: tuple[Any, ...] = ()
    """Values that are refused by the parameter's name."""


TOOL: Any = {"type": "function", "function": {"name": "f"}}
FUNCTION: Any = {"type": "function", "name": "f"}
CACHE: dict[str, Fate] = {
    "prompt_cache_key": Fate(obeyed=("k",)),
    "prompt_cache_options": Fate(accepted=({"mode": "explicit"},)),
    "prompt_cache_retention": Fate(accepted=("24h",)),
}
BOTH: dict[str, Fate] = {
    **CACHE,
    "metadata": Fate(obeyed=({"order": "4711"},)),
    "model": Fate(obeyed=("other",)),
    "moderation": Fate(refused=({"model": "omni"},)),
    "parallel_tool_calls": Fate(obeyed=(False,), accepted=(True,)),
    "safety_identifier": Fate(obeyed=("ada",)),
    "service_tier": Fate(accepted=("auto", "default"), refused=("flex", "priority")),
    "stream": Fate(obeyed=(True,), accepted=(False,)),
    "temperature": Fate(obeyed=(0, 0.5)),
    "top_p": Fate(obeyed=(0.5,), accepted=(1, 1.0)),
    "user": Fate(obeyed=("ada",)),
}
CHAT: dict[str, Fate] = {
    **BOTH,
    "audio": Fate(refused=({"voice": "alloy", "format": "wav"},)),
    "frequency_penalty": Fate(obeyed=(0.5, -2), accepted=(0, 0.0)),
    "function_call": Fate(accepted=("auto", "none"), refused=({"name": "f"},)),
    "functions": Fate(accepted=([],), refused=([{"name": "f"}],)),
    "logit_bias": Fate(accepted=({},), refused=({"1": 1},)),
    "logprobs": Fate(accepted=(False,), refused=(True,)),
    "max_completion_tokens": Fate(obeyed=(7,)),
    "max_tokens": Fate(obeyed=(7,)),
    "messages": Fate(obeyed=([{"role": "user", "content": "other"}],)),
    "modalities": Fate(accepted=(["text"],), refused=(["text", "audio"],)),
    "n": Fate(accepted=(1,), refused=(2,)),
    "prediction": Fate(refused=({"type": "content", "content": "x"},)),
    "presence_penalty": Fate(obeyed=(0.5, 2), accepted=(0, 0.0)),
    "reasoning_effort": Fate(obeyed=("low", "none")),
    "response_format": Fate(
        obeyed=({"type": "json_object"}, {"type": "json_schema", "json_schema": SHAPE}), accepted=({"type": "text"},)
    ),
    "seed": Fate(obeyed=(0, 7)),
    "stop": Fate(obeyed=("END", ["END", "STOP"]), accepted=([],)),
    "store": Fate(accepted=(True, False)),
    "stream_options": Fate(obeyed=({"include_usage": True},), refused=({"include_obfuscation": True},)),
    "tool_choice": Fate(accepted=("auto", "none"), refused=("required", TOOL)),
    "tools": Fate(obeyed=([TOOL],), accepted=([],), refused=([{"type": "web_search"}], [TOOL] * 129)),
    "top_logprobs": Fate(refused=(3,)),
    "verbosity": Fate(obeyed=("low",), accepted=("medium",)),
    "web_search_options": Fate(refused=({"search_context_size": "low"},)),
}
RESPONSES: dict[str, Fate] = {
    **BOTH,
    "background": Fate(obeyed=(True,), accepted=(False,)),
    "context_management": Fate(refused=([{"type": "compaction"}],)),
    "conversation": Fate(obeyed=("talk", {"id": "talk"})),
    "include": Fate(accepted=([], ["reasoning.encrypted_content"]), refused=(["message.output_text.logprobs"],)),
    "input": Fate(obeyed=("other", [{"role": "user", "content": "other"}])),
    "instructions": Fate(obeyed=("Be brief.",)),
    "max_output_tokens": Fate(obeyed=(7,)),
    "max_tool_calls": Fate(refused=(3,)),
    "previous_response_id": Fate(obeyed=("resp_x",)),
    "prompt": Fate(refused=({"id": "p"},)),
    "reasoning": Fate(obeyed=({"effort": "low"},), accepted=({}, {"summary": None}), refused=({"summary": "auto"},)),
    "store": Fate(obeyed=(False,), accepted=(True,)),
    "stream_options": Fate(accepted=({}, {"include_obfuscation": False}), refused=({"include_obfuscation": True},)),
    "text": Fate(
        obeyed=({"format": SHAPE}, {"format": {"type": "json_object"}}, {"verbosity": "high"}),
        accepted=({}, {"format": {"type": "text"}}, {"verbosity": "medium"}),
    ),
    "tool_choice": Fate(accepted=("auto", "none"), refused=("required", TOOL)),
    "tools": Fate(obeyed=([FUNCTION],), accepted=([],), refused=([{"type": "web_search"}], [FUNCTION] * 129)),
    "top_logprobs": Fate(accepted=(0,), refused=(3,)),
    "truncation": Fate(accepted=("disabled",), refused=("auto",)),
}


def chat(body: dict[str, Any]) -> list[Any]:
    """All that a chat completion comes to."""
    if "stream_options" in body:
        body = {**body, "stream": True}
    whole = {"model": "helper", "messages": [{"role": "user", "content": "hello"}], **body}
    request = ChatCreate.model_validate(whole)
    prompt = composed(said_in(request.messages))
    config = request.runtime_config(prompt.instructions)
    streams = request.stream_options is not None and request.stream_options.include_usage
    how = "stream_options" not in body and request.stream
    return [config, request.notes(), request.model, how, streams, request.output_format, prompt.parts]


def responses(body: dict[str, Any]) -> list[Any]:
    """All that a response comes to."""
    request = ResponseCreate.model_validate({"model": "helper", "input": "hello", **body})
    config = request.runtime_config(request.instructions)
    return [
        *(config, request.notes(), request.stream, request.background, request.store),
        *(request.conversation_id(), request.previous_response_id, request.entries()),
    ]


DOORS: dict[str, tuple[Callable[[dict[str, Any]], list[Any]], dict[str, Fate], list[Any]]] = {
    "chat": (chat, CHAT, [AsyncCompletions.create, AsyncCompletions.parse, AsyncCompletions.stream]),
    "responses": (responses, RESPONSES, [AsyncResponses.create]),
}


@pytest.mark.parametrize("door", DOORS)
def test_there_is_no_third_way(door: str) -> None:
    """Also not for a parameter that nobody knew when this was written."""
    of, fates, methods = DOORS[door]
    for method in methods:
        sent = inspect.signature(method).parameters.keys() - OF_CLIENTS
        assert sent - fates.keys() == set(), f"{method.__qualname__} sends what no table has"
    assert fates.keys() - inspect.signature(methods[0]).parameters.keys() == set()
    plain = of({})
    for name, fate in fates.items():
        assert any(fate), name
        for value in fate.obeyed:
            assert of({name: value}) != plain, (name, value)
        for value in (*fate.accepted, None):
            if name not in ("messages", "model", "input"):
                assert of({name: value}) == plain, (name, value)
        for value in fate.refused:
            with pytest.raises(BadField) as refused:
                of({name: value})
            assert refused.value.param.partition(".")[0] == name
    with pytest.raises(Unsupported, match="something_new"):
        of({"something_new": 1})


def test_the_document_has_each_of_them() -> None:
    part = (ROOT / "docs/gateway.md").read_text().partition("### Parameters")[2].partition("\n### ")[0]
    named = set(re.findall(r"`([a-z_]+)", part))
    assert (CHAT.keys() | RESPONSES.keys()) - named == set()


def test_what_a_turn_obeys_reaches_the_model() -> None:
    """Each setting of a request, in place of the profile's, down to the form that a provider gets."""
    sent = {
        "top_p": 0.5,
        "stop": ["END"],
        "seed": 7,
        "reasoning_effort": "low",
        "temperature": 0.25,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "parallel_tool_calls": False,
        "verbosity": "low",
    }
    [config, *_] = chat({**sent, "max_tokens": 9})
    runtime = RuntimeConfig.model_validate(config)
    profile = LlmConfig(
        model="openai/gpt-5", top_p=1, seed=1, stop=["x"], params={"verbosity": "high", "service_tier": "flex"}
    )
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    asked: dict[str, Any] = {
        "config": with_runtime(profile, runtime),
        "messages": (),
        "step": 1,
        "attempt": 1,
        "timeout_seconds": 1.0,
    }
    form = request_form(ModelRequest(**asked, tools=(*tools,)), "openai")
    assert form.items() >= {**sent, "max_tokens": 9, "service_tier": "flex"}.items()
    bare = request_form(ModelRequest(**asked, tools=()), "openai")
    assert "parallel_tool_calls" not in bare  # providers refuse it there
    assert set(REQUEST_PARAMS) <= sent.keys()
    assert (
        RuntimeConfig().needs_level,
        [RuntimeConfig.model_validate({n: v}).needs_level for n, v in sent.items()],
    ) == (
        None,
        [None if name == "temperature" else 2 for name in sent],
    )


def test_what_an_assistant_refused_is_a_text() -> None:
    said: Any = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": None, "refusal": "never"},
    ]
    assert [getattr(entry, "text", None) for entry in said_in(said)] == ["hello", "no", "never"]
    request = ResponseCreate.model_validate({"model": "m", "input": said[:2]})
    assert [getattr(entry, "text", None) for entry in request.entries()] == ["hello", "no"]
    with pytest.raises(Unsupported, match="a refusal was sent"):
        said_in([{"role": "user", "content": said[1]["content"]}])
