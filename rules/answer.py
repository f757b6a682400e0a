"""Builds a model's answer from its stream. The caller owns the draft, so it survives a cancellation.

`collect` bounds the duration of the stream and, if asked, the wait for each event, and always closes the stream. An
answer has at most `ANSWER_LIMIT_BYTES` as JSON, so that every card made of it can be fetched over NATS; the rest of the
stream is not read. This module does not interpret an answer: `decide` does (protocol §7.4). It cleans the text, so that
nothing a model writes can break a card.
"""

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from turnstile.runtime.ports import ContentDelta, ModelDone, ModelEvent, ReasoningDelta, ToolCallDelta
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Reasoning
from turnstile.schema.errors import ModelError
from turnstile.schema.json_reading import storable
from turnstile.schema.visible import visible

Delta = ContentDelta | ReasoningDelta | ToolCallDelta

ANSWER_LIMIT_BYTES: Final = 524_288
"""Limit of an answer's text and calls together, as JSON."""
TOO_LARGE: Final = "answer_too_large"
"""`finish_reason` of an answer that was stopped at the limit."""
EMPTY_ANSWER: Final = "empty_answer"
CONTENT_FILTERED: Final = "content_filtered"
_WHOLE: Final = frozenset({"stop", "tool_calls"})
"""Finish reasons of whole answers; any other says that the answer is cut off."""
_MALFORMED: Final = "malformed_function_call"
_LONGEST_QUOTE = 500


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A tool call as the model made it; `arguments_text` should be a JSON object."""

    provider_call_id: str | None
    name: str
    arguments_text: str


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A complete answer."""

    text: str
    reasoning: str
    calls: tuple[AnsweredCall, ...]
    finish_reason: str
    usage: JsonObject
    response_cost: float | None
    usage_kind: Literal["exact", "estimated", "unknown"]
    first_token_seconds: float | None
    """From the request to the first delta; None if the answer is empty."""
    model: str | None = None
    """The model that gave it; None: that of the turn's configuration."""
    kept: Reasoning | None = None
    """What its provider wants back of the reasoning."""
    refusal: str = ""
    """What the model said instead of an answer, where its provider marks that as a refusal."""
    lost_calls: int = 0
    """Calls that came without a name or a function."""

    @property
    def truncated(self) -> str | None:
        """Why the answer is truncated: `length` (the model's own limit), `answer_too_large`, or a reason that is not
        known here; None if it is whole.
        """
        return None if self.finish_reason in _WHOLE else self.finish_reason

    def flaw(self, model: str) -> ModelError | None:
        """The error that it is instead of an answer: refused, filtered, empty, or with calls that cannot be read."""
        if self.refusal:
            quoted = " ".join(visible(self.refusal).split())[:_LONGEST_QUOTE]
            return ModelError(CONTENT_FILTERED, f"{model}: the model refused", retryable=False, provider_says=quoted)
        if self.finish_reason == "content_filter":
            message = f"{model}: the provider's content filter ended the answer"
            return ModelError(CONTENT_FILTERED, message, retryable=False)
        if self.lost_calls or (
            not self.calls and self.text.strip() and self.finish_reason in ("tool_calls", _MALFORMED)
        ):
            message = f"{model}: the answer has calls that cannot be read ({self.finish_reason})"
            return ModelError("model_response_invalid", message, retryable=True)
        if not self.calls and not self.text.strip():
            message = f"{model}: the answer has neither text nor calls ({self.finish_reason})"
            return ModelError(EMPTY_ANSWER, message, retryable=self.finish_reason != "length")
        return None


@dataclass(slots=True)
class _CallDraft:
    id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])


class AnswerDraft:
    """The part of an answer received so far. The caller makes it, `collect` fills it; it can be read at any time."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _CallDraft] = {}
        self.done: ModelDone | None = None
        self.first_token_seconds: float | None = None
        self._room = ANSWER_LIMIT_BYTES

    @property
    def is_full(self) -> bool:
        """Whether the limit was reached."""
        return self._room < 0

    def fitting(self, delta: Delta) -> Delta:
        """The delta, or the part of it that fits. Call it once per delta, before `add`."""
        match delta:
            case ContentDelta(text):
                return delta if self._takes(text) else ContentDelta(self._rest(text))
            case ToolCallDelta(name=name, arguments=arguments):
                if self._takes(name or "") and not self._takes(arguments):
                    return replace(delta, arguments=self._rest(arguments))
                return replace(delta, name=None, arguments="") if self.is_full else delta
            case ReasoningDelta():  # streamed, and not kept
                return delta

    def _takes(self, text: str) -> bool:
        self._room -= _size(text)
        return self._room >= 0

    def _rest(self, text: str) -> str:
        """The longest beginning of the text that fits."""
        room = self._room + _size(text)
        text = text[:room]
        return text[: bisect_right(range(len(text) + 1), room, key=lambda end: _size(text[:end])) - 1]

    def add(self, event: ModelEvent) -> None:
        """Add one event; pieces of a call are merged by index, and its first id and name are kept."""
        match event:
            case ContentDelta(text):
                self._text.append(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case ToolCallDelta(index, call_id, name, arguments):
                call = self._calls.setdefault(index, _CallDraft())
                call.id = call.id or call_id
                call.name = call.name or (name or "").strip()
                call.arguments.append(arguments)
            case ModelDone():
                self.done = event

    @property
    def text(self) -> str:
        """The text so far."""
        return storable("".join(self._text))

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return storable("".join(self._reasoning))

    @property
    def calls(self) -> tuple[AnsweredCall, ...]:
        """The calls so far that have a name, in order of index; their arguments may still be incomplete."""
        return tuple(
            AnsweredCall(call.id and storable(call.id), storable(call.name), storable("".join(call.arguments)))
            for _, call in sorted(self._calls.items())
            if call.name
        )

    def answer(self) -> ModelAnswer:
        """The complete answer; raises `ModelError` (`model_stream_broken`) if no `ModelDone` has come."""
        if self.done is None:
            raise ModelError("model_stream_broken", "the model's stream broke off before its end", retryable=True)
        return ModelAnswer(
            text=self.text,
            reasoning=self.reasoning,
            calls=self.calls,
            finish_reason=self.done.finish_reason,
            usage=self.done.usage,
            response_cost=self.done.response_cost,
            usage_kind=self.done.usage_kind,
            first_token_seconds=self.first_token_seconds,
            kept=self.done.reasoning,
            refusal=self.done.refusal,
            lost_calls=self.done.lost_calls + sum(not call.name for call in self._calls.values()),
        )


async def collect(
    events: AsyncIterator[ModelEvent],
    draft: AnswerDraft,
    *,
    timeout_seconds: float,
    idle_seconds: float | None = None,
    on_delta: Callable[[Delta], None] | None = None,
) -> ModelAnswer:
    """Read a stream to its end and return the answer; `on_delta` gets each delta as it arrives. Closes the stream.

    `timeout_seconds` bounds the whole stream (`ModelRequest.timeout_seconds`), `idle_seconds` the wait for each event.
    Raises `ModelError`: `model_timeout` or `model_stream_broken`, both retryable, or the stream's own. After an error
    or a cancellation `draft` holds the events received so far.
    """
    clock = asyncio.get_running_loop().time
    start = clock()
    silence = timeout_seconds if idle_seconds is None else idle_seconds
    deadline = asyncio.timeout_at(start + min(timeout_seconds, silence))
    try:
        async with deadline:
            async for event in events:
                taken = event if isinstance(event, ModelDone) else draft.fitting(event)
                draft.add(taken)
                if isinstance(taken, ModelDone):
                    break
                if draft.first_token_seconds is None:
                    draft.first_token_seconds = clock() - start
                if on_delta is not None:
                    on_delta(taken)
                if draft.is_full:
                    draft.add(ModelDone(TOO_LARGE))
                    break
                if idle_seconds is not None:
                    deadline.reschedule(min(start + timeout_seconds, clock() + idle_seconds))
    except TimeoutError:
        if not deadline.expired():
            raise
        raise _too_slow(clock() - start, timeout_seconds, silence) from None
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    return draft.answer()


def _size(text: str) -> int:
    """Bytes of the text in a JSON document."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2


def _too_slow(elapsed: float, timeout_seconds: float, silence: float) -> ModelError:
    what = "did not finish" if elapsed >= timeout_seconds else "sent nothing"
    limit = timeout_seconds if elapsed >= timeout_seconds else silence
    return ModelError("model_timeout", f"the model {what} within {amount(limit)} s", retryable=True)
