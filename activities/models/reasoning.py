"""What a model's reasoning must be kept as, so that its provider takes it back with the next request (protocol §7.3).

`ReasoningDraft` gathers, from the pieces of one answer, the fields that litellm's form of an assistant message has for
the provider: signed thinking blocks (Anthropic, Bedrock), signatures of texts and calls (Gemini), encrypted items
(OpenAI's Responses), reasoning details (OpenRouter), or the text as `reasoning_content` (DeepSeek, Kimi, vLLM and other
servers that speak OpenAI's chat completions). Reasoning that a model writes into its text, between `<think>` and
`</think>`, is separated by `TaggedReasoning` and goes back as it came, since chat templates expect it there. `put_back`
adds all this to a message for the same provider, and to no other. Over `REASONING_LIMIT_BYTES` it is not kept. Pure.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Reasoning
from turnstile.schema.json_reading import storable_object
from turnstile.schema.profiles import InText

REASONING_LIMIT_BYTES: Final = 262_144
"""Limit of what is kept of one answer, as JSON: a card with it and an answer still fits a message of NATS."""
SIGNED: Final = ("anthropic", "bedrock", "vertex_ai", "azure_ai", "databricks")
"""Providers that want their signed thoughts back with the calls that followed them."""
_TAKE_NO_TEXT: Final = ("anthropic", "gemini", "vertex_ai", "groq", "mistral", "cohere_chat")
"""Providers that send reasoning as text and want none back."""
_JOINED: Final = ("text", "summary", "data", "signature")
_OPENING: Final = "<think>"
_CLOSING: Final = "</think>"
_MOST_BLANKS: Final = 1_000
"""Blanks before a tag that are waited for."""


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """The fields of one event that are of reasoning, as litellm names them."""

    thinking_blocks: Sequence[JsonObject] = ()
    thought_signatures: Sequence[str] = ()
    reasoning_details: Sequence[JsonObject] = ()
    reasoning_items: Sequence[JsonObject] = ()


@dataclass(slots=True)
class TaggedReasoning:
    """Separates what a model writes between `<think>` and `</think>` from its answer, piece by piece.

    Tags count before the answer only: an answer may quote them. A thought without an end is a thought: it is in no
    answer. What may become a tag waits for the next piece.
    """

    in_text: InText
    found: bool = False
    """Whether there was a thought."""
    _inside: bool = False
    _over: bool = False
    _waiting: str = ""

    def __post_init__(self) -> None:
        self._inside, self._over = self.in_text == "opened", self.in_text == "never"

    def read(self, piece: str) -> tuple[str, str]:
        """What of the text so far is reasoning, and what is answer."""
        text, thoughts = self._waiting + piece, list[str]()
        self._waiting = ""
        while not self._over:
            if self._inside:
                thought, closing, text = text.partition(_CLOSING)
                self._inside = not closing
                self._waiting = "" if closing else thought[len(thought) - _begun(thought) :]
                thoughts.append(thought.removesuffix(self._waiting))
                self.found = self.found or bool(thoughts[-1])
                if not closing:
                    return "".join(thoughts), ""
                self.found = True
                continue
            begin = text.lstrip()
            if begin.startswith(_OPENING):
                self._inside, text = True, begin.removeprefix(_OPENING)
            elif _OPENING.startswith(begin) and len(text) <= _MOST_BLANKS:
                self._waiting = text
                return "".join(thoughts), ""
            else:
                self._over, text = True, begin if self.found else text
        return "".join(thoughts), text

    def end(self) -> tuple[str, str]:
        """What waited when the answer ended."""
        waiting, self._waiting = self._waiting, ""
        if self._inside:
            return waiting, ""
        return "", "" if self.found and not waiting.strip() else waiting


def _begun(thought: str) -> int:
    """How many characters at the end may be the begin of the closing tag."""
    return next((n for n in range(len(_CLOSING) - 1, 0, -1) if thought.endswith(_CLOSING[:n])), 0)


@dataclass(slots=True)
class ReasoningDraft:
    """The reasoning of the answer that is being read."""

    origin: str
    """Whoever answers, as `Reasoning.provider` names it."""
    provider: str
    """litellm's name of it."""
    text: list[str] = field(default_factory=list[str])
    blocks: list[JsonObject] = field(default_factory=list[JsonObject])
    details: list[JsonObject] = field(default_factory=list[JsonObject])
    items: list[JsonObject] = field(default_factory=list[JsonObject])
    signatures: list[str] = field(default_factory=list[str])
    calls: dict[int, str] = field(default_factory=dict[int, str])
    """The signatures of calls, by the index of the call."""
    tags: TaggedReasoning = field(default_factory=lambda: TaggedReasoning("never"))

    def add(self, text: str, piece: ReasoningPiece, content: str = "") -> tuple[str, str]:
        """Take one event's reasoning, and what is some in its content; returns both as one, and the content without."""
        tagged, content = self.tags.read(content)
        self.text += (text, tagged)
        for block in piece.thinking_blocks:
            _extend_block(self.blocks, block)
        for detail in piece.reasoning_details:
            _extend_detail(self.details, detail)
        self.items += piece.reasoning_items
        self.signatures += piece.thought_signatures
        return f"{text}{tagged}", content

    def end(self) -> tuple[str, str]:
        """What waited for more until the answer ended: reasoning, and content."""
        tagged, content = self.tags.end()
        self.text.append(tagged)
        return tagged, content

    def sign(self, call: int, signature: str) -> None:
        """Take the signature of the call with this index."""
        self.calls[call] = signature

    def kept(self) -> Reasoning | None:
        """What the provider wants back; None if there is nothing, or too much."""
        reasoning = Reasoning(
            provider=self.origin,
            message=storable_object(self._message()),
            calls=[self.calls.get(index) for index in range(max(self.calls, default=-1) + 1)],
        )
        if not reasoning.message and not reasoning.calls:
            return None
        size = len(json.dumps(reasoning.model_dump(mode="json"), ensure_ascii=False).encode())
        return reasoning if size <= REASONING_LIMIT_BYTES else None

    def _message(self) -> JsonObject:
        signed = [block for block in self.blocks if block.get("signature") or block.get("type") != "thinking"]
        if signed and self.provider != "gemini":
            return {"thinking_blocks": [*signed]}
        if self.signatures or self.calls:
            return {"provider_specific_fields": {"thought_signatures": [*self.signatures]}} if self.signatures else {}
        if self.details:
            return {"reasoning_details": [*self.details]}
        if self.items:
            return {"reasoning_items": [*self.items]}
        text = "".join(self.text)
        if text and self.tags.found:
            return {"content": f"{_OPENING}{text}{_CLOSING}\n\n"}
        return {"reasoning_content": text} if text and self.provider not in _TAKE_NO_TEXT else {}


def put_back(form: JsonObject, reasoning: Reasoning | None, origin: str) -> JsonObject:
    """The form of an assistant message with its reasoning, if that is this provider's; else the form as it is."""
    if reasoning is None or reasoning.provider != origin:
        return form
    kept = copy.deepcopy(reasoning.message)
    if isinstance(tagged := kept.get("content"), str):  # stood before the text
        kept["content"] = f"{tagged}{form.get('content') or ''}"
    form = {**form, **kept}
    calls = form.get("tool_calls")
    if isinstance(calls, list):
        signed = [*reasoning.calls, *[None] * len(calls)]
        form["tool_calls"] = [_signed(call, signature) for call, signature in zip(calls, signed, strict=False)]
    return form


def lacks_signed_thoughts(messages: Sequence[JsonObject]) -> bool:
    """Whether the last assistant message has calls and no signed thoughts before them: then no thinking may be on."""
    last = next((message for message in reversed(messages) if message.get("role") == "assistant"), None)
    return last is not None and bool(last.get("tool_calls")) and not last.get("thinking_blocks")


def _signed(call: JsonValue, signature: str | None) -> JsonValue:
    if signature is None or not isinstance(call, dict):
        return call
    return {**call, "provider_specific_fields": {"thought_signature": signature}}


def _extend_block(blocks: list[JsonObject], piece: Mapping[str, JsonValue]) -> None:
    """Add a piece of a block: a thinking block goes on until its signature has come."""
    last = blocks[-1] if blocks else None
    if piece.get("type") != "thinking" or last is None or last.get("type") != "thinking" or last.get("signature"):
        blocks.append({name: value for name, value in piece.items() if value is not None})
        return
    last["thinking"] = f"{last.get('thinking') or ''}{piece.get('thinking') or ''}"
    if signature := piece.get("signature"):
        last["signature"] = signature


def _extend_detail(details: list[JsonObject], piece: Mapping[str, JsonValue]) -> None:
    """Add a piece of a reasoning detail: pieces of one index and type are one detail."""
    last = details[-1] if details else None
    key = (piece.get("type"), piece.get("index"))
    if last is None or key[1] is None or (last.get("type"), last.get("index")) != key:
        details.append(dict(piece))
        return
    for name, value in piece.items():
        before = last.get(name)
        joins = name in _JOINED and isinstance(before, str) and isinstance(value, str)
        last[name] = f"{before}{value}" if joins else value if value is not None else before
