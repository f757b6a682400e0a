"""Sends a step's request to the model, with retries, and records every attempt (protocol §7.9).

The ledger counts the failures of a step, so that a restart of worker or engine allows no more attempts than
`StepLimits.model_attempts`. No database connection is held between attempts. The caller owns the records, and the draft
of an unfinished attempt: see `Attempts`. Each attempt has a span, `chat`, below its step's (docs/observability.md).
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import TypeAdapter, ValidationError
from temporalio.exceptions import ApplicationError

from turnstile.activities.budgets.gate import (
    NOT_SENT,
    BudgetExhausted,
    BudgetGate,
    answer_tokens,
    attempt_use,
    estimated,
)
from turnstile.activities.prompt.chunks import GATHER_SECONDS, ChunkWriter
from turnstile.activities.prompt.model_queues import NO_TURN, RATE_LIMITED, ModelQueues, Pass
from turnstile.rules.answer import EMPTY_ANSWER, AnswerDraft, ModelAnswer, collect
from turnstile.rules.arguments import Patience
from turnstile.rules.model_queue import LONGEST_PAUSE
from turnstile.runtime import gen_ai, span_content
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.ports import Model, ModelEvent, ModelFile, ModelMessage, ModelRequest, ModelToolCall, Publisher
from turnstile.runtime.telemetry import SILENT, Metric, Span, Telemetry, Tracer, step_traceparent
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import DEFAULT_MAX_TOKENS
from turnstile.schema.errors import ModelError, ServerUnavailable, StaleTurn
from turnstile.schema.ids import AgentTurnId, ArtifactId, BoxId, StepId
from turnstile.schema.profiles import OUTPUT_REPAIRS, LlmConfig
from turnstile.schema.step_metadata import ATTEMPT_CANCELED
from turnstile.schema.tools import INLINE_RESULT_CHARS
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import Message, TurnAddress

log = logging.getLogger(__name__)

_RECORDS: TypeAdapter[list[JsonObject]] = TypeAdapter(list[JsonObject])
_HEARTBEAT_RECORDS = 24
"""Attempt records sent with each heartbeat; each takes about 250 of the 16 KiB that a heartbeat may hold."""
MOST_FAULTS = 4
"""How often a step may fail in our own code, by errors that differ; the same one twice is enough to end its turn."""
_FAULTS = "faults"
LOST = "attempt_lost"
"""`error_code` of an attempt whose worker died during it."""


@dataclass(frozen=True, slots=True)
class Question:
    """The request of one step, the same for all its attempts."""

    turn: AgentTurnId
    step_id: StepId
    step: int
    config: LlmConfig
    messages: tuple[ModelMessage, ...]
    tools: tuple[JsonObject, ...]
    address: TurnAddress
    agent_name: str = ""
    """The profile by whose name people know the agent."""
    box: BoxId | None = None
    """The turn's output box."""
    may_be_blank: bool = False
    """Whether an answer with neither text nor calls is one: an agent that is a listener hears `huh` then (§9)."""
    heard: bool = True
    """Whether the answer is of the turn: streamed on, and kept where the turn is stopped in its midst."""
    output_schema: JsonObject | None = None
    """As in `ModelRequest`."""
    files: Mapping[ArtifactId, ModelFile] = field(default_factory=dict[ArtifactId, ModelFile])
    """As in `ModelRequest`."""

    def request(self, attempt: int, timeout_seconds: float) -> ModelRequest:
        """The request of one attempt."""
        return ModelRequest(
            self.config,
            self.messages,
            self.tools,
            self.step,
            attempt,
            timeout_seconds,
            output_schema=self.output_schema,
            files=self.files,
        )


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of a step, from `[worker]` and `[model]`; times in seconds."""

    max_steps: int = 16
    model_timeout_seconds: float = 120.0
    model_attempts: int = 4
    retry_initial_seconds: float = 1.0
    retry_max_seconds: float = 30.0
    fallback_patience_seconds: float = 10.0
    """How long a step waits for a model in all, before it asks the next one of `llm_config.fallbacks`."""
    model_patience_seconds: float = 600.0
    """As that, where there is no other model: then the turn fails."""
    patience: Patience = field(default_factory=Patience)
    max_step_attempts: int = 25
    """Attempts at one step, crashes included, before its turn fails: a step must not kill workers for ever."""
    gather_seconds: float = GATHER_SECONDS
    """How long streamed text is gathered for one chunk; 0: each piece is published as it comes."""
    inline_result_chars: int = INLINE_RESULT_CHARS
    """The longest result of a call that a model sees whole."""
    output_repairs: int = OUTPUT_REPAIRS
    """How often a model may try again after an answer that its schema refuses."""
    budget_max_tokens: int = DEFAULT_MAX_TOKENS
    """The most tokens of an answer in a turn with a budget, where the profile gives no limit."""

    def pause(self, failures: int, retry_after: float | None) -> float:
        """Seconds to wait after this many failures; `asked`, the provider's Retry-After, counts up to five minutes."""
        delay = min(self.retry_initial_seconds * 2 ** (failures - 1), self.retry_max_seconds)
        return delay if retry_after is None else min(max(retry_after, delay), 300.0)


class _Unheard:
    """A publisher for what nobody shall hear."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Do nothing."""

    async def emit(self, message: Message) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _Attempt:
    """The latest attempt."""

    number: int
    config: LlmConfig
    """What was sent, which a budget may have lowered."""
    started: float
    draft: AnswerDraft
    began: int
    """In nanoseconds since 1970."""
    heard: bool
    ended: bool = False

    @property
    def model(self) -> str:
        """`provider/model`."""
        return self.config.model

    def record(self, error_code: str | None) -> JsonObject:
        end = self.draft.done
        first_token = self.draft.first_token_seconds
        record: JsonObject = {
            "attempt": self.number,
            "model": self.model,
            "duration_ms": _millis(time.monotonic() - self.started),
            "first_token_ms": None if first_token is None else _millis(first_token),
            "usage": {} if end is None else end.usage,
            "usage_kind": "unknown" if end is None else end.usage_kind,
            "response_cost": None if end is None else end.response_cost,
        }
        if not self.heard:
            record["summary"] = True
        if error_code is not None:
            record["error_code"] = error_code
        return record


@dataclass(slots=True)
class Attempts:
    """Records of a step's attempts, for the step's metadata, and the draft of the latest one.

    The caller owns it, so it outlives a failure and a cancellation. `heartbeat_details` are the details of a heartbeat,
    which `Attempts.resumed` reads when another worker continues the step. Records hold numbers and codes only.
    """

    records: list[JsonObject] = field(default_factory=list[JsonObject])
    faults: list[str] = field(default_factory=list[str])
    """Digests of the errors of our own code that left the step."""
    _current: _Attempt | None = None

    @classmethod
    def resumed(cls, heartbeat_details: Sequence[object]) -> "Attempts":
        """The records in an earlier run's heartbeat; details of another version, which do not parse, are ignored."""
        try:
            records = _RECORDS.validate_python(heartbeat_details[0] if heartbeat_details else [])
        except ValidationError:
            return cls()
        faults = [names for record in records if isinstance(names := record.get(_FAULTS), list)]
        return cls([record for record in records if _FAULTS not in record], [str(n) for names in faults for n in names])

    def is_last_fault(self, error: Exception) -> bool:
        """Count an error that left the step, and say whether the step is not to be begun again for it.

        It is not where the same error has left it before, or `MOST_FAULTS` have. Not counted is what may pass by
        itself: a server that is down, and what the engine is to hear.
        """
        if isinstance(error, ServerUnavailable | StaleTurn | ApplicationError):
            return False
        name = hashlib.sha256(f"{type(error).__name__}: {error}".encode(errors="replace")).hexdigest()[:16]
        again = name in self.faults
        self.faults.append(name)
        return again or len(self.faults) >= MOST_FAULTS

    @property
    def draft(self) -> AnswerDraft | None:
        """The draft of the latest attempt, ended or not; None before the first one, and of one that is not heard."""
        return None if self._current is None or not self._current.heard else self._current.draft

    @property
    def empty(self) -> int:
        """How many of the answers were empty: a model that says nothing has one more try."""
        return sum(record.get("error_code") == EMPTY_ANSWER for record in self.records)

    def begin(self, number: int, config: LlmConfig, *, heard: bool = True) -> AnswerDraft:
        """Begin an attempt; returns its empty draft."""
        self._current = _Attempt(number, config, time.monotonic(), AnswerDraft(), time.time_ns(), heard)
        return self._current.draft

    def end(self, error_code: str | None) -> None:
        """End the latest attempt and append its record; does nothing if it has ended."""
        if self._current is not None and not self._current.ended:
            self.records.append(self._current.record(error_code))
            self._current.ended = True

    def give_up(self, number: int, config: LlmConfig, code: str = NOT_SENT, *, heard: bool = True) -> None:
        """Record an attempt that was not sent, and may have reserved what it would have used; the draft stays."""
        attempt = _Attempt(number, config, time.monotonic(), AnswerDraft(), time.time_ns(), heard, ended=True)
        self.records.append(attempt.record(code))

    def record(self, telemetry: Telemetry, question: Question) -> None:
        """Record metrics of the latest attempt, and a span below its step's, once it has ended."""
        if (attempt := self._current) is not None and attempt.ended:
            _record_attempt(telemetry, question, attempt, self.records[-1])

    def heartbeat_details(self) -> list[JsonObject]:
        """The newest records for a heartbeat; a running attempt counts as lost until a later heartbeat has its end."""
        current = self._current
        open_one = [current.record(LOST)] if current is not None and not current.ended else []
        faults: list[JsonObject] = [{_FAULTS: [*self.faults]}] if self.faults else []
        return [*[*self.records, *open_one][-_HEARTBEAT_RECORDS:], *faults]

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
    gate: BudgetGate | None = None,
    queues: ModelQueues | None = None,
) -> ModelAnswer:
    """Ask the model until it answers; raises the last `ModelError` if no further attempt is allowed or can help.

    With `queues` each attempt first waits for its turn, where its model is limited. With a `gate` it then reserves what
    it may use; raises what `BudgetGate.admit` does. `first` is the
    number of the first attempt and of the failures before it; `count_failure` counts one more in the ledger and returns
    the next pair, or raises `StaleTurn`. After a cancellation
    `attempts.draft` has the partial answer.
    """
    number, failures = first
    timeout = question.config.timeout_seconds or limits.model_timeout_seconds
    request = question.request(number, timeout)
    chain = _Chain(limits, [*question.config.fallbacks], failures, shares_pauses=queues is not None)
    tokens = 0 if gate is None else await gate.tokens(request)
    while True:
        sends = partial(
            _send, model, publisher, question, limits, attempts, tokens=tokens, telemetry=telemetry, gate=gate
        )
        try:
            if queues is None:
                answer = await sends(request)
            else:
                passed = await _turn_of(queues, request, tokens, question, attempts, chain, gate)
                answer = await _pass_on(passed, sends, request, attempts)
        except BudgetExhausted:
            raise
        except ModelError as error:
            if gate is not None and error.retryable:
                gate.check_time()
            pause, other = chain.after(error, again=attempts.empty < 2)
            number, _ = await count_failure()
            if other is not None:
                failed = (request.config.model, error.code)
                log.info("turn %s: %s failed with %s: %s is asked", question.turn, *failed, other)
                request = replace(request, config=_as_fallback(question.config, other))
                tokens = 0 if gate is None else await gate.tokens(request)
            await asyncio.sleep(pause if gate is None else gate.within(pause))
        else:
            return replace(answer, model=request.config.model)
        request = replace(request, attempt=number)


def pauses_others(error: ModelError) -> bool:
    """Whether a provider wants no requests for a while: it says so by 429, or by another refusal with a delay."""
    return error.code == RATE_LIMITED or (error.code == "model_overloaded" and error.retry_after is not None)


async def _turn_of(
    queues: ModelQueues,
    request: ModelRequest,
    tokens: int,
    question: Question,
    attempts: Attempts,
    chain: "_Chain",
    gate: BudgetGate | None,
) -> Pass:
    """Wait for the turn of an attempt; raises `ModelError` if that takes too long, and as `BudgetGate.check_time`."""
    model, patience = request.config.model, chain.patience_left()
    seconds = patience if gate is None else gate.within(patience)
    if queues.has_rate(model):
        tokens = (tokens or estimated(request)) + answer_tokens(request.config, chain.limits.budget_max_tokens)
    began = time.monotonic()
    try:
        return await queues.enter(model, question.address.project_id, tokens, seconds)
    except ModelError as error:
        if gate is not None and seconds < patience and not chain.others:
            await asyncio.sleep(gate.within(seconds))
            gate.check_time()
        attempts.give_up(request.attempt, request.config, RATE_LIMITED, heard=question.heard)
        raise chain.out_of_patience(error) from None
    finally:
        chain.waited += time.monotonic() - began


FALLS_BACK = frozenset(
    {
        *("model_overloaded", "rate_limited", "model_server_error", "model_connection", "model_timeout"),
        *("model_stream_broken", "model_response_invalid", "context_window_exceeded"),
    }
)
"""Codes that lead to the next model, once the attempts at this one or the patience with it are used up."""


@dataclass(slots=True)
class _Chain:
    """The models of one question, and how often and how long the one that is asked was waited for."""

    limits: StepLimits
    others: list[str]
    """Those that come after it."""
    failures: int
    shares_pauses: bool = False
    """Whether attempts wait for their turn instead, after a provider has asked for a pause."""
    waited: float = 0.0
    is_out_of_patience: bool = False
    first: ModelError | None = None
    """Why the first model was given up; None while it is asked."""

    def patience_left(self) -> float:
        """How long the model that is asked may still be waited for, in seconds."""
        most = self.limits.fallback_patience_seconds if self.others else self.limits.model_patience_seconds
        return max(0.0, most - self.waited)

    def out_of_patience(self, error: ModelError) -> ModelError:
        """The error of an attempt that did not have its turn in time: another model is asked, or the turn fails."""
        self.is_out_of_patience = True
        if self.others:
            return error
        seconds = f"{amount(self.limits.model_patience_seconds)} s"
        return ModelError(NO_TURN, f"{error}: [model].patience_seconds, {seconds}", retryable=True)

    def after(self, error: ModelError, *, again: bool) -> tuple[float, str | None]:
        """The pause before the next attempt, and the model that it asks, if that is another one.

        `again`: whether the same one may be asked.

        Raises the error if no attempt can help, or why the first model was given up.
        """
        if self.shares_pauses and pauses_others(error):
            asks = min(error.retry_after or 0.0, LONGEST_PAUSE)
            if not self.is_out_of_patience and (not self.others or asks <= self.patience_left()):
                return 0.0, None
        else:
            self.failures += 1
            if error.retryable and again and self.failures < self.limits.model_attempts and error.code != NO_TURN:
                pause = self.limits.pause(self.failures, error.retry_after)
                if not self.others or self.waited + pause <= self.limits.fallback_patience_seconds:
                    self.waited += pause
                    return pause, None
        leads = error.code in FALLS_BACK or self.first is not None
        if not leads or not self.others:
            raise self.first or error
        self.first = self.first or error
        self.failures, self.waited, self.is_out_of_patience = 0, 0.0, False
        return 0.0, self.others.pop(0)


def _as_fallback(config: LlmConfig, model: str) -> LlmConfig:
    """The configuration for another model, which leaves out what that does not take."""
    return config.model_copy(update={"model": model, "params": {**config.params, "drop_params": True}})


async def _pass_on(
    passed: Pass, sends: Callable[..., Awaitable[ModelAnswer]], request: ModelRequest, attempts: Attempts
) -> ModelAnswer:
    """Send a request whose turn it is, and say what came of it to those that wait."""
    try:
        return await sends(replace(request, before_send=passed.before_send), passed)
    except ModelError as error:
        if pauses_others(error) and passed.reached_provider and not passed.is_held:
            passed.refused(error.retry_after)
        raise
    finally:
        used = attempt_use(attempts.records[-1], {}) if passed.reached_provider else None
        passed.end(None if used is None else used.tokens)


async def _send(
    model: Model,
    publisher: Publisher,
    question: Question,
    limits: StepLimits,
    attempts: Attempts,
    request: ModelRequest,
    passed: Pass | None = None,
    *,
    tokens: int,
    telemetry: Telemetry,
    gate: BudgetGate | None,
) -> ModelAnswer:
    admitted = request if gate is None else await _admitted(gate, request, tokens, question, attempts)
    return await _attempt(model, publisher, question, limits, attempts, admitted, telemetry, passed)


async def _admitted(
    gate: BudgetGate, request: ModelRequest, tokens: int, question: Question, attempts: Attempts
) -> ModelRequest:
    try:
        return await gate.admit(request, tokens, summary=not question.heard)
    except (asyncio.CancelledError, ServerUnavailable):  # it may have reserved
        attempts.give_up(request.attempt, request.config, heard=question.heard)
        raise


async def _attempt(
    model: Model,
    publisher: Publisher,
    question: Question,
    limits: StepLimits,
    attempts: Attempts,
    request: ModelRequest,
    telemetry: Telemetry,
    passed: Pass | None,
) -> ModelAnswer:
    timeout, number = request.timeout_seconds, request.attempt
    draft, code = attempts.begin(number, request.config, heard=question.heard), None
    async with ChunkWriter(
        publisher if question.heard else _Unheard(),
        question.address,
        question.turn,
        question.step_id,
        number,
        gather_seconds=limits.gather_seconds,
    ) as chunks:
        try:
            await model.check(request.config.model)  # loads its client, for which the model's time does not pay
            request.before_send()
            events = model.stream(request) if passed is None else _heard(model.stream(request), passed)
            answer = await collect(events, draft, timeout_seconds=timeout, on_delta=chunks.add)
            flaw = answer.flaw(request.config.model)
            if flaw is not None and not (question.may_be_blank and flaw.code == EMPTY_ANSWER):
                raise flaw
            await chunks.end(usage=answer.usage, response_cost=answer.response_cost, truncated=answer.truncated)
        except ModelError as error:
            code = NOT_SENT if passed is not None and passed.is_held else error.code
            await chunks.end(error_code=code)
            if code == NOT_SENT != error.code:  # as the model's library says it
                raise ModelError(RATE_LIMITED, str(error), retryable=True) from None
            raise
        except asyncio.CancelledError:
            code = ATTEMPT_CANCELED
            raise
        else:
            return answer
        finally:
            attempts.end(code)
            attempts.record(telemetry, question)


async def _heard(events: AsyncIterator[ModelEvent], passed: Pass) -> AsyncGenerator[ModelEvent, None]:
    """The events of an answer, whose first one shows that the provider has accepted the request."""
    try:
        async for event in events:
            passed.accepted()
            yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


def _record_attempt(telemetry: Telemetry, question: Question, attempt: _Attempt, record: JsonObject) -> None:
    end, first_token = attempt.draft.done, attempt.draft.first_token_seconds
    code = record.get("error_code")
    error_code = code if isinstance(code, str) else None
    usage = {} if end is None else end.usage
    tokens = {
        way: count
        for way, name in (("input", "prompt_tokens"), ("output", "completion_tokens"))
        if isinstance(count := usage.get(name), int | float)
    }
    cost = None if end is None else end.response_cost
    if (meter := telemetry.meter).enabled:
        meter.count(Metric.MODEL_ATTEMPTS, model=attempt.model, error_code=error_code or "none")
        meter.observe(Metric.MODEL_SECONDS, time.monotonic() - attempt.started, model=attempt.model)
        if first_token is not None:
            meter.observe(Metric.FIRST_TOKEN, first_token, model=attempt.model)
        for way, count in tokens.items():
            meter.count(Metric.MODEL_TOKENS, count, model=attempt.model, direction=way)
        if cost:
            meter.count(Metric.MODEL_COST, cost, model=attempt.model)
    if telemetry.tracer.enabled:
        what = (attempt.config, attempt.number, attempt.began, attempt.draft)
        record_chat(telemetry.tracer, question, *what, error_code)


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


def record_chat(
    tracer: Tracer,
    question: Question,
    config: LlmConfig,
    number: int,
    began: int,
    draft: AnswerDraft,
    error_code: str | None,
) -> None:
    """Record the attempt of this number, which ended now. `config` is what was sent: a budget may have lowered it."""
    under = step_traceparent(question.address.context, question.step_id)
    if under is None:
        return
    attributes: Attributes = {
        **gen_ai.requested(config.model, {**config.provider_params, **config.model_dump(exclude_none=True)}),
        **gen_ai.agent(question.address.agent_id, question.agent_name),
        **gen_ai.conversation(question.address.context, question.box),
        "turnstile.agent_turn_id": question.turn,
        "turnstile.step_id": question.step_id,
        "turnstile.attempt": number,
        **_answered(draft),
    }
    if tracer.clear is not None:
        attributes |= _content(question, draft, tracer.clear)
    name, what = gen_ai.operation("chat", str(attributes["gen_ai.request.model"]))
    traceparent = headers.derived_span(under, f"{question.step_id}-a{number}") or under
    tracer.record(
        Span(name, traceparent, headers.span_id(under), began, time.time_ns(), what | attributes, error_code, "client")
    )


def _answered(draft: AnswerDraft) -> Attributes:
    """What is known of the answer, as far as it came."""
    attributes: Attributes = {}
    if draft.first_token_seconds is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = draft.first_token_seconds
    if (end := draft.done) is None:
        return attributes
    attributes["gen_ai.response.finish_reasons"] = (end.finish_reason,)
    named = {
        "gen_ai.response.id": end.response_id,
        "turnstile.response_cost": end.response_cost,
    }
    attributes |= {name: value for name, value in named.items() if value is not None}
    return attributes | gen_ai.usage_attributes(end.usage) | gen_ai.server(end.server)


def _content(question: Question, draft: AnswerDraft, clear: span_content.Clear) -> Attributes:
    calls = [
        ModelToolCall(id=call.provider_call_id or "", name=call.name, arguments=call.arguments_text)
        for call in draft.calls
    ]
    reason = "error" if draft.done is None else draft.done.finish_reason
    attributes = span_content.asked(question.messages, clear)
    return attributes | span_content.answered(draft.text, calls, reason, clear)
