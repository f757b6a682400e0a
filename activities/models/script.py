"""Scripts of scripted models: the answer for each step of a turn and each attempt of a step.

A script is a function from a request to a line (or, in Python, to a stream), so equal requests get equal answers. In
YAML it is a list of steps; a step is one line, or `attempts: [line, …]`, of which the last line serves all further
attempts. An unknown key is an error that lists the allowed ones.
"""

import difflib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import Discriminator, Field, Tag, model_validator

from turnstile.runtime.ports import ModelEvent, ModelRequest
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import ModelError


class _Keyed(Strict):
    """Refuses an unknown key with an error that lists the allowed keys, closest first."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        allowed = list(cls.model_fields)
        for key in cast("Mapping[object, object]", value):
            if key not in allowed:
                raise ValueError(f"unknown key {key!r}; allowed: {', '.join(closest_first(str(key), allowed))}")
        return cast("object", value)


class ScriptCall(_Keyed):
    """A tool call. `arguments` is an object, or text that is sent unchanged, such as malformed JSON."""

    name: str
    arguments: JsonObject | str = Field(default_factory=JsonObject)
    id: str | None = None
    """The provider's id of the call; by default `call_{index}`, the same at every step, as with real providers."""


class ScriptError(_Keyed):
    """A `ModelError` that is raised after `after_chunks` pieces of the answer."""

    code: str = Field(min_length=1)
    message: str = "the script says so"
    retryable: bool = True
    retry_after_seconds: float | None = Field(default=None, ge=0)
    after_chunks: int = Field(default=0, ge=0)


class ScriptLine(_Keyed):
    """One answer. Its pieces are the reasoning, the text in `chunks` parts, then each tool call.

    `{instruction}` in the text or in an argument object stands for the last user message. In the text `{tool_result}`
    stands for the last tool result, if there is one, `{earlier}` for the user's messages before the last, and `{files}`
    for what the model was shown of each file, or `nothing`.
    """

    text: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ScriptCall, ...] = ()
    chunks: int = Field(default=1, ge=1, le=10_000)
    delay_seconds: float = Field(default=0, ge=0, le=3600)
    """Delay before each piece, and before an error or the end of an answer without pieces."""
    usage: JsonObject | None = None
    """Token counts; counted in words if not given."""
    response_cost: float | None = None
    finish_reason: str | None = None
    error: ScriptError | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.text is None and self.reasoning is None and not self.tool_calls and self.error is None:
            raise ValueError("a line needs text (which may be empty), reasoning, tool_calls or error")
        return self


class ScriptAttempts(_Keyed):
    """A step with a line for each attempt; the last one serves all further attempts."""

    attempts: tuple[ScriptLine, ...] = Field(min_length=1)


def _step_kind(value: object) -> str:
    if isinstance(value, ScriptAttempts):
        return "attempts"
    return "attempts" if isinstance(value, Mapping) and "attempts" in value else "line"


ScriptStep = Annotated[
    Annotated[ScriptLine, Tag("line")] | Annotated[ScriptAttempts, Tag("attempts")], Discriminator(_step_kind)
]


class ScriptSteps(_Keyed):
    """A script as a list of steps; `repeat` says how steps beyond the last one are answered."""

    name: str | None = None
    steps: tuple[ScriptStep, ...] = Field(min_length=1)
    repeat: Literal["last", "cycle", "error"] = "last"

    def __call__(self, request: ModelRequest) -> ScriptLine:
        """The line for a step and attempt; past the end `repeat` counts, or it raises `script_exhausted`."""
        index, count = request.step - 1, len(self.steps)
        if index >= count and self.repeat == "error":
            message = f"{request.config.model} has {count} steps and was asked for step {request.step}"
            raise ModelError("script_exhausted", message, retryable=False)
        step = self.steps[index % count if self.repeat == "cycle" else min(index, count - 1)]
        if isinstance(step, ScriptLine):
            return step
        return step.attempts[min(request.attempt, len(step.attempts)) - 1]


Script = Callable[[ModelRequest], ScriptLine | AsyncIterator[ModelEvent]]


def closest_first(word: str, known: list[str]) -> list[str]:
    """`known` with the words most like `word` first, the others in their order."""
    close = difflib.get_close_matches(word, known, n=3)
    return [*close, *(k for k in known if k not in close)]
