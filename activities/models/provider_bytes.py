"""What providers send, as bytes, before litellm reads it: mended where litellm would lose it, and overheard.

litellm drops a refusal, a content in parts and a whole body where a stream was asked for, raises for a call without a
function, and says `stop` for every finish reason that it does not know, and for none. So responses pass through here:
such events are rewritten, a body becomes the stream that was asked for, an error with status 200 gets one of its own,
and the provider's own finish reason and refusal are kept for the reader (`overheard`). Other bytes stay as they are:
an event costs one search of a pattern, some 0.5 µs. An event has at most `MOST_BYTES`.
"""

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import httpx

MOST_BYTES: Final = 4_194_304
"""Of one event of a stream, or of a body."""
_SSE: Final = "text/event-stream"
_STREAMS: Final = (_SSE, "application/json", "text/")
_FINISH = re.compile(rb'"(?:finish_reason|finishReason|stop_reason)"\s*:\s*"((?:[^"\\]|\\.){1,256})"')
_FORM = re.compile(rb'"(?:choices|candidates|message_start)"')
_ODD = re.compile(
    rb'"content"\s*:\s*\[|"(?:function|delta)"\s*:\s*null|"arguments"\s*:\s*(?:\{|null)|"refusal"\s*:\s*"[^"]'
)
_DATA = b"data:"
_THOUGHTS = frozenset({"thinking", "reasoning"})
Event: TypeAlias = dict[str, Any]
"""A provider's JSON: what is in it is anyone's."""


@dataclass(slots=True)
class Overheard:
    """What one response said itself."""

    finish: str | None = None
    """The provider's own finish reason."""
    has_form: bool = False
    """Whether it is one of the three forms, whose streams end with a finish reason."""
    refusal: list[str] = field(default_factory=list[str])
    lost_calls: int = 0
    """Calls without a function."""
    too_large: bool = False

    def read(self, block: bytes) -> bytes:
        """Whole lines of a stream, mended."""
        if not self.has_form:
            self.has_form = _FORM.search(block) is not None
        for finish in _FINISH.finditer(block):
            self.finish = _unescaped(finish[1])
        if _ODD.search(block) is None:
            return block
        return b"\n".join(map(self._line, block.split(b"\n")))

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_DATA) or _ODD.search(line) is None:
            return line
        try:
            event: Any = json.loads(line[len(_DATA) :])
        except (ValueError, RecursionError):
            return line
        choices: Any = cast("Event", event).get("choices") if isinstance(event, dict) else None
        if not isinstance(choices, list):
            return line
        for choice in cast("list[Any]", choices):
            if isinstance(choice, dict):
                self._mend(cast("Event", choice))
        return _DATA + b" " + json.dumps(event).encode()

    def _mend(self, choice: Event) -> None:
        delta: Any = choice.get("delta")
        if not isinstance(delta, dict):
            choice["delta"] = {}
            return
        said = cast("Event", delta)
        if isinstance(said.get("content"), list):
            text, thoughts = _spoken(said["content"])
            said["content"] = text
            if thoughts:
                said["reasoning_content"] = f"{said.get('reasoning_content') or ''}{thoughts}"
        if isinstance(refusal := said.get("refusal"), str):
            self.refusal.append(refusal)
        if isinstance(calls := said.get("tool_calls"), list):
            said["tool_calls"] = [call for call in cast("list[Any]", calls) if self._is_call(call)] or None

    def _is_call(self, call: Any) -> bool:
        function: Any = cast("Event", call).get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            self.lost_calls += 1
            return False
        named = cast("Event", function)
        arguments = named.get("arguments")
        named["arguments"] = "" if arguments is None else arguments if isinstance(arguments, str) else _json(arguments)
        return True


_HEARD: ContextVar[Overheard | None] = ContextVar("turnstile_overheard", default=None)


def overhear() -> Overheard:
    """Overhear the responses to the requests of this task from now on."""
    heard = Overheard()
    _HEARD.set(heard)
    return heard


def _unescaped(text: bytes) -> str:
    """What stands between the quotes of JSON."""
    try:
        return str(json.loads(b'"%b"' % text, strict=False))
    except ValueError:
        return text.decode(errors="replace")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _spoken(parts: Iterable[Any]) -> tuple[str, str]:
    """The text and the thoughts of a content in parts."""
    text, thoughts = list[str](), list[str]()
    for part in parts:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict):
            of = cast("Event", part)
            inner = of.get("thinking")
            if isinstance(inner, list):
                thoughts.append("".join(_spoken(cast("list[Any]", inner))))
            into = thoughts if of.get("type") in _THOUGHTS else text
            into += [said for said in (of.get("thinking"), of.get("text")) if isinstance(said, str)]
    return "".join(text), "".join(thoughts)


class OverhearingTransport(httpx.AsyncHTTPTransport):
    """HTTP whose responses are mended and overheard, where somebody does."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request."""
        heard = _HEARD.get()
        if heard is not None:
            request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        kind = response.headers.get("content-type", "")
        plain = response.headers.get("content-encoding", "identity") == "identity"
        if heard is None or not plain or not response.is_success or not kind.startswith(_STREAMS):
            return response
        stream = cast("httpx.AsyncByteStream", response.stream)
        chunks, first = aiter(stream), b""
        try:
            async for chunk in chunks:
                first += chunk
                if first.strip():
                    break
            if first.lstrip()[:1] not in (b"{", b"["):
                response.stream = _Stream(stream, heard, first, chunks)
                return response
            body = await _whole(first, chunks, heard)
        except BaseException:
            await stream.aclose()
            raise
        await stream.aclose()
        return _streamed(response, body, heard)


async def _whole(first: bytes, chunks: AsyncIterator[bytes], heard: Overheard) -> bytes:
    data = bytearray(first)
    async for chunk in chunks:
        data += chunk
        if len(data) > MOST_BYTES:
            heard.too_large = True
            return b""
    return bytes(data)


def _streamed(response: httpx.Response, body: bytes, heard: Overheard) -> httpx.Response:
    """The response, as the stream that was asked for; or as the error that it is."""
    status, kind = response.status_code, response.headers.get("content-type", "")
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and cast("Event", value).get("error"):
        status, kind = _status(cast("Event", value)["error"]), "application/json"
    elif (events := _events(value)) is not None:
        kind = _SSE
        body = heard.read(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))
    headers = [
        (name, text)
        for name, text in response.headers.multi_items()
        if name not in ("content-type", "content-length", "transfer-encoding")
    ]
    return httpx.Response(status, headers=[*headers, ("content-type", kind)], content=body)


def _status(error: Any) -> int:
    """The HTTP status of an error that came with another."""
    given = cast("Event", error) if isinstance(error, dict) else {}
    codes = (given.get(name) for name in ("code", "status", "status_code"))
    return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), 502)


def _events(value: Any) -> Iterable[Event] | None:
    """The events of a stream that say what a whole answer says; None if it is none of the three forms."""
    match value:
        case list() | {"candidates": _}:
            whole = cast("list[Any]", value if isinstance(value, list) else [value])
            return [cast("Event", event) for event in whole if isinstance(event, dict)]
        case {"type": "message", "content": list()}:
            return _claude_events(cast("Event", value))
        case {"choices": list()}:
            return _chat_events(cast("Event", value))
        case _:
            return None


def _chat_events(value: Event) -> Iterator[Event]:
    envelope = {name: value.get(name) for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in cast("list[Any]", value["choices"])[:1]:
        given = cast("Event", choice) if isinstance(choice, dict) else {}
        message: Any = given.get("message")
        delta = dict(cast("Event", message)) if isinstance(message, dict) else {}
        if isinstance(calls := delta.get("tool_calls"), list):
            numbered = enumerate(cast("list[Any]", calls))
            delta["tool_calls"] = [call | {"index": n} if isinstance(call, dict) else call for n, call in numbered]
        yield {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": given.get("finish_reason")}]}
    if isinstance(value.get("usage"), dict):
        yield {**envelope, "choices": [], "usage": value["usage"]}


def _claude_events(value: Event) -> Iterator[Event]:
    usage: Any = value.get("usage") or {}
    yield {"type": "message_start", "message": {**value, "content": [], "stop_reason": None}}
    for n, block in enumerate(value["content"]):
        if not isinstance(block, dict):
            continue
        given = cast("Event", block)
        yield {"type": "content_block_start", "index": n, "content_block": _emptied(given)}
        for delta in _claude_deltas(given):
            yield {"type": "content_block_delta", "index": n, "delta": delta}
        yield {"type": "content_block_stop", "index": n}
    yield {"type": "message_delta", "delta": {"stop_reason": value.get("stop_reason")}, "usage": usage}
    yield {"type": "message_stop"}


def _emptied(block: Mapping[str, Any]) -> Event:
    empty: Event = {"text": "", "thinking": "", "input": {}}
    return {name: empty.get(name, value) for name, value in block.items()}


def _claude_deltas(block: Event) -> Iterator[Event]:
    match block.get("type"):
        case "text":
            yield {"type": "text_delta", "text": block.get("text") or ""}
        case "thinking":
            yield {"type": "thinking_delta", "thinking": block.get("thinking") or ""}
            yield {"type": "signature_delta", "signature": block.get("signature") or ""}
        case "tool_use":
            yield {"type": "input_json_delta", "partial_json": _json(block.get("input") or {})}
        case _:
            pass


class _Stream(httpx.AsyncByteStream):
    """Whole lines of a stream as they come, mended."""

    def __init__(
        self, inner: httpx.AsyncByteStream, heard: Overheard, first: bytes, chunks: AsyncIterator[bytes]
    ) -> None:
        self._inner = inner
        self._heard = heard
        self._first = first
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        waiting, size = list[bytes](), 0
        async for chunk in self._all():
            end = chunk.rfind(b"\n") + 1
            if end:
                yield self._heard.read(b"".join((*waiting, chunk[:end])))
                waiting, size = [], 0
            waiting.append(chunk[end:])
            size += len(waiting[-1])
            if size > MOST_BYTES:
                self._heard.too_large = True
                return
        if size:
            yield self._heard.read(b"".join(waiting))

    async def _all(self) -> AsyncIterator[bytes]:
        yield self._first
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        """Close the response."""
        await self._inner.aclose()
