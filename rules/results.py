"""Results of calls as a model sees them: whole, or in part where they are long (protocol §7.3). Pure.

A result above `inline_chars` is shown as its head, its tail and its size; its card keeps it whole, and the built-in
tool `read_result {tool_call_id, offset, limit}` reads the rest. Where a request would be too long, its oldest results
are shown shorter still. What `read_result` reads is what the model would have seen: a result's text, or its JSON.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    Card,
    CardType,
    CardUnreadable,
    ToolResultContent,
    content_of,
    readable_content,
    visible_result,
)
from turnstile.schema.ids import ToolCallId
from turnstile.schema.tools import INLINE_RESULT_CHARS, READ_RESULT
from turnstile.schema.validation import describe_faults

SHORT_CHARS: Final = 320
"""How much is shown of a result where the request would be too long."""
IMAGE: Final = "(an image was left out)"

_DATA_URI = re.compile(r"data:image/[\w.+-]+(?:;[\w=.-]+)*;base64,[A-Za-z0-9+/=_-]+")
_SHOWN: Final = 4
"""A longer result is shown in a part of this of `inline_chars`."""
_FRAME: Final = 320
"""More than the rest of a message about a result takes."""


@dataclass(frozen=True, slots=True)
class ResultView:
    """How the results of a request are shown."""

    inline_chars: int = INLINE_RESULT_CHARS
    short: int = 0
    """How many of the request's results, the oldest, are shown in `SHORT_CHARS`."""

    def shown(self, place: int) -> tuple[int, int]:
        """The longest result at this place that is shown whole, and how much of a longer one is shown."""
        if place < self.short:
            return min(SHORT_CHARS + _FRAME, self.inline_chars), min(SHORT_CHARS, self.inline_chars)
        return self.inline_chars, max(self.inline_chars // _SHOWN, 1)


WHOLE: Final = ResultView()


@dataclass(frozen=True, slots=True)
class ShownResult:
    """A result as a message has it."""

    text: str
    whole: bool = True


def shown_result(card: Card, edited: JsonObject | None, most: int, part: int) -> ShownResult:
    """Status, and result or error, as JSON; in part if it is longer than `most`, `part` characters of it.

    Without what is for the kernel (protocol §7.5) or only kept (§17.1). Of a call that a person edited also the
    arguments that were sent, as far as the model may see them. Raises `CardUnreadable`.
    """
    content = content_of(card)
    if not isinstance(content, ToolResultContent):
        raise CardUnreadable(f"card {card.card_id} ({card.type}) has no ToolResultContent")
    view: JsonObject = {"status": content.status.value}
    if edited is not None:
        view["arguments_edited_by_a_person"] = edited
    if content.parts:
        view["files"] = [part.line for part in content.parts]
    full_text, most = result_text(content), max(most, _FRAME)
    if len(full_text) <= most:  # as JSON it takes no less
        result = visible_result(content.result)
        whole: JsonObject = dict(view)
        if result is not None:
            whole["result"] = result
        if content.error is not None:
            whole["error"] = {"code": content.error.code, "message": content.error.message}
        text = without_images(compact(whole))
        if len(text) <= most:
            return ShownResult(text)
    head = -(-part * 3 // 4)
    view["result_is_long"] = {
        "characters": len(full_text),
        "head": full_text[:head],
        "tail": full_text[max(head, len(full_text) - (part - head)) :],
        "rest": f'{READ_RESULT} {{"tool_call_id": "{card.tool_call_id}", "offset": {head}}}',
    }
    if content.error is not None:
        view["error"] = {"code": content.error.code}
    return ShownResult(compact(view), whole=False)


def result_text(content: ToolResultContent) -> str:
    """What `read_result` reads of a result: its text, or its JSON; of a failed one the message, too."""
    result = visible_result(content.result)
    text = result if isinstance(result, str) else "" if result is None else compact(result)
    return without_images(text if content.error is None else f"{content.error.message}\n{text}".rstrip())


class ReadArguments(BaseModel):
    """The arguments of `read_result`."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    tool_call_id: str
    offset: int = Field(default=0, ge=0)
    limit: int | None = Field(default=None, ge=1)


def read_result(cards: Iterable[Card], arguments_text: str, inline_chars: int) -> JsonObject | str:
    """A part of a result among these cards, or a sentence for the model that says what is wrong with the arguments."""
    arguments = parse_arguments(arguments_text)
    if arguments is None:
        return bad_arguments(READ_RESULT, arguments_text)
    try:
        request = ReadArguments.model_validate(arguments)
    except ValidationError as error:
        return f"The arguments of {READ_RESULT} do not fit: {describe_faults(error, ReadArguments, most=1)}."
    call = ToolCallId(request.tool_call_id)
    results = (card for card in cards if card.type == CardType.TOOL_RESULT and card.tool_call_id == call)
    content = next((content for card in results if (content := readable_content(card)) is not None), None)
    if not isinstance(content, ToolResultContent):
        return f"There is no result of the call {request.tool_call_id[:64]!r} here, or it was left out of the memory."
    whole_text = result_text(content)
    most = max(inline_chars - _FRAME, 1)
    text = whole_text[request.offset : request.offset + min(request.limit or most, most)]
    while len(text) > 1 and len(compact(text)) > most:  # as JSON it takes more
        text = text[: len(text) * 3 // 4]
    end = request.offset + len(text)
    left = max(len(whole_text) - end, 0)
    return {"tool_call_id": call, "offset": request.offset, "text": text, "characters": len(whole_text), "left": left}


def without_images(text: str) -> str:
    """The text with a note in place of each image in it."""
    if "data:image/" not in text:
        return text
    return _DATA_URI.sub(IMAGE, text)


def compact(value: JsonValue) -> str:
    """The value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
