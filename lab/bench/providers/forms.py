"""What the provider of the measurement streams: the three wire forms, with deltas of several shapes. Pure.

Each piece of text begins with the moment at which it was sent (nanoseconds since 1970), so that whoever hears it on the
same machine knows how late it is. Pieces are filled into prepared bytes, so that the provider costs little itself.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["openai", "anthropic", "gemini"]
Shape = Literal["plain", "several", "reasoning", "calls"]
FORMS: tuple[Form, ...] = ("openai", "anthropic", "gemini")
MODELS: dict[Form, str] = {
    "openai": "openai/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-flash",
}
PATHS: dict[Form, str] = {"openai": "/v1", "anthropic": "", "gemini": "/v1beta"}
"""What comes behind the provider's address in `[model.api_bases]`."""
URLS: dict[Form, str] = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
}
KEY = "bench"
_HOLE = "@@"
_WORDS = "word word word word"
"""What makes a chunk of `several` five tokens."""
_ASKED = re.compile(rb"stream (\d+) chunks at (\d+) a second, (plain|several|reasoning|calls)")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the prompt asks of the provider."""

    chunks: int
    rate: int
    shape: Shape = "plain"

    def prompt(self) -> str:
        """The prompt that asks for it."""
        return f"stream {self.chunks} chunks at {self.rate} a second, {self.shape}"


def asked(body: bytes) -> Asked:
    """What the last prompt of a request asks for; one chunk if it asks for nothing."""
    found = _ASKED.findall(body)
    return Asked(int(found[-1][0]), int(found[-1][1]), found[-1][2].decode()) if found else Asked(1, 50)


def body_of(form: Form, prompt: str) -> dict[str, Any]:
    """A request as a program without a library writes it."""
    messages = [{"role": "user", "content": prompt}]
    match form:
        case "openai":
            return {"model": "gpt-4o", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        case "anthropic":
            return {"model": "claude-sonnet-4-5", "messages": messages, "stream": True, "max_tokens": 4096}
        case "gemini":
            return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}


def form_of(path: str) -> Form:
    """The form that is spoken at a path."""
    return "anthropic" if path.startswith("/v1/messages") else "gemini" if "Generate" in path else "openai"


def events(form: Form, what: Asked, stamp: Callable[[], int]) -> Iterator[bytes]:
    """The events of an answer, one for each tick of the pace; the last ones, which come at once, are one item."""
    first, template, last = _SPOKEN[form](what)
    before, after = template
    yield first + before + b"%d" % stamp() + after
    for _ in range(what.chunks - 1):
        yield before + b"%d" % stamp() + after
    yield last


def _sse(event: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def _holed(event: bytes) -> tuple[bytes, bytes]:
    before, _, after = event.partition(_HOLE.encode())
    return before, after


def _text(what: Asked) -> str:
    return f"{_HOLE} {_WORDS} " if what.shape == "several" else f"{_HOLE} "


def _openai(what: Asked) -> tuple[bytes, tuple[bytes, bytes], bytes]:
    head = {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion.chunk",
        "created": 1_741_569_952,
        "model": "gpt-4o-2024-08-06",
        "service_tier": "default",
        "system_fingerprint": "fp_44709d6fcb",
    }

    def chunk(delta: Any, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _sse({**head, "choices": [choice], "usage": None})

    first, finish = chunk({"role": "assistant", "content": "", "refusal": None}), "stop"
    delta: dict[str, Any] = {"content": _text(what)}
    if what.shape == "reasoning":
        delta = {"reasoning_content": _text(what)}
    elif what.shape == "calls":
        function = {"name": "bench_later", "arguments": '{"q": "'}
        first += chunk({"tool_calls": [{"index": 0, "id": "call_abc", "type": "function", "function": function}]})
        delta = {"tool_calls": [{"index": 0, "function": {"arguments": _text(what)}}]}
    end = chunk({"content": "done"}) if what.shape == "reasoning" else b""
    if what.shape == "calls":
        end, finish = chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]}), "tool_calls"
    usage = {"prompt_tokens": 11, "completion_tokens": what.chunks, "total_tokens": 11 + what.chunks}
    last = end + chunk({}, finish) + _sse({**head, "choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    return first, _holed(chunk(delta)), last


def _anthropic(what: Asked) -> tuple[bytes, tuple[bytes, bytes], bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return _sse({"type": kind, **fields}, kind)

    def begun(index: int, block: Any) -> bytes:
        return event("content_block_start", index=index, content_block=block)

    message: dict[str, Any] = {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 1},
    }
    block: Any = {"type": "text", "text": ""}
    delta: Any = {"type": "text_delta", "text": _text(what)}
    end, finish = b"", "end_turn"
    if what.shape == "reasoning":
        block, delta = {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": _text(what)}
        end = event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "c2ln"})
        end += event("content_block_stop", index=0) + begun(1, {"type": "text", "text": ""})
        end += event("content_block_delta", index=1, delta={"type": "text_delta", "text": "done"})
    elif what.shape == "calls":
        block = {"type": "tool_use", "id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "name": "bench_later", "input": {}}
        delta, finish = {"type": "input_json_delta", "partial_json": _text(what)}, "tool_use"
        end = event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '"}'})
    first = event("message_start", message=message) + begun(0, block) + event("ping")
    if what.shape == "calls":
        opened = {"type": "input_json_delta", "partial_json": '{"q": "'}
        first += event("content_block_delta", index=0, delta=opened)
    end += event("content_block_stop", index=0)
    end += event(
        "message_delta", delta={"stop_reason": finish, "stop_sequence": None}, usage={"output_tokens": what.chunks}
    )
    return first, _holed(event("content_block_delta", index=0, delta=delta)), end + event("message_stop")


def _gemini(what: Asked) -> tuple[bytes, tuple[bytes, bytes], bytes]:
    usage = {"promptTokenCount": 11, "candidatesTokenCount": what.chunks, "totalTokenCount": 11 + what.chunks}

    def candidate(part: Any, **more: Any) -> bytes:
        content = {"parts": [part], "role": "model"}
        return _sse(
            {
                "candidates": [{"content": content, **more, "index": 0}],
                "usageMetadata": usage,
                "modelVersion": "gemini-2.5-flash",
                "responseId": "mIZJaL2OH7aFkdUP9pLQ4AQ",
            }
        )

    part: Any = {"text": _text(what)}
    end: Any = {"text": "done"}
    if what.shape == "reasoning":
        part["thought"] = True
    elif what.shape == "calls":
        part = {"functionCall": {"name": "bench_later", "args": {"q": _text(what)}}}
        end = {"text": ""}
    return b"", _holed(candidate(part)), candidate(end, finishReason="STOP")


_SPOKEN: dict[Form, Callable[[Asked], tuple[bytes, tuple[bytes, bytes], bytes]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
