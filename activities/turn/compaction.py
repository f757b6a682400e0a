"""The summary of what a compaction cuts off a conversation (protocol §7.3): asked of a model, heard by nobody else.

A summary that fails is no failure of the turn: what was said is dropped, and the cut says why. Its tokens and cost are
those of its step.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from turnstile.activities.prompt.memory import Cut
from turnstile.activities.prompt.memory import question as summary_question
from turnstile.activities.prompt.model_attempts import Question, StepLimits, ask
from turnstile.activities.turn.current_step import CurrentStep
from turnstile.runtime.ports import Model
from turnstile.runtime.telemetry import Telemetry
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import LlmConfig, Memory
from turnstile.schema.wire.events import Message

log = logging.getLogger(__name__)


class _Unheard:
    """A publisher that publishes nothing: a summary's pieces are no part of the turn's answer."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish nothing."""

    async def emit(self, message: Message) -> None:
        """Publish nothing."""


async def summarize(
    model: Model,
    llm: LlmConfig,
    step: CurrentStep,
    cut: Cut,
    policy: Memory,
    limits: StepLimits,
    count_failure: Callable[[], Awaitable[tuple[int, int]]],
    telemetry: Telemetry,
) -> tuple[str | None, str | None]:
    """A summary of what is cut off, or None and the code of why there is none."""
    head = step.begun.head
    asked = Question(
        turn=step.turn.agent_turn_id,
        step_id=step.key,
        step=step.number,
        config=llm.model_copy(update={"model": policy.summary_model or llm.model}),
        messages=summary_question(cut, policy),
        tools=(),
        address=step.turn_events.address,
    )
    first = head.step_attempt, head.model_failures
    try:
        answer = await ask(model, _Unheard(), asked, limits, step.attempts, first, count_failure, telemetry)
    except ModelError as error:
        log.warning("turn %s: no summary of its conversation: %s", step.turn.agent_turn_id, error.code)
        return None, error.code
    return (answer.text, None) if answer.text.strip() else (None, "empty_summary")
