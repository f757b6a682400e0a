"""What `/openai/v1/chat/completions` answers, in OpenAI's words, whole and as chunks. Pure."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_core import to_json

from turnstile.gateway.http.problems import Problem
from turnstile.gateway.openai.error_objects import ErrorAnswer, error_object
from turnstile.gateway.outputs import typed_value
from turnstile.ledger.turns.usage import TurnUsage
from turnstile.schema.api import Turn
from turnstile.schema.states import TurnStatus

FinishReason = Literal["stop", "length", "tool_calls"]
DONE = b"data: [DONE]\n\n"


class PromptDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Of the completion's tokens."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens of all models' answers in the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class CalledFunction(BaseModel):
    """A function of the client, and its arguments as JSON."""

    name: str
    arguments: str


class FunctionCall(BaseModel):
    """A call that the client runs."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    """What was delivered; or the calls that the client runs, and what was said with them."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[FunctionCall] | None = Field(default=None, exclude_if=lambda calls: calls is None)
    refusal: None = None


class ChatChoice(BaseModel):
    """The one answer."""

    index: Literal[0] = 0
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: None = None


class ChatCompletion(BaseModel):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CallDelta(FunctionCall):
    """A call, in one piece."""

    index: int


class Delta(BaseModel):
    """What is new."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(BaseModel):
    """What is new of the one answer."""

    index: Literal[0] = 0
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: None = None


class ChatChunk(BaseModel):
    """A piece of a chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Frames:
    """The chunks of one completion, as server-sent events."""

    def __init__(self, completion_id: str, created: int, model: str, *, tells_usage: bool) -> None:
        self._named = {"id": completion_id, "created": created, "model": model}
        self._tells_usage = tells_usage

    def begun(self) -> bytes:
        """The first chunk."""
        return self._choice(Delta(role="assistant", content=""))

    def text(self, text: str) -> bytes:
        """More text."""
        return self._choice(Delta(content=text))

    def calls(self, calls: Sequence[FunctionCall]) -> bytes:
        """The calls that the client runs."""
        deltas = [CallDelta(index=place, **call.model_dump()) for place, call in enumerate(calls)]
        return self._choice(Delta(tool_calls=deltas))

    def ended(self, reason: FinishReason, usage: TurnUsage) -> bytes:
        """The last ones, and the end of the stream."""
        last = b""
        if self._tells_usage:
            chunk = ChatChunk.model_validate({**self._named, "choices": [], "usage": usage_of(usage)})
            last = _data(chunk.model_dump_json())
        return self._choice(Delta(), reason) + last + DONE

    def _choice(self, delta: Delta, reason: FinishReason | None = None) -> bytes:
        choice = ChunkChoice(delta=delta, finish_reason=reason)
        chunk = ChatChunk.model_validate({**self._named, "choices": [choice]}).model_dump(exclude_none=True)
        chunk["choices"][0] |= {"finish_reason": reason, "logprobs": None}
        if self._tells_usage:
            chunk["usage"] = None
        return _data(to_json(chunk).decode())


def error_frame(problem: Problem) -> bytes:
    """The end of a stream that failed: OpenAI's clients raise it."""
    return _data(ErrorAnswer(error=error_object(problem)).model_dump_json())


def usage_of(usage: TurnUsage) -> Usage:
    """The usage in OpenAI's words."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def delivered_text(turn: Turn, *, is_typed: bool = False) -> str:
    """What a turn delivered, as text; JSON as its text, and nothing if its card is gone."""
    output = turn.output
    if output is not None and is_typed and output.text is None:
        return to_json(typed_value(output.data)).decode()
    if output is None:
        return ""
    if output.text is not None:
        return output.text
    return "" if output.data is None else to_json(output.data).decode()


def reason_of(turn: Turn) -> FinishReason:
    """Why a turn that delivered ended: `length` if what it delivered was cut short."""
    cut = turn.status == TurnStatus.PARTIAL or (turn.stats or {}).get("truncated") is not None
    return "length" if cut else "stop"


def _data(text: str) -> bytes:
    return f"data: {text}\n\n".encode("utf-8", "replace")
