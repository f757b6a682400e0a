"""What models say that is no answer, or one in another shape: each kind, in each form that a provider speaks.

None of them is a success without an answer (docs/models.md, "Answers that are none").
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.asking import question
from tests.activities.models.http_stub import HttpReply, HttpRequest, HttpStub
from tests.activities.models.provider_stub import sse
from turnstile.activities.models import LitellmModel, ModelAccess

EVENTS = {"content-type": "text/event-stream"}
BODY = {"content-type": "application/json"}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
DONE = sse("[DONE]")


class RawStub(HttpStub):
    """Answers each request by the next of these replies, the last one further on."""

    def __init__(self, *replies: HttpReply) -> None:
        super().__init__()
        self.replies = list(replies)
        self.count = 0

    async def reply(self, request: HttpRequest) -> HttpReply:
        self.count += 1
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def chunk(delta: Any, finish: str | None = None, **more: Any) -> bytes:
    """An event of OpenAI's form."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **more})


def chat(*deltas: Any, finish: str | None = "stop") -> HttpReply:
    """A stream of OpenAI's form."""
    end = [chunk({}, finish)] if finish is not None else []
    return HttpReply(200, EVENTS, [chunk({"role": "assistant"}), *map(chunk, deltas), *end, DONE])


def body(value: Any, headers: dict[str, str] = BODY, *, pieces: int = 3) -> HttpReply:
    """A whole body, in pieces."""
    data = json.dumps(value).encode()
    size = -(-len(data) // pieces)
    return HttpReply(200, headers, [data[n : n + size] for n in range(0, len(data), size)])


def whole_chat(message: Any, finish: str = "stop") -> Any:
    """An answer of OpenAI's form that is no stream."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


def claude(*blocks: Any, finish: str | None = "end_turn") -> HttpReply:
    """A stream of Anthropic's form."""
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "c",
        "stop_reason": None,
    }
    events: list[Any] = [{"type": "message_start", "message": {**message, "usage": {"input_tokens": 11}}}]
    for n, (start, *deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": n, "content_block": start})
        events += [{"type": "content_block_delta", "index": n, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": n})
    if finish is not None:
        delta = {"stop_reason": finish, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
        events.append({"type": "message_stop"})
    return HttpReply(200, EVENTS, [sse(event, event["type"]) for event in events])


def said(text: str) -> Any:
    """A block of text of Anthropic's form."""
    return {"type": "text", "text": ""}, {"type": "text_delta", "text": text}


def gemini(*parts: Any, finish: str | None = "STOP") -> HttpReply:
    """A stream of Gemini's form."""
    return HttpReply(200, EVENTS, [sse(event) for event in candidates(*parts, finish=finish)])


def candidates(*parts: Any, finish: str | None = "STOP") -> list[Any]:
    """The events of Gemini's form."""
    events: list[Any] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts
    ]
    last: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": ""}]}, "index": 0}
    last |= {} if finish is None else {"finishReason": finish}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18}
    return [*events, {"candidates": [last], "usageMetadata": usage}]


@dataclass(frozen=True)
class Case:
    """A reply, and what is right: the text and why it is cut off, or the code after so many attempts."""

    reply: HttpReply
    text: str | None = None
    cut: str | None = None
    call: tuple[str, Any] | None = None
    code: str | None = None
    attempts: int = 1
    quotes: str | None = None


def fails(reply: HttpReply, code: str, attempts: int = 3, quotes: str | None = None) -> Case:
    """A case that fails."""
    return Case(reply, code=code, attempts=attempts, quotes=quotes)


def _call(name: str | None = "f", arguments: Any = '{"q": 1}', **more: Any) -> Any:
    return {
        "tool_calls": [
            {"index": 0, "id": "k", "type": "function", **more} | {"function": {"name": name, "arguments": arguments}}
        ]
    }


_NO_FUNCTION = {"tool_calls": [{"index": 0, "id": "k", "type": "function", "function": None}]}
_TWO_PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
_GEMINI_BODY = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hello"}]}, "finishReason": "STOP"}]}
_CALLED = {"name": "f", "args": {"q": 1}}

CHAT: dict[str, Case] = {
    "nothing": fails(chat(), "empty_answer", 2),
    "spaces": fails(chat({"content": " \n"}), "empty_answer", 2),
    "only reasoning": fails(chat({"reasoning_content": "hm"}), "empty_answer", 2),
    "reasoning up to the limit": fails(chat({"reasoning_content": "hm"}, finish="length"), "empty_answer", 1),
    "malformed call": fails(chat(finish="malformed_function_call"), "empty_answer", 2),
    "malformed call after a text": fails(
        chat({"content": "I call"}, finish="malformed_function_call"), "model_response_invalid"
    ),
    "calls that are none": fails(chat({"content": "I call"}, finish="tool_calls"), "model_response_invalid"),
    "call without a function": fails(chat(_NO_FUNCTION, finish="tool_calls"), "model_response_invalid"),
    "call without a function after a text": fails(
        chat({"content": "I call"}, _NO_FUNCTION, finish="stop"), "model_response_invalid"
    ),
    "call without a name": fails(chat({"content": "x"}, _call(None), finish="tool_calls"), "model_response_invalid"),
    "arguments as an object": Case(chat(_call(arguments={"q": 1}), finish="tool_calls"), call=("f", {"q": 1})),
    "arguments as null": Case(chat(_call(arguments=None), finish="tool_calls"), call=("f", {})),
    "calls as null": Case(chat({"content": "Hello", "tool_calls": None}), "Hello"),
    "refusal": fails(chat({"refusal": "I can"}, {"refusal": "not."}), "content_filtered", 1, "I cannot."),
    "unknown end": Case(chat({"content": "Hel"}, finish="abort"), "Hel", cut="abort"),
    "odd end": Case(chat({"content": "Hel"}, finish="a\tb" + "c" * 200), "Hel", cut="a_b" + "c" * 61),
    "parts": Case(chat({"content": _TWO_PARTS}, {"content": "!"}), "Hello!"),
    "parts with thoughts": Case(
        chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, *_TWO_PARTS]}), "Hello"
    ),
    "a delta of null": Case(
        HttpReply(200, EVENTS, [chunk({"content": "Hi"}), chunk(None), chunk({}, "stop"), DONE]), "Hi"
    ),
    "no end": fails(chat({"content": "Hel"}, finish=None), "model_stream_broken"),
    "nothing at all": fails(HttpReply(200, EVENTS, []), "model_stream_broken"),
    "a page": fails(HttpReply(200, {"content-type": "text/html"}, [b"<html>"]), "model_stream_broken"),
    "a body": Case(body(whole_chat({"content": "Hello"})), "Hello"),
    "a body that says it is a stream": Case(body(whole_chat({"content": "Hello"}), EVENTS), "Hello"),
    "a body of parts": Case(body(whole_chat({"content": _TWO_PARTS})), "Hello"),
    "a body with a call": Case(
        body(whole_chat({"content": None, "tool_calls": [_call()["tool_calls"][0] | {"index": 0}]}, "tool_calls")),
        call=("f", {"q": 1}),
    ),
    "a body of nothing": fails(body(whole_chat({"content": ""})), "empty_answer", 2),
    "a body that refuses": fails(body(whole_chat({"content": None, "refusal": "No."})), "content_filtered", 1, "No."),
    "a body that is an error": fails(body({"error": {"message": "no", "code": 400}}), "model_bad_request", 1),
    "a body that is an error without a code": fails(body({"error": {"message": "no"}}), "model_server_error"),
    "a stream that says it is a body": Case(
        HttpReply(200, BODY, [chunk({"content": "Hello"}), chunk({}, "stop"), DONE]), "Hello"
    ),
    "no line end at the end": Case(
        HttpReply(200, EVENTS, [chunk({"content": "Hello"}), chunk({}, "stop").rstrip(), b"\n\ndata: [DONE]"]), "Hello"
    ),
}
CLAUDE: dict[str, Case] = {
    "nothing": fails(claude(), "empty_answer", 2),
    "only reasoning": fails(
        claude(({"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})), "empty_answer", 2
    ),
    "refusal": fails(claude(said("No"), finish="refusal"), "content_filtered", 1),
    "unknown end": Case(claude(said("Hel"), finish="weird"), "Hel", cut="weird"),
    "the context is full": Case(claude(said("Hel"), finish="model_context_window_exceeded"), "Hel", cut="length"),
    "calls that are none": fails(claude(said("I call"), finish="tool_use"), "model_response_invalid"),
    "no end": fails(claude(said("Hel"), finish=None), "model_stream_broken"),
    "a body": Case(
        body(
            {
                "id": "m1",
                "type": "message",
                "role": "assistant",
                "model": "c",
                "stop_reason": "tool_use",
                "content": [
                    {"type": "text", "text": "Hello"},
                    {"type": "tool_use", "id": "k", "name": "f", "input": {"q": 1}},
                ],
                "usage": {"input_tokens": 11, "output_tokens": 7},
            }
        ),
        "Hello",
        call=("f", {"q": 1}),
    ),
    "a body that is an error": fails(
        body({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}), "model_overloaded"
    ),
}
GEMINI: dict[str, Case] = {
    "nothing": fails(gemini(), "empty_answer", 2),
    "only reasoning": fails(gemini({"text": "hm", "thought": True}), "empty_answer", 2),
    "malformed call": fails(gemini(finish="MALFORMED_FUNCTION_CALL"), "empty_answer", 2),
    "malformed call after a text": fails(
        gemini({"text": "I call"}, finish="MALFORMED_FUNCTION_CALL"), "model_response_invalid"
    ),
    "unknown end": Case(gemini({"text": "Hel"}, finish="WEIRD"), "Hel", cut="WEIRD"),
    "filtered": fails(gemini({"text": "Hel"}, finish="SAFETY"), "content_filtered", 1),
    "no end": fails(gemini({"text": "Hel"}, finish=None), "model_stream_broken"),
    "a body": Case(body(_GEMINI_BODY), "Hello"),
    "a list of events": Case(body(candidates({"text": "Hel"}, {"text": "lo"})), "Hello"),
    "a call": Case(gemini({"functionCall": _CALLED}), call=("f", {"q": 1})),
}
TABLE = [
    *((prefix, name, case) for prefix in ("openai", "hosted_vllm") for name, case in CHAT.items()),
    *(("anthropic", name, case) for name, case in CLAUDE.items()),
    *(("gemini", name, case) for name, case in GEMINI.items()),
]
MODELS = {
    "openai": "openai/gpt-4o",
    "hosted_vllm": "hosted_vllm/m",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}
PATHS = {"openai": "/v1", "hosted_vllm": "/v1", "anthropic": "", "gemini": "/v1beta"}


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[RawStub]:
    """One stub for the module, whose replies each test sets."""
    async with RawStub() as running:
        yield running


def model_of_stub(stub: RawStub, key_file: Path, reader: str) -> LitellmModel:
    """A model that reaches the stub in each form."""
    bases = {prefix: f"{stub.url}{path}" for prefix, path in PATHS.items()}
    return LitellmModel(ModelAccess(dict.fromkeys(PATHS, key_file), bases), reads_bytes=reader == "bytes")


@pytest.fixture(scope="module")
async def model(stub: RawStub, key_file: Path, reader: str) -> AsyncIterator[LitellmModel]:
    """One model for the module, of each reader."""
    model = model_of_stub(stub, key_file, reader)
    yield model
    await model.close()


@pytest.mark.parametrize(("prefix", "name", "case"), TABLE, ids=[f"{prefix}-{name}" for prefix, name, _ in TABLE])
async def test_no_answer_is_no_success_and_an_answer_in_another_shape_is_read(
    stub: RawStub, model: LitellmModel, prefix: str, name: str, case: Case
) -> None:
    stub.replies, stub.count = [case.reply], 0
    result = await question(model, MODELS[prefix])
    if case.code is not None:
        error = result.failed()
        assert (error.code, stub.count) == (case.code, case.attempts)
        assert result.codes() == [case.code] * case.attempts
        assert case.quotes is None or error.provider_says == case.quotes
        return
    answer = result.said()
    assert (stub.count, answer.truncated) == (1, case.cut)
    assert answer.text == (case.text or "")
    calls: Sequence[tuple[str, Any]] = [(call.name, json.loads(call.arguments_text or "{}")) for call in answer.calls]
    assert calls == ([] if case.call is None else [case.call])


async def test_the_second_try_may_be_the_answer(stub: RawStub, model: LitellmModel) -> None:
    stub.replies = [chat(), chat({"content": "Hello"})]
    result = await question(model, MODELS["openai"])
    assert (result.said().text, result.codes()) == ("Hello", ["empty_answer", None])
