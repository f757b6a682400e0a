"""Messages of OpenAI's clients as what a turn reads: parts of a box, and instructions (protocol §6). Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from pydantic import JsonValue

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.fields import is_empty, unsupported
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.wire.box_requests import CallsPart, PastCall, PastResult, ResultPart, TextPart
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES

Speaker = Literal["instructions", "user", "assistant"]


_KINDS = {
    "image": "an image",
    "image_url": "an image",
    "audio": "a sound",
    "file": "a file",
    "refusal": "a refusal",
}
_PASSED = frozenset({"type", "text", "role", "cache_control", "annotations", "logprobs", "citations"})


class SpokenText(NamedTuple):
    """A text, and whose it is."""

    speaker: Speaker
    text: str


class MadeCalls(NamedTuple):
    """Calls that an assistant made, and what it said with them."""

    text: str
    calls: tuple[PastCall, ...]


class CallOutput(NamedTuple):
    """What a call came to."""

    call: str
    output: str


Said: TypeAlias = SpokenText | MadeCalls | CallOutput
"""What was said and done in a history."""
CALL_ID_LIMIT: Final = 128
"""Characters of a call's id."""


def answers_in(said: Sequence[object]) -> dict[str, str]:
    """The outputs of calls that stand last, by their calls."""
    answers: dict[str, str] = {}
    for entry in reversed(said):
        if not isinstance(entry, CallOutput):
            break
        answers.setdefault(entry.call, entry.output)
    return dict(reversed(answers.items()))


@dataclass(frozen=True, slots=True)
class Composed:
    """What was said, as a turn takes it."""

    instructions: str | None
    """What follows the profile's prompt."""
    parts: list[TextPart | CallsPart | ResultPart]
    """Of a box: users' texts as instructions, the assistant's as deliverables; calls and their results."""


def composed(said: Sequence[Said]) -> Composed:
    """What a turn reads of these, in their order; empty texts are left out. Raises `Refused` (text_too_large)."""
    texts = [entry.text for entry in said if isinstance(entry, SpokenText)]
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) > TEXT_LIMIT_BYTES:
        raise Refused("text_too_large", f"text in a request is limited to {TEXT_LIMIT_BYTES} bytes")
    instructions: list[str] = []
    parts: list[TextPart | CallsPart | ResultPart] = []
    for entry in said:
        match entry:
            case MadeCalls(text=text, calls=calls):
                parts.append(CallsPart(text=text, calls=list(calls)))
            case CallOutput(call=call, output=output):
                parts.append(ResultPart(result=PastResult(tool_call_id=call, output=output)))
            case SpokenText(text=""):
                pass
            case SpokenText(speaker="instructions", text=text):
                instructions.append(text)
            case SpokenText(speaker="user", text=text):
                parts.append(TextPart(text=text))
            case SpokenText(text=text):
                parts.append(TextPart(text=text, type="task.deliverable"))
    return Composed("\n\n".join(instructions) or None, parts)


def text_in(content: JsonValue, param: str, kinds: Collection[str]) -> str:
    """The text of a message's content: a string, or parts of these kinds, joined.

    Raises `BadField` for what is no content, and `Unsupported` for parts of other kinds; `param` names the content.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadField(f"{param}: must be a string or a list of parts of type {' or '.join(sorted(kinds))}", param)
    return "".join(_text_of(part, f"{param}.{place}", kinds) for place, part in enumerate(content))


def _text_of(part: JsonValue, param: str, kinds: Collection[str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise BadField(f"{param}: a part must be an object with a type", f"{param}.type")
    if kind not in kinds:
        what = _KINDS.get(kind.removeprefix("input_"), "a part of another type")
        raise unsupported(
            f"{param}.type", hint=f"{what} was sent, but agents accept only {' and '.join(sorted(kinds))}"
        )
    fields, where = cast("JsonObject", part), "refusal" if kind == "refusal" else "text"
    for name, value in fields.items():
        # a client sends back what it got: annotations and logprobs of a text, which has none here
        if name not in _PASSED and name != where and not is_empty(value):
            raise unsupported(f"{param}.{name}", value)
    if not isinstance(text := fields.get(where), str):
        raise BadField(f"{param}.{where}: a string is required", f"{param}.{where}")
    return text
