"""What the events of the three wire forms say: OpenAI's chat completions, Anthropic's messages, Gemini's candidates.

A form reads parsed events into `StreamPiece`s, many at a time, and at the end writes a *digest*: a stream of its form
with one event for the whole text, and the provider's own events that have usage and finish reason. litellm reads that,
so prices, counts and finish reasons are its own, at the cost of some five events for any answer. The first event says
which form a stream has; of any other form `form_of` knows nothing. Pure: no I/O, no clock.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol, cast

from turnstile.activities.models.provider_bytes import Event, Overheard
from turnstile.activities.models.reasoning import ReasoningPiece
from turnstile.schema.base import JsonObject

NOTHING_KEPT = ReasoningPiece()
SIGNATURE = "__thought__"
"""Between a call's id and the signature of it that litellm writes there."""
_CALLS = frozenset({"tool_use", "server_tool_use"})
_ENVELOPE = frozenset({"choices", "usage"})


@dataclass(frozen=True, slots=True)
class ToolCallFragment:
    """A piece of a tool call as the provider indexes it."""

    index: int
    id: str | None
    name: str | None
    arguments: str
    signature: str | None = None
    """What the provider wants back with the call."""


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The content of one event of a stream, or of some that came together."""

    text: str
    reasoning: str
    calls: tuple[ToolCallFragment, ...]
    kept: ReasoningPiece = NOTHING_KEPT


@dataclass(slots=True)
class Gathered:
    """An answer so far, as it is read."""

    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCallFragment] = field(default_factory=list[ToolCallFragment])

    def add(self, piece: StreamPiece) -> None:
        """Add a piece."""
        self.texts.append(piece.text)
        self.thoughts.append(piece.reasoning)
        self.calls += piece.calls

    @property
    def text(self) -> str:
        """The text."""
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        """The reasoning, as text."""
        return "".join(self.thoughts)


class OddEvent(Exception):
    """An event that is no part of an answer: an error of the provider, or nothing that the form has."""


class Form(Protocol):
    """Reads the events of one stream."""

    response_id: str | None
    """The provider's own id of the answer."""
    ended: bool
    """Whether the provider said that nothing comes any more."""

    def read(self, event: Any) -> StreamPiece | None:
        """What the event adds to the answer; None if nothing. Raises `OddEvent`."""
        ...

    def digest(self, answer: "Gathered") -> Iterable[Event]:
        """The answer in few events, with all that the provider said of usage and its end."""
        ...


def form_of(event: Any, heard: Overheard) -> "Form | None":
    """The form of a stream that begins with this event; None if it is none of the three."""
    match event:
        case {"choices": list()}:
            return ChatForm(heard)
        case {"type": "message_start", "message": dict()}:
            return MessagesForm(heard)
        case {"candidates": list()}:
            return CandidatesForm(heard)
        case _:
            return None


def joined(pieces: Iterable[StreamPiece]) -> Iterator[StreamPiece]:
    """The pieces, each run of mere text, of mere reasoning and of mere calls as one."""
    for kind, run in groupby(pieces, _kind):
        several = list(run)
        if kind is None or len(several) == 1:
            yield from several
        elif kind == "text":
            yield StreamPiece("".join(piece.text for piece in several), "", ())
        elif kind == "reasoning":
            yield StreamPiece("", "".join(piece.reasoning for piece in several), (), _all_kept(several))
        else:
            yield StreamPiece("", "", tuple(_joined_calls(call for piece in several for call in piece.calls)))


def _kind(piece: StreamPiece) -> str | None:
    """Of what alone the piece is; None if it is of several things."""
    kept = piece.kept is not NOTHING_KEPT
    match bool(piece.text), bool(piece.reasoning), bool(piece.calls):
        case True, False, False if not kept:
            return "text"
        case False, _, False:
            return "reasoning"
        case False, False, True if not kept:
            return "calls"
        case _:
            return None


def _all_kept(pieces: Iterable[StreamPiece]) -> ReasoningPiece:
    kept = [piece.kept for piece in pieces if piece.kept is not NOTHING_KEPT]
    if not kept:
        return NOTHING_KEPT
    return ReasoningPiece(
        [block for piece in kept for block in piece.thinking_blocks],
        [signature for piece in kept for signature in piece.thought_signatures],
        [detail for piece in kept for detail in piece.reasoning_details],
        [item for piece in kept for item in piece.reasoning_items],
    )


def _joined_calls(fragments: Iterable[ToolCallFragment]) -> Iterator[ToolCallFragment]:
    """The fragments, each with those behind it that have more of its arguments and no more."""
    first, arguments = None, list[str]()
    for fragment in fragments:
        more = fragment.id is None and fragment.name is None and fragment.signature is None
        if first is None or not more or fragment.index != first.index:
            if first is not None:
                yield replace(first, arguments="".join(arguments))
            first, arguments = fragment, []
        arguments.append(fragment.arguments)
    if first is not None:
        yield replace(first, arguments="".join(arguments))


@dataclass(slots=True)
class ChatForm:
    """OpenAI's chat completions, as dozens of servers speak it. Of several choices the one that comes first is read."""

    heard: Overheard
    response_id: str | None = None
    ended: bool = False
    _envelope: Event | None = None
    _choice: Any = None
    _ends: Event = field(default_factory=dict[str, Any])
    _usage: Event | None = None

    def read(self, event: Event) -> StreamPiece | None:
        """What the event adds."""
        choices: Any = event.get("choices")
        if not isinstance(choices, list) or event.get("error"):
            raise OddEvent
        choice: Any = cast("list[Any]", choices)[0] if choices else None
        if self._envelope is not None and event.get("usage") is None and isinstance(choice, dict):
            # what nearly all events are: one piece of text, and no more
            fields = cast("Event", choice)
            delta: Any = fields.get("delta")
            if isinstance(delta, dict) and len(cast("Event", delta)) == 1 and fields.get("finish_reason") is None:
                text: Any = cast("Event", delta).get("content")
                if isinstance(text, str) and fields.get("index") == self._choice:
                    return StreamPiece(text, "", ()) if text else None
        return self._read(event, choice)

    def _read(self, event: Event, choice: Any) -> StreamPiece | None:
        fields = cast("Event", choice) if isinstance(choice, dict) else None
        if fields is not None and self._choice is None:
            self._choice = fields.get("index")
        if fields is not None and self._choice is not None and fields.get("index") not in (self._choice, None):
            event["choices"], fields = [], None  # another choice of the same request
        self.heard.mend(event)
        if self._envelope is None:
            self._envelope = {name: value for name, value in event.items() if name not in _ENVELOPE}
        self.response_id = event.get("id") or self.response_id
        if event.get("usage"):
            self._usage = {**event, "choices": []}
        if fields is None:
            return None
        if fields.get("finish_reason"):
            self._ends = {**event, "choices": [{**fields, "delta": {}}]}
        return _chat_piece(cast("Event", fields["delta"]))

    def digest(self, answer: Gathered) -> Iterable[Event]:
        """One event with all that was said, the one that ended the choice, and the last that had usage."""
        delta: Event = {"role": "assistant", "content": answer.text}
        if reasoning := answer.reasoning:
            delta["reasoning_content"] = reasoning
        if answer.calls:
            delta["tool_calls"] = [_chat_form(call) for call in _joined_calls(answer.calls)]
        yield {**(self._envelope or {}), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield self._ends
        if self._usage is not None and not self._ends.get("usage"):
            yield self._usage


def _chat_piece(delta: Event) -> StreamPiece | None:
    text, thought = delta.get("content") or "", delta.get("reasoning_content")
    if thought is None and isinstance(other := delta.get("reasoning"), str):
        thought = other
    calls: Any = delta.get("tool_calls")
    fragments = tuple(_chat_call(call, n) for n, call in enumerate(calls)) if calls else ()
    kept = _chat_kept(delta) if len(delta) > 1 else NOTHING_KEPT
    if not (text or thought or fragments) and kept is NOTHING_KEPT:
        return None
    return StreamPiece(text, thought or "", fragments, kept)


def _chat_call(call: Event, place: int) -> ToolCallFragment:
    # a server of litellm's writes Gemini's signature of a call into its id
    call_id, _, written = (call.get("id") or "").partition(SIGNATURE)
    function, index = call["function"], call.get("index")
    signature = _own_field(call, "thought_signature")
    return ToolCallFragment(
        place if index is None else index,
        call_id or None,
        function.get("name"),
        function["arguments"],
        signature if isinstance(signature, str) else written or None,
    )


def _chat_form(call: ToolCallFragment) -> Event:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _chat_kept(delta: Event) -> ReasoningPiece:
    blocks, details = _objects(delta.get("thinking_blocks")), _objects(delta.get("reasoning_details"))
    items, signatures = _objects(delta.get("reasoning_items")), _own_field(delta, "thought_signatures")
    signed = [s for s in cast("list[Any]", signatures) if isinstance(s, str)] if isinstance(signatures, list) else []
    return ReasoningPiece(blocks, signed, details, items) if blocks or details or items or signed else NOTHING_KEPT


def _own_field(of: Event, name: str) -> Any:
    fields: Any = of.get("provider_specific_fields")
    return cast("Event", fields).get(name) if isinstance(fields, dict) else None


def _objects(values: Any) -> list[JsonObject]:
    return [value for value in cast("list[Any]", values) if isinstance(value, dict)] if isinstance(values, list) else []


@dataclass(slots=True)
class _Block:
    """A content block that has begun."""

    kind: Any
    call: int = -1
    input: Any = None
    """What its call has for arguments if none come in pieces."""


@dataclass(slots=True)
class MessagesForm:
    """Anthropic's messages."""

    heard: Overheard
    response_id: str | None = None
    ended: bool = False
    _start: Event = field(default_factory=dict[str, Any])
    _ends: Event = field(default_factory=dict[str, Any])
    _blocks: dict[Any, _Block] = field(default_factory=dict[Any, _Block])
    _calls: int = 0

    def read(self, event: Event) -> StreamPiece | None:
        """What the event adds."""
        match event:
            case {"type": "content_block_delta", "delta": dict()}:
                return self._delta(self._block(event), cast("Event", event["delta"]))
            case {"type": "content_block_start", "content_block": dict()}:
                return self._begin(_place(event), cast("Event", event["content_block"]))
            case {"type": "content_block_stop"}:
                return self._stop(self._block(event))
            case {"type": "message_start", "message": dict()}:
                own: Any = cast("Event", event["message"]).get("id")
                self.response_id, self._start = own if isinstance(own, str) else None, event
                self.heard.mend(event)
            case {"type": "message_delta", "delta": dict()}:
                self._ends = event
                self.heard.mend(event)
            case {"type": "error"} | {"error": _}:
                raise OddEvent
            case {"type": "message_stop"}:
                self.ended = True
            case {"type": str(kind)} if not kind.startswith(("content_block", "message_delta")):
                pass  # `ping`, and what newer versions have
            case _:
                raise OddEvent
        return None

    def _block(self, event: Event) -> _Block:
        block = self._blocks.get(_place(event))
        if block is None:
            raise OddEvent
        return block

    def _begin(self, place: Any, content: Event) -> StreamPiece | None:
        block = self._blocks[place] = _Block(content.get("type"))
        match content:
            case {"type": "text", "text": str(text)} if text:
                return StreamPiece(text, "", ())
            case {"type": "thinking", "thinking": str(thought)} if thought:
                return _thought(thought)
            case {"type": "redacted_thinking"}:
                kept: JsonObject = {"type": "redacted_thinking", "data": content.get("data")}
                return StreamPiece("", "", (), ReasoningPiece([kept]))
            case {"type": kind} if kind in _CALLS:
                block.call, block.input = self._calls, content.get("input")
                self._calls += 1
                return StreamPiece("", "", (_fragment(block.call, content.get("id"), content.get("name")),))
            case _:
                return None

    @staticmethod
    def _delta(block: _Block, delta: Event) -> StreamPiece | None:
        match delta:
            case {"text": str(text)}:
                return StreamPiece(text, "", ()) if text else None
            case {"partial_json": str(arguments)} if block.call >= 0:
                if not arguments:
                    return None
                block.input = None
                return StreamPiece("", "", (ToolCallFragment(block.call, None, None, arguments),))
            case {"thinking": str(thought)}:
                return _thought(thought) if thought else None
            case {"signature": str(signature)} if signature:
                return StreamPiece(
                    "", "", (), ReasoningPiece([{"type": "thinking", "thinking": "", "signature": signature}])
                )
            case {"text": _} | {"partial_json": _} | {"thinking": _}:
                raise OddEvent
            case _:
                return None

    @staticmethod
    def _stop(block: _Block) -> StreamPiece | None:
        whole, block.input = block.input, None
        if block.call < 0 or whole is None:
            return None
        arguments = json.dumps(whole if isinstance(whole, dict) else {}, ensure_ascii=False)
        return StreamPiece("", "", (ToolCallFragment(block.call, None, None, arguments),))

    def digest(self, answer: Gathered) -> Iterable[Event]:
        """The begin of the message, its thoughts and its text in one event each, and its end."""
        yield self._start
        parts = (("thinking", "thinking_delta", answer.reasoning), ("text", "text_delta", answer.text))
        for place, (name, kind, said) in enumerate(parts):
            if said:
                yield {"type": "content_block_start", "index": place, "content_block": {"type": name, name: ""}}
                yield {"type": "content_block_delta", "index": place, "delta": {"type": kind, name: said}}
                yield {"type": "content_block_stop", "index": place}
        yield self._ends
        yield {"type": "message_stop"}


def _place(event: Event) -> int:
    place: Any = event.get("index")
    return place if isinstance(place, int) else 0


def _fragment(index: int, call_id: Any, name: Any) -> ToolCallFragment:
    return ToolCallFragment(
        index,
        call_id if isinstance(call_id, str) and call_id else None,
        name if isinstance(name, str) else None,
        "",
    )


def _thought(text: str, **more: str) -> StreamPiece:
    return StreamPiece("", text, (), ReasoningPiece([{"type": "thinking", "thinking": text, **more}]))


@dataclass(slots=True)
class CandidatesForm:
    """Gemini's candidates, of which the first is read."""

    heard: Overheard
    response_id: str | None = None
    ended: bool = False
    _calls: int = 0
    _event: Event = field(default_factory=dict[str, Any])
    """All fields of the events but the content, the last of each name."""
    _candidate: Event = field(default_factory=dict[str, Any])

    def read(self, event: Event) -> StreamPiece | None:
        """What the event adds."""
        candidates: Any = event.pop("candidates", [])
        if not isinstance(candidates, list) or event.get("error"):
            raise OddEvent
        self._event.update(event)
        own: Any = event.get("responseId")
        self.response_id = own if isinstance(own, str) and own else self.response_id
        if not candidates:
            return None
        candidate: Any = cast("list[Any]", candidates)[0]
        if not isinstance(candidate, dict):
            raise OddEvent
        fields = cast("Event", candidate)
        content: Any = fields.pop("content", None)
        self._candidate.update(fields)
        self.heard.mend({"candidates": [fields]})
        parts: Any = cast("Event", content).get("parts") if isinstance(content, dict) else None
        return self._parts(cast("list[Any]", parts)) if isinstance(parts, list) else None

    def _parts(self, parts: Iterable[Any]) -> StreamPiece | None:
        texts, thoughts, calls = list[str](), list[str](), list[ToolCallFragment]()
        blocks, signatures = list[JsonObject](), list[str]()
        for part in parts:
            if not isinstance(part, dict):
                raise OddEvent
            fields = cast("Event", part)
            signature: Any = fields.get("thoughtSignature")
            signature = signature if isinstance(signature, str) else None
            if signature is not None:
                signatures.append(signature)
            text: Any = fields.get("text", "")
            if not isinstance(text, str):
                raise OddEvent
            if fields.get("thought") is True:
                thoughts.append(text)
                signed: JsonObject = {} if signature is None else {"signature": signature}
                blocks.append({"type": "thinking", "thinking": text, **signed})
            elif text:
                texts.append(text)
            if (call := fields.get("functionCall")) is not None:
                calls.append(self._call(call, signature))
        if not (texts or thoughts or calls or signatures):
            return None
        kept = ReasoningPiece(blocks, signatures) if blocks or signatures else NOTHING_KEPT
        return StreamPiece("".join(texts), "".join(thoughts), tuple(calls), kept)

    def _call(self, call: Any, signature: str | None) -> ToolCallFragment:
        if not isinstance(call, dict):
            raise OddEvent
        fields = cast("Event", call)
        index, self._calls = self._calls, self._calls + 1
        named = _fragment(index, fields.get("id"), fields.get("name"))
        arguments = json.dumps(fields.get("args") or {}, ensure_ascii=False)
        return ToolCallFragment(index, named.id, named.name, arguments, signature)

    def digest(self, answer: Gathered) -> Iterable[Event]:
        """One event with all that was said, and one with all that came beside it."""
        reasoning, text = answer.reasoning, answer.text
        parts: list[Mapping[str, Any]] = [{"text": reasoning, "thought": True}] if reasoning else []
        if text:
            parts.append({"text": text})
        parts += [{"functionCall": {"name": call.name, "args": json.loads(call.arguments)}} for call in answer.calls]
        if parts:
            yield {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}]}
        end = {**self._candidate, "content": {"role": "model", "parts": [{"text": ""}]}}
        yield {**self._event, "candidates": [end]}
