"""One stream, two readers: litellm's and ours give the same answer, or the difference is named here and is right."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.asking import LIMITS, StepRequest, question
from tests.activities.models.http_stub import HttpReply
from tests.activities.models.provider_stub import sse
from tests.activities.models.test_answers import (
    DONE,
    EVENTS,
    MODELS,
    PATHS,
    TABLE,
    USAGE,
    RawStub,
    candidates,
    chat,
    chunk,
    claude,
    model_of_stub,
    said,
)
from turnstile.activities.models import LitellmModel, ModelAccess, wire_reader

ONCE = replace(LIMITS, model_attempts=1)


def call(index: int, call_id: str | None, name: str | None, arguments: str) -> Any:
    """A piece of a tool call of OpenAI's form."""
    function = {name_: value for name_, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}


def stream(*events: bytes) -> HttpReply:
    """These bytes, each in a piece of its own."""
    return HttpReply(200, EVENTS, events)


def cut(reply: HttpReply, size: int) -> HttpReply:
    """The reply in pieces of so many bytes."""
    data = b"".join(reply.pieces)
    return replace(reply, pieces=[data[n : n + size] for n in range(0, len(data), size)])


END = chunk({}, "stop")
CORPUS: dict[str, tuple[str, HttpReply]] = {
    "a role alone, then empty deltas": ("openai", chat({}, {"content": ""}, {"content": "Hi"}, {"content": None})),
    "keep-alive comments": ("openai", stream(b": ping\n\n", chunk({"content": "Hi"}), b": ping\n\n", END, DONE)),
    "no DONE": ("openai", stream(chunk({"content": "Hi"}), END)),
    "usage in the last chunk": ("openai", stream(chunk({"content": "Hi"}), chunk({}, "stop", usage=USAGE), DONE)),
    "usage in each chunk": (
        "openai",
        stream(chunk({"content": "Hi"}, usage=USAGE), chunk({}, "stop", usage=USAGE), DONE),
    ),
    "usage in an extra chunk": (
        "openai",
        stream(
            chunk({"content": "Hi"}), END, sse({"id": "c1", "model": "gpt-4o", "choices": [], "usage": USAGE}), DONE
        ),
    ),
    "usage of nobody": ("openai", chat({"content": "Hello there"}, {"content": ", you"})),
    "a finish with the text": ("openai", stream(chunk({"content": "Hi"}, "stop"), DONE)),
    "lines that end with both": ("openai", stream(chunk({"content": "Hi"}).replace(b"\n", b"\r\n"), END, DONE)),
    "UTF-8 in halves": ("openai", cut(chat({"content": "h\u00e9 \u2713 \U0001f600"}), 3)),
    "a surrogate in halves": ("openai", chat({"content": "\ud83d"}, {"content": "\ude00"})),
    "a very long line": ("openai", chat({"content": "long " * 40_000})),
    "calls under one index": ("openai", chat(call(0, "a", "f", "{}"), call(0, "b", "g", "{}"), finish="tool_calls")),
    "a call in small pieces": (
        "openai",
        chat(call(0, "a", "f", ""), *(call(0, None, None, c) for c in '{"q": 1}'), finish="tool_calls"),
    ),
    "calls and a text that says stop": ("openai", chat({"content": "so"}, call(0, "a", "f", "{}"), finish="stop")),
    "reasoning_content": ("openai", chat({"reasoning_content": "hm"}, {"content": "Hi"})),
    "reasoning": ("openai", chat({"reasoning": "hm"}, {"content": "Hi"})),
    "reasoning_details": (
        "openai",
        chat(
            {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}]},
            {"content": "Hi"},
        ),
    ),
    "an error in the middle": (
        "openai",
        stream(chunk({"content": "Hi"}), sse({"error": {"message": "no", "code": 503, "type": "server_error"}})),
    ),
    "a content filter": ("openai", chat({"content": "Hi"}, finish="content_filter")),
    "thoughts, a text and a call": (
        "anthropic",
        claude(
            (
                {"type": "thinking", "thinking": ""},
                {"type": "thinking_delta", "thinking": "h"},
                {"type": "thinking_delta", "thinking": "m"},
                {"type": "signature_delta", "signature": "c2ln"},
            ),
            said("Hi"),
            (
                {"type": "tool_use", "id": "k", "name": "f", "input": {}},
                *({"type": "input_json_delta", "partial_json": c} for c in '{"q":1}'),
            ),
            finish="tool_use",
        ),
    ),
    "a call without arguments": (
        "anthropic",
        claude(({"type": "tool_use", "id": "k", "name": "f", "input": {}},), finish="tool_use"),
    ),
    "a thought that is redacted": (
        "anthropic",
        claude(({"type": "redacted_thinking", "data": "x"},), said("Hi")),
    ),
    "an error of Anthropic's in the middle": (
        "anthropic",
        stream(
            *claude(said("Hi"), finish=None).pieces,
            sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"),
        ),
    ),
    "thoughts, a text and a signed call of Gemini's": (
        "gemini",
        stream(
            *map(
                sse,
                candidates(
                    {"text": "hm", "thought": True},
                    {"text": "Hi", "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "f", "args": {"q": 1}}, "thoughtSignature": "c2lnMg=="},
                ),
            )
        ),
    ),
    "an error of Gemini's in the middle": (
        "gemini",
        stream(*map(sse, candidates({"text": "Hi"}, finish=None)[:1]), sse({"error": {"code": 503, "message": "no"}})),
    ),
}
TWO = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def choice(index: int, text: str, finish: str | None = None) -> bytes:
    """An event of one of several choices."""
    return sse({**TWO, "choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]})


DIFFERENT: dict[str, tuple[str, HttpReply, str]] = {
    "several choices: the first is the answer, not all mixed": (
        "openai",
        stream(choice(0, "He"), choice(1, "Ad"), choice(0, "y", "stop"), choice(1, "ieu", "stop"), DONE),
        "Hey",
    ),
    "the arguments of Anthropic's call in its first event are kept": (
        "anthropic",
        claude(({"type": "tool_use", "id": "k", "name": "f", "input": {"q": 1}},), finish="tool_use"),
        '{"q": 1}',
    ),
}


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[RawStub]:
    """One stub for the module, whose replies each case sets."""
    async with RawStub() as running:
        yield running


@pytest.fixture(scope="module")
async def models(stub: RawStub, key_file: Path) -> AsyncIterator[tuple[LitellmModel, LitellmModel]]:
    """A model of litellm's reader, and one of ours."""
    litellm, own = (model_of_stub(stub, key_file, reader) for reader in ("litellm", "bytes"))
    yield litellm, own
    await litellm.close()
    await own.close()


def outcome(asked: StepRequest) -> Any:
    """All that an answer is, or its error; not the ids that readers make up."""
    if asked.error is not None:
        return asked.error.code, asked.error.retryable, asked.attempts.draft and asked.attempts.draft.text
    answer = asked.said()
    calls = [(each.name, each.arguments_text or "{}") for each in answer.calls]
    kept = None if answer.kept is None else answer.kept.model_dump(mode="json")
    end = (answer.finish_reason, answer.usage, answer.usage_kind, answer.response_cost, answer.refusal)
    return answer.text, answer.reasoning, calls, kept, end


async def test_both_readers_give_the_same_answer(stub: RawStub, models: tuple[LitellmModel, LitellmModel]) -> None:
    """The corpus, and each reply of the table of answers."""
    cases = CORPUS | {f"{prefix}: {name}": (prefix, case.reply) for prefix, name, case in TABLE}
    different = dict[str, Any]()
    for name, (prefix, reply) in cases.items():
        stub.replies = [reply]
        first, second = [outcome(await question(model, MODELS[prefix], limits=ONCE)) for model in models]
        if first != second:
            different[name] = {"litellm": first, "bytes": second}
    assert different == {}


@pytest.mark.parametrize("name", DIFFERENT)
async def test_where_they_differ_ours_is_right(
    stub: RawStub, models: tuple[LitellmModel, LitellmModel], name: str
) -> None:
    prefix, reply, right = DIFFERENT[name]
    stub.replies = [reply]
    first, second = [(await question(model, MODELS[prefix], limits=ONCE)).said() for model in models]
    assert right in (second.text, *(each.arguments_text for each in second.calls))
    assert right not in (first.text, *(each.arguments_text for each in first.calls))


async def test_what_has_come_is_read_without_a_pause(
    stub: RawStub, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pause for each chunk, a stream of 500 chunks a second would fall ever further behind."""
    pauses, texts = 0, [f"w{number} " for number in range(400)]
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += seconds == 0.05
        await sleep(seconds)

    monkeypatch.setattr(f"{wire_reader.__name__}.asyncio.sleep", pause)
    stub.replies = [replace(chat(*({"content": text} for text in texts)), pause_seconds=0.002)]
    access = ModelAccess({"openai": key_file}, {"openai": f"{stub.url}{PATHS['openai']}"})
    model = LitellmModel(access, gather_seconds=0.05)
    try:
        answer = (await question(model, MODELS["openai"], limits=ONCE)).said()
    finally:
        await model.close()
    assert answer.text == "".join(texts)
    assert 0 < pauses < len(texts) / 4
