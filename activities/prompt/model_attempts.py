"""Asking the model, again where that can help, with every attempt recorded (protocol §7.9).

The ledger counts the failures of a step, so that neither a restart of the worker nor of the engine gives a model more
attempts than `StepLimits.model_attempts`. Waiting between attempts holds no connection. The attempts themselves, and
what an unfinished one has said so far, are the caller's: see `Attempts`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from turnstile.activities.models.answer import AnswerDraft, ModelAnswer, collect
from turnstile.activities.models.provider_errors import CONTENT_FILTERED
from turnstile.activities.prompt.chunks import ChunkWriter
from turnstile.runtime.ports import Model, ModelMessage, ModelRequest, Publisher
from turnstile.runtime.telemetry import SILENT, Attribute, Metric, Span, Telemetry, step_place
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import AgentTurnId, StepId
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import Address

_RECORDS: TypeAdapter[list[JsonObject]] = TypeAdapter(list[JsonObject])
_TOLD_RECORDS = 24
"""How many attempts a heartbeat tells: each takes some 250 bytes of the 16 KiB that Temporal is given."""
LOST = "attempt_lost"
"""`error_code` of an attempt whose worker went away in its middle."""
CANCELED = "canceled"
"""`error_code` of an attempt that was cancelled in its middle."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of a step, from `[worker]` and `[model]`; times in seconds."""

    max_steps: int = 16
    model_timeout_seconds: float = 120.0
    model_attempts: int = 4
    retry_initial_seconds: float = 1.0
    retry_max_seconds: float = 30.0
    suspend_timeout_seconds: float = 120.0
    max_step_attempts: int = 25
    """Streams of one step, crashes included, before the step is given up: a step must not kill workers for ever."""

    def pause(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after that many failures; a provider's Retry-After is honoured up to five minutes."""
        own = min(self.retry_initial_seconds * 2 ** (failures - 1), self.retry_max_seconds)
        return own if asked is None else min(max(asked, own), 300.0)


@dataclass(frozen=True, slots=True)
class Question:
    """One step's question, whichever attempt asks it."""

    turn: AgentTurnId
    step_id: StepId
    step: int
    config: LlmConfig
    messages: tuple[ModelMessage, ...]
    tools: tuple[JsonObject, ...]
    address: Address


@dataclass(slots=True)
class _Attempt:
    """An attempt in hand."""

    number: int
    model: str
    started: float
    draft: AnswerDraft
    began: int
    """In nanoseconds since 1970."""
    ended: bool = False

    def record(self, error_code: str | None) -> JsonObject:
        done = self.draft.done
        first_token = self.draft.first_token_seconds
        record: JsonObject = {
            "attempt": self.number,
            "model": self.model,
            "duration_ms": _millis(time.monotonic() - self.started),
            "first_token_ms": None if first_token is None else _millis(first_token),
            "usage": {} if done is None else done.usage,
            "usage_kind": "unknown" if done is None else done.usage_kind,
            "response_cost": None if done is None else done.response_cost,
        }
        if error_code is not None:
            record["error_code"] = error_code
        return record


@dataclass(slots=True)
class Attempts:
    """What asking has cost so far, and what the attempt in hand has said; ends up in the step's metadata.

    The caller owns it, so it outlives a failure and a cancellation. `told` goes out with each heartbeat, and
    `Attempts.resumed` takes it in again where another worker goes on. Figures and codes only, never content.
    """

    records: list[JsonObject] = field(default_factory=list[JsonObject])
    _current: _Attempt | None = None

    @classmethod
    def resumed(cls, heartbeat_details: Sequence[object]) -> "Attempts":
        """Those that an earlier run of the activity told; what does not parse is of another version, and left out."""
        try:
            return cls(_RECORDS.validate_python(heartbeat_details[0] if heartbeat_details else []))
        except ValidationError:
            return cls()

    @property
    def draft(self) -> AnswerDraft | None:
        """What the latest attempt has said so far, whether it ended or not; None before the first one."""
        return None if self._current is None else self._current.draft

    def begin(self, number: int, model: str) -> AnswerDraft:
        """A new attempt; its draft is to be filled."""
        self._current = _Attempt(number, model, time.monotonic(), AnswerDraft(), time.time_ns())
        return self._current.draft

    def end(self, error_code: str | None) -> None:
        """The attempt in hand is over."""
        if self._current is not None and not self._current.ended:
            self.records.append(self._current.record(error_code))
            self._current.ended = True

    def record(self, telemetry: Telemetry, question: "Question") -> None:
        """Tell of the attempt that is over: figures, and a span below its step's."""
        if (attempt := self._current) is not None and attempt.ended:
            _record_attempt(telemetry, question, attempt, self.records[-1])

    def told(self) -> list[JsonObject]:
        """The newest records, and the attempt in hand as one that is lost unless its end is told later."""
        current = self._current
        open_one = [current.record(LOST)] if current is not None and not current.ended else []
        return [*self.records, *open_one][-_TOLD_RECORDS:]

    def spent(self) -> tuple[JsonObject, float | None]:
        """Tokens by the provider's names and the cost in US dollars, over all attempts; None if no cost is known."""
        usage: dict[str, float] = {}
        for record in self.records:
            counts = record.get("usage")
            for name, count in counts.items() if isinstance(counts, dict) else ():
                if isinstance(count, int | float):
                    usage[name] = usage.get(name, 0) + count
        costs = [cost for record in self.records if isinstance(cost := record.get("response_cost"), int | float)]
        return {**usage}, sum(costs) if costs else None


async def ask(
    model: Model,
    publisher: Publisher,
    question: Question,
    limits: StepLimits,
    attempts: Attempts,
    first: tuple[int, int],
    count_failure: Callable[[], Awaitable[tuple[int, int]]],
    telemetry: Telemetry = SILENT,
) -> ModelAnswer:
    """The answer; raises the last `ModelError` when no further attempt may or can help.

    `first` is the number of this stream and of the failures before it; `count_failure` counts one more in the ledger
    and gives the next pair, or raises `StaleTurn`. Cancelled, it leaves what had come in `attempts.draft`.
    """
    number, failures = first
    while True:
        try:
            return await _attempt(model, publisher, question, limits, attempts, number, telemetry)
        except ModelError as error:
            if not error.retryable or failures + 1 >= limits.model_attempts:
                raise
            number, failures = await count_failure()
            await asyncio.sleep(limits.pause(failures, error.retry_after))


async def _attempt(
    model: Model,
    publisher: Publisher,
    question: Question,
    limits: StepLimits,
    attempts: Attempts,
    number: int,
    telemetry: Telemetry,
) -> ModelAnswer:
    timeout = question.config.timeout_seconds or limits.model_timeout_seconds
    request = ModelRequest(question.config, question.messages, question.tools, question.step, number, timeout)
    draft, code = attempts.begin(number, question.config.model), None
    async with ChunkWriter(publisher, question.address, question.turn, question.step_id, number) as chunks:
        try:
            answer = await collect(model.stream(request), draft, timeout_seconds=timeout, on_delta=chunks.add)
            _check_filter(answer, question.config.model)
            await chunks.end(usage=answer.usage, response_cost=answer.response_cost, truncated=answer.truncated)
        except ModelError as error:
            code = error.code
            await chunks.end(error_code=code)
            raise
        except asyncio.CancelledError:
            code = CANCELED
            raise
        else:
            return answer
        finally:
            attempts.end(code)
            attempts.record(telemetry, question)


def _record_attempt(telemetry: Telemetry, question: Question, attempt: _Attempt, record: JsonObject) -> None:
    done, first_token = attempt.draft.done, attempt.draft.first_token_seconds
    code = record.get("error_code")
    error_code = code if isinstance(code, str) else None
    usage = {} if done is None else done.usage
    tokens = {
        way: count
        for way, name in (("input", "prompt_tokens"), ("output", "completion_tokens"))
        if isinstance(count := usage.get(name), int | float)
    }
    cost = None if done is None else done.response_cost
    if (meter := telemetry.meter).enabled:
        meter.count(Metric.MODEL_ATTEMPTS, model=attempt.model, error_code=error_code or "none")
        meter.observe(Metric.MODEL_SECONDS, time.monotonic() - attempt.started, model=attempt.model)
        if first_token is not None:
            meter.observe(Metric.FIRST_TOKEN, first_token, model=attempt.model)
        for way, count in tokens.items():
            meter.count(Metric.MODEL_TOKENS, count, model=attempt.model, direction=way)
        if cost:
            meter.count(Metric.MODEL_COST, cost, model=attempt.model)
    context = question.address.context
    if telemetry.tracer.enabled and (under := step_place(context, question.step_id)):
        attributes: dict[str, Attribute] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": attempt.model,
            "turnstile.agent_turn_id": question.turn,
            "turnstile.step_id": question.step_id,
            "turnstile.attempt": attempt.number,
            **{f"gen_ai.usage.{way}_tokens": count for way, count in tokens.items()},
        }
        if cost is not None:
            attributes["turnstile.response_cost"] = cost
        if first_token is not None:
            attributes["turnstile.first_token_ms"] = _millis(first_token)
        own = headers.derived_span(under, f"{question.step_id}-a{attempt.number}") or under
        times = (attempt.began, time.time_ns())
        telemetry.tracer.record(Span("chat", own, headers.span_id(under), *times, attributes, error_code, "client"))


def _check_filter(answer: ModelAnswer, model: str) -> None:
    """A filter that ends a stream leaves half an answer, or none: that is no answer."""
    if answer.finish_reason == "content_filter":
        message = f"{model}: the provider's content filter ended the answer"
        raise ModelError(CONTENT_FILTERED, message, retryable=False)


def _millis(seconds: float) -> int:
    return round(seconds * 1000)
