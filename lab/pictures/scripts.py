"""The scripted models of the demo project: what its agents say, in words that one would read at work.

A turn is recognized by its instruction (`plays.py`); what is no play is answered in one step, from the instruction's
words alone. Tokens are those that a model would count for a prompt of this size, and cost follows from them.
"""

import zlib
from collections.abc import Mapping
from decimal import Decimal

from lab.pictures.plays import PLAYS, Line
from turnstile.activities.models import Script, ScriptLine
from turnstile.activities.models.script import ScriptCall, ScriptError
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import ModelPrice

PRICES: Mapping[str, ModelPrice] = {
    "scripted/large": ModelPrice(input_per_million=Decimal(3), output_per_million=Decimal(15)),
    "scripted/small": ModelPrice(input_per_million=Decimal("0.25"), output_per_million=Decimal("1.25")),
}
"""US dollars per million tokens."""
_CHARACTERS_A_TOKEN = 4
_PROMPT_TOKENS = 1_450
_STEP_TOKENS = 380
_MICRO = 1_000_000
_FAILED_OF = 23
_SLOW_SECONDS = 0.3


def at_pace(pace: float) -> dict[str, Script]:
    """The models, whose short pauses take `pace` times as long; what streams for minutes still does."""

    def answer(request: ModelRequest) -> ScriptLine:
        line = _answer(request)
        slow = line.delay_seconds >= _SLOW_SECONDS
        return line if slow else line.model_copy(update={"delay_seconds": line.delay_seconds * pace})

    return {"large": answer, "small": answer}


def _answer(request: ModelRequest) -> ScriptLine:
    """The line of the play that was asked for last, for this step and attempt."""
    said = [each.content for each in request.messages if each.role == "user"]
    asked = next((each for each in reversed(said) if each in PLAYS), None)
    if asked is None:
        return _everyday(request, said[-1] if said else "")
    steps = PLAYS[asked]
    step = steps[min(request.step, len(steps)) - 1]
    tried = (step,) if isinstance(step, Line) else step
    return _line(request, tried[min(request.attempt, len(tried)) - 1])


def _line(request: ModelRequest, line: Line) -> ScriptLine:
    calls = tuple(ScriptCall(name=name, arguments=arguments) for name, arguments in line.calls)
    said = len(line.text) + sum(len(str(arguments)) for _, arguments in line.calls)
    error = (
        None if line.error is None else ScriptError(code=line.error, retryable=line.retryable, retry_after_seconds=0.4)
    )
    usage, cost = _usage(request, said // _CHARACTERS_A_TOKEN, line.read)
    return ScriptLine(
        text=line.text,
        tool_calls=calls,
        chunks=max(1, min(len(line.text), line.chunks)),
        delay_seconds=line.pause,
        usage=usage,
        response_cost=cost,
        error=error,
    )


def _everyday(request: ModelRequest, asked: str) -> ScriptLine:
    """An answer in one step; its size, and whether it fails, follow from the instruction's text."""
    drawn = zlib.crc32(asked.encode())
    if drawn % _FAILED_OF == 0:
        refused = ScriptError(code="content_filtered", message="the provider refused the request", retryable=False)
        return ScriptLine(error=refused)
    usage, cost = _usage(request, 160 + drawn % 700, drawn % 5_000)
    topic = asked.rstrip(".").partition(": ")[2] or asked
    return ScriptLine(text=f"Done: {topic}. The text is in the catalogue.", usage=usage, response_cost=cost)


def _usage(request: ModelRequest, answered: int, read: int) -> tuple[JsonObject, float]:
    """Tokens of a request and what they cost in US dollars."""
    prompt = _PROMPT_TOKENS + _STEP_TOKENS * (request.step - 1) + read
    counted: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
    }
    price = PRICES.get(request.config.model)
    return counted, 0.0 if price is None else price.cost(prompt, answered) / _MICRO


SCRIPTS: dict[str, Script] = at_pace(1.0)
