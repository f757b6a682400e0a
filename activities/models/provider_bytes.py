"""What providers send, as bytes, before litellm reads it: mended where litellm would lose it, and overheard.

litellm drops a refusal, a content in parts and a whole body where a stream was asked for, raises for a call without a
function, and says `stop` for every finish reason that it does not know, and for none. So responses pass through here:
such events are rewritten, a body becomes the stream that was asked for, an error with status 200 gets one of its own,
and the provider's own finish reason, refusal and reasoning details are kept for the reader
(`overhear`). Other bytes stay as they are. An event costs some 10 µs, a fiftieth of what litellm takes for it, and has
at most `MOST_BYTES`.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import httpx

MOST_BYTES: Final = 4_194_304
"""Of one event of a stream, or of a body."""
MOST_ERROR_BYTES: Final = 4_096
_SSE: Final = "text/event-stream"
_STREAMS: Final = (_SSE, "application/json", "text/")
_DATA = b"data:"
_OF_EVENT = {"id": str, "model": str, "object": str, "created": int, "system_fingerprint": str, "usage": dict}
_NEUTRAL = {"id": "", "model": "", "object": "chat.completion.chunk", "created": 0}
_OF_CHOICE = {"index": int, "finish_reason": str, "logprobs": dict}
_OF_DELTA = {"role": str, "content": str, "reasoning_content": str, "refusal": str, "tool_calls": list}
_OF_CALL = {"index": int, "id": str, "type": str}
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
    details: list[Event] = field(default_factory=list["Event"])
    """OpenRouter's pieces of reasoning: litellm drops an event that has nothing else."""
    too_large: bool = False
    stream: "ProviderStream | None" = None
    """The stream of events, if the response is one."""
    before_send: Callable[[], None] | None = None
    """Called just before the request is sent, which it may refuse."""
    responses: list[httpx.AsyncByteStream] = field(default_factory=list[httpx.AsyncByteStream])
    """The bodies of what came, also of what was no stream of events."""

    async def aclose(self) -> None:
        """Close the responses: litellm closes none that it has not read to its end."""
        for body in self.responses:
            with contextlib.suppress(httpx.HTTPError):
                await body.aclose()

    def read(self, block: bytes) -> bytes:
        """Whole lines of a stream, mended."""
        return b"\n".join(map(self._line, block.split(b"\n")))

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_DATA) or line[len(_DATA) :].strip() == b"[DONE]":
            return line
        try:
            event: Any = json.loads(line[len(_DATA) :])
        except (ValueError, RecursionError):
            return line[:MOST_ERROR_BYTES]  # it is an error either way, and litellm quotes it
        changed = self.mend(cast("Event", event)) if isinstance(event, dict) else False
        return _DATA + b" " + json.dumps(event).encode() if changed else line

    def mend(self, event: Event) -> bool:
        """Mend an event, and know what it says; whether it was changed."""
        match event:
            case {"choices": list()}:
                self.has_form = True
                firsts = [_fitting(event, _OF_EVENT)]
                choices = cast("list[Any]", event["choices"])[:1]
                return any([*firsts, *map(self._mend_choice, choices)])
            case {"candidates": list()}:
                self.has_form = True
                for candidate in cast("list[Any]", event["candidates"])[:1]:
                    self._finish(candidate, "finishReason")
                return False
            case {"type": "message_start"}:
                self.has_form = True
                return False
            case {"type": "message_delta"}:
                self._finish(event.get("delta"), "stop_reason")
                return False
            case {"error": _} if len(json.dumps(event["error"])) > MOST_ERROR_BYTES:
                event["error"] = _short_error(event["error"])
                return True
            case _:
                return False

    def _finish(self, of: Any, name: str) -> None:
        reason: Any = cast("Event", of).get(name) if isinstance(of, dict) else None
        if isinstance(reason, str) and reason:
            self.finish = reason

    def _mend_choice(self, choice: Any) -> bool:
        if not isinstance(choice, dict):
            return False
        fields = cast("Event", choice)
        self._finish(fields, "finish_reason")
        changed = _fitting(fields, _OF_CHOICE)
        if not isinstance(fields.get("delta"), dict):
            fields["delta"] = {}
            return True
        return self._mend_delta(fields["delta"]) or changed

    def _mend_delta(self, delta: Event) -> bool:
        changed = False
        if isinstance(content := delta.get("content"), list):
            text, thoughts = _spoken(cast("list[Any]", content))
            delta["content"], changed = text, True
            if thoughts:
                delta["reasoning_content"] = f"{delta.get('reasoning_content') or ''}{thoughts}"
        if isinstance(refusal := delta.get("refusal"), str):
            self.refusal.append(refusal)
        changed = _fitting(delta, _OF_DELTA) or changed
        if isinstance(details := delta.get("reasoning_details"), list):
            self.details += [cast("Event", each) for each in cast("list[Any]", details) if isinstance(each, dict)]
        if calls := delta.get("tool_calls"):
            kept = [call for call in cast("list[Any]", calls) if self._is_call(call)]
            delta["tool_calls"], changed = kept or None, True
        return changed

    def _is_call(self, call: Any) -> bool:
        function: Any = cast("Event", call).get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            self.lost_calls += 1
            return False
        _fitting(cast("Event", call), _OF_CALL)
        named = cast("Event", function)
        arguments = named.get("arguments")
        named["arguments"] = "" if arguments is None else arguments if isinstance(arguments, str) else _json(arguments)
        _fitting(named, {"name": str})
        return True


def _fitting(of: Event, kinds: Mapping[str, type]) -> bool:
    """Take out fields that are of another type than a reader expects; whether there were some."""
    odd = [
        name
        for name, kind in kinds.items()
        if (value := of.get(name)) is not None and (not isinstance(value, kind) or isinstance(value, bool))
    ]
    for name in odd:
        of[name] = _NEUTRAL.get(name) if kinds is _OF_EVENT else None
    return bool(odd)


_HEARD: ContextVar[Overheard | None] = ContextVar("turnstile_overheard", default=None)


def overhear(before_send: Callable[[], None] | None = None) -> Overheard:
    """Overhear the responses to the requests of this task from now on."""
    heard = Overheard(before_send=before_send)
    _HEARD.set(heard)
    return heard


def _short_error(error: Any) -> Event:
    fields = cast("Event", error) if isinstance(error, dict) else {"message": error}
    kept = {name: value for name, value in fields.items() if isinstance(value, int | str | None)}
    return {name: value[:1_000] if isinstance(value, str) else value for name, value in kept.items()}


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
            into += [text for text in (of.get("thinking"), of.get("text")) if isinstance(text, str)]
    return "".join(text), "".join(thoughts)


async def send_overheard(
    request: httpx.Request, send: Callable[[httpx.Request], Awaitable[httpx.Response]]
) -> httpx.Response:
    """Send the request; the response is mended and overheard, where somebody does."""
    heard = _HEARD.get()
    if heard is not None:
        request.headers["accept-encoding"] = "identity"
        if heard.before_send is not None:
            heard.before_send()
    response = await send(request)
    if heard is not None:
        heard.responses.append(cast("httpx.AsyncByteStream", response.stream))
    kind = response.headers.get("content-type", "")
    plain = response.headers.get("content-encoding", "identity") == "identity"
    if heard is not None and plain and response.is_error:
        return await _shortened(response)
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
            if heard.stream is not None:
                await heard.stream.aclose()
            response.stream = heard.stream = ProviderStream(stream, heard, first, chunks)
            return response
        body = await _whole(first, chunks, heard)
    except BaseException:
        await stream.aclose()
        raise
    await stream.aclose()
    return _streamed(response, body, heard)


async def _shortened(response: httpx.Response) -> httpx.Response:
    """The error with the begin of its body: litellm searches it for secrets, 5 ms for each kB."""
    stream, body = cast("httpx.AsyncByteStream", response.stream), b""
    try:
        async for chunk in stream:
            body += chunk
            if len(body) > MOST_ERROR_BYTES:
                break
    finally:
        await stream.aclose()
    return httpx.Response(response.status_code, headers=_headers(response), content=body[:MOST_ERROR_BYTES])


def _headers(response: httpx.Response) -> list[tuple[str, str]]:
    """All but those of how its body is sent."""
    dropped = ("content-length", "transfer-encoding")
    return [(name, text) for name, text in response.headers.multi_items() if name not in dropped]


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
    if status >= 400:
        body = body[:MOST_ERROR_BYTES]
    headers = [(name, text) for name, text in _headers(response) if name != "content-type"]
    return httpx.Response(status, headers=[*headers, ("content-type", kind)], content=body)


def _status(error: Any) -> int:
    """The HTTP status of an error that came with another."""
    fields = cast("Event", error) if isinstance(error, dict) else {}
    codes = (fields.get(name) for name in ("code", "status", "status_code"))
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
        fields = cast("Event", choice) if isinstance(choice, dict) else {}
        message: Any = fields.get("message")
        delta = dict(cast("Event", message)) if isinstance(message, dict) else {}
        if isinstance(calls := delta.get("tool_calls"), list):
            numbered = enumerate(cast("list[Any]", calls))
            delta["tool_calls"] = [call | {"index": n} if isinstance(call, dict) else call for n, call in numbered]
        yield {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": fields.get("finish_reason")}]}
    if isinstance(value.get("usage"), dict):
        yield {**envelope, "choices": [], "usage": value["usage"]}


def _claude_events(value: Event) -> Iterator[Event]:
    usage: Any = value.get("usage") or {}
    yield {"type": "message_start", "message": {**value, "content": [], "stop_reason": None}}
    for n, block in enumerate(value["content"]):
        if not isinstance(block, dict):
            continue
        content = cast("Event", block)
        yield {"type": "content_block_start", "index": n, "content_block": _emptied(content)}
        for delta in _claude_deltas(content):
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


class ProviderStream(httpx.AsyncByteStream):
    """A stream of events as bytes, which has one reader: litellm by iteration, or else whoever takes it first.

    Who has taken it reads by `next_block`, and puts in the end something else in its place for litellm (`put`).
    """

    def __init__(
        self, inner: httpx.AsyncByteStream, heard: Overheard, first: bytes, chunks: AsyncIterator[bytes]
    ) -> None:
        self._inner = inner
        self._heard = heard
        self._first = first
        self._chunks = chunks
        self._begun = False
        self._instead: bytes | None = None

    def take(self) -> bool:
        """Take it from litellm, unless that has begun to read it."""
        taken, self._begun = not self._begun, True
        return taken

    async def next_block(self) -> bytes | None:
        """The bytes that have come since the last call; None at the end. Raises what httpx raises."""
        block, self._first = self._first, b""
        return block or await anext(self._chunks, None)

    def put(self, data: bytes) -> None:
        """What litellm reads instead."""
        self._instead = data

    def give_back(self, data: bytes) -> None:
        """Let litellm read the stream, of which this is what was read."""
        self._first, self._begun = data, False

    async def drain(self, seconds: float) -> None:
        """Read to the end, if that comes soon: then the connection serves another request."""
        with contextlib.suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(seconds):
                while await self.next_block() is not None:
                    pass

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._instead is not None:
            yield self._instead
            return
        self._begun = True
        waiting, size = list[bytes](), 0
        while (chunk := await self.next_block()) is not None:
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

    async def aclose(self) -> None:
        """Close the response."""
        await self._inner.aclose()
