"""Asking the model, again where that can help, with every attempt recorded (protocol §7.9).

The ledger counts the failures of a step, so that neither a restart of the worker nor of the engine gives a model more
attempts than `StepLimits.model_attempts`. Waiting between attempts holds no connection.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from activities.chunks import ChunkWriter
from activities.models.answer import AnswerDraft, ModelAnswer, collect
from schema.base import JsonObject
from schema.errors import ModelError
from schema.events import Address
from schema.ids import AgentTurnId, StepId
from schema.ports import Model, ModelMessage, ModelRequest, Publisher
from schema.profiles import LlmConfig


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
class Attempts:
    """What asking has cost so far; ends up in the step's metadata."""

    records: list[JsonObject] = field(default_factory=list[JsonObject])
    draft: AnswerDraft | None = None
    """The answer that is being streamed: a stop keeps what it has."""

    def add(self, number: int, model: str, started: float, draft: AnswerDraft, error_code: str | None) -> None:
        """Record one attempt: figures and codes, never content."""
        done = draft.done
        record: JsonObject = {
            "attempt": number,
            "model": model,
            "duration_ms": _millis(time.monotonic() - started),
            "first_token_ms": None if draft.first_token_seconds is None else _millis(draft.first_token_seconds),
            "usage": {} if done is None else done.usage,
            "usage_kind": "unknown" if done is None else done.usage_kind,
            "response_cost": None if done is None else done.response_cost,
        }
        if error_code is not None:
            record["error_code"] = error_code
        self.records.append(record)

    def metadata(self) -> JsonObject:
        """`llm_usage` and `llm_response_cost` over all attempts, and the attempts one by one."""
        usage: dict[str, float] = {}
        for record in self.records:
            counts = record["usage"]
            for name, count in counts.items() if isinstance(counts, dict) else ():
                if isinstance(count, int | float):
                    usage[name] = usage.get(name, 0) + count
        costs = [cost for record in self.records if isinstance(cost := record["response_cost"], int | float)]
        return {
            "llm_usage": dict(usage),
            "llm_response_cost": sum(costs) if costs else None,
            "attempts": list(self.records),
        }


async def ask(
    model: Model,
    publisher: Publisher,
    question: Question,
    limits: StepLimits,
    attempts: Attempts,
    first: tuple[int, int],
    count_failure: Callable[[], Awaitable[tuple[int, int]]],
) -> ModelAnswer:
    """The answer; raises the last `ModelError` when no further attempt may or can help.

    `first` is the number of this stream and of the failures before it; `count_failure` counts one more in the ledger
    and gives the next pair, or raises `StaleTurn`.
    """
    number, failures = first
    while True:
        try:
            return await _attempt(model, publisher, question, limits, attempts, number)
        except ModelError as error:
            if not error.retryable or failures + 1 >= limits.model_attempts:
                raise
            number, failures = await count_failure()
            await asyncio.sleep(limits.pause(failures, error.retry_after))


async def _attempt(
    model: Model, publisher: Publisher, question: Question, limits: StepLimits, attempts: Attempts, number: int
) -> ModelAnswer:
    timeout = question.config.timeout_seconds or limits.model_timeout_seconds
    request = ModelRequest(question.config, question.messages, question.tools, question.step, number, timeout)
    draft, started, code = AnswerDraft(), time.monotonic(), None
    attempts.draft = draft
    async with ChunkWriter(publisher, question.address, question.turn, question.step_id, number) as chunks:
        try:
            answer = await collect(model.stream(request), draft, timeout_seconds=timeout, on_delta=chunks.add)
            await chunks.end(usage=answer.usage, response_cost=answer.response_cost)
        except ModelError as error:
            code = error.code
            await chunks.end(error_code=code)
            raise
        else:
            return answer
        finally:
            attempts.add(number, question.config.model, started, draft, code)


def _millis(seconds: float) -> int:
    return round(seconds * 1000)
