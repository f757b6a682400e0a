"""The scripted model: deterministic answers without a key or a network, for demos, tests and benchmarks.

It implements `turnstile.runtime.ports.Model` for ids `scripted/{name}` (or just the name). It keeps no state between
requests: equal requests stream equal events. It takes as long as the delays of its script.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from itertools import pairwise

from turnstile.activities.models.script import Script, ScriptLine, closest_first
from turnstile.rules.model_files import file_tokens
from turnstile.rules.text import PENDING
from turnstile.runtime.ports import (
    ContentDelta,
    ModelDone,
    ModelEvent,
    ModelFile,
    ModelRequest,
    ReasoningDelta,
    TokenCount,
    ToolCallDelta,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import render

PREFIX = "scripted"


class ScriptedModel:
    """A `Model` that answers from scripts."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self._scripts = dict(scripts)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yields the script's events, `ModelDone` last; raises the script's `ModelError`, or `model_unknown`."""
        answer = self._script(request.config.model)(request)
        events = _play(answer, request) if isinstance(answer, ScriptLine) else answer
        try:
            async for event in events:
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def count(self, request: ModelRequest) -> TokenCount:
        """In words, as its usage is counted."""
        return TokenCount(_words(request), exact=True)

    async def check(self, model: str) -> None:
        """Raises `ModelError` (`model_unknown`), which lists the scripts, if `model` is none of them."""
        self._script(model)

    async def close(self) -> None:
        """Do nothing."""

    def _script(self, model: str) -> Script:
        name = model.removeprefix(f"{PREFIX}/")
        if name in self._scripts:
            return self._scripts[name]
        known = ", ".join(closest_first(name, sorted(self._scripts))) or "none"
        raise ModelError("model_unknown", f"no scripted model {name!r}; there are: {known}", retryable=False)


async def _play(line: ScriptLine, request: ModelRequest) -> AsyncIterator[ModelEvent]:
    last = {message.role: message.content for message in request.messages}
    results = [message.content for message in request.messages if message.role == "tool" and message.content != PENDING]
    messages = [message.content for message in request.messages if message.role == "user"]
    filled = {
        "instruction": last.get("user", ""),
        "tool_result": results[-1] if results else "",
        "earlier": "; ".join(messages[:-1]) or "nothing",
        "files": "; ".join(_seen(request)) or "nothing",
    }
    pieces = list(_pieces(line, filled))
    for piece in pieces[: line.error.after_chunks] if line.error else pieces:
        await _pause(line.delay_seconds)
        yield piece
    if line.error is not None:
        await _pause(line.delay_seconds)
        raise ModelError(
            line.error.code,
            line.error.message,
            retryable=line.error.retryable,
            retry_after=line.error.retry_after_seconds,
        )
    if not pieces:
        await _pause(line.delay_seconds)
    yield ModelDone(
        finish_reason=line.finish_reason or ("tool_calls" if line.tool_calls else "stop"),
        usage=_count(request, pieces) if line.usage is None else line.usage,
        response_cost=line.response_cost,
        usage_kind="exact",
    )


def _seen(request: ModelRequest) -> Iterator[str]:
    """What it was shown of each file that the messages name: names, kinds, sizes, and of a text what is in it."""
    for message in request.messages:
        for part in message.files:
            if (file := request.files.get(part.artifact_id)) is None:
                yield f"{part.filename} (by name)"
            elif file.kind == "image":
                yield f"{part.filename} ({file.mime}, {file.width}x{file.height}, {_bytes_of(file)} bytes)"
            elif file.kind == "pdf":
                yield f"{part.filename} ({file.mime}, {file.pages} pages, {_bytes_of(file)} bytes)"
            else:
                yield f"{file.kind}: {file.text}"


def _bytes_of(file: ModelFile) -> int:
    return len(base64.b64decode(file.url.partition(",")[2]))


async def _pause(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


def _pieces(line: ScriptLine, filled: dict[str, str]) -> Iterator[ContentDelta | ReasoningDelta | ToolCallDelta]:
    if line.reasoning:
        yield ReasoningDelta(line.reasoning)
    for part in _split(render(line.text or "", filled), line.chunks):
        yield ContentDelta(part)
    for index, call in enumerate(line.tool_calls):
        arguments = call.arguments if isinstance(call.arguments, str) else _fill(call.arguments, filled["instruction"])
        yield ToolCallDelta(index, call.id or f"call_{index}", call.name, arguments)


def _fill(arguments: JsonObject, instruction: str) -> str:
    """The arguments as JSON text, `{instruction}` replaced inside its strings."""
    return render(json.dumps(arguments, ensure_ascii=False), {"instruction": json.dumps(instruction)[1:-1]})


def _split(text: str, parts: int) -> list[str]:
    """`text` in at most `parts` pieces of nearly equal length, none of them empty."""
    parts = max(1, min(parts, len(text)))
    ends = [len(text) * part // parts for part in range(parts + 1)]
    return [text[start:end] for start, end in pairwise(ends) if end > start]


def _count(request: ModelRequest, pieces: list[ContentDelta | ReasoningDelta | ToolCallDelta]) -> JsonObject:
    """Usage, counted in words, so that it is the same every time."""
    prompt = _words(request)
    text = "".join(piece.text for piece in pieces if isinstance(piece, ContentDelta))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))
    arguments = [piece.arguments for piece in pieces if isinstance(piece, ToolCallDelta)]
    completion = sum(len(text_part.split()) for text_part in (text, reasoning, *arguments))
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _words(request: ModelRequest) -> int:
    words = sum(len(message.content.split()) for message in request.messages)
    return words + file_tokens(request.messages, request.files, request.config.model)
