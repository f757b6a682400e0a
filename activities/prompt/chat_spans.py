"""The span of an attempt at a model, `chat`, below its step's (docs/observability.md)."""

import time

from turnstile.activities.prompt.question import Question
from turnstile.rules.answer import AnswerDraft
from turnstile.runtime import gen_ai, span_content
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.ports import ModelToolCall
from turnstile.runtime.telemetry import Span, Tracer, step_traceparent
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.wire import headers


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
        **gen_ai.requested(config.model, {**config.params, **config.model_dump(exclude_none=True)}),
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
    own = headers.derived_span(under, f"{question.step_id}-a{number}") or under
    tracer.record(
        Span(name, own, headers.span_id(under), began, time.time_ns(), what | attributes, error_code, "client")
    )


def _answered(draft: AnswerDraft) -> Attributes:
    """What is known of the answer, as far as it came."""
    found: Attributes = {}
    if draft.first_token_seconds is not None:
        found["gen_ai.response.time_to_first_chunk"] = draft.first_token_seconds
    if (done := draft.done) is None:
        return found
    found["gen_ai.response.finish_reasons"] = (done.finish_reason,)
    named = {
        "gen_ai.response.id": done.response_id,
        "turnstile.response_cost": done.response_cost,
    }
    found |= {name: value for name, value in named.items() if value is not None}
    return found | gen_ai.usage(done.usage) | gen_ai.server(done.server)


def _content(question: Question, draft: AnswerDraft, clear: span_content.Clear) -> Attributes:
    calls = [
        ModelToolCall(id=call.provider_call_id or "", name=call.name, arguments=call.arguments_text)
        for call in draft.calls
    ]
    reason = "error" if draft.done is None else draft.done.finish_reason
    asked = span_content.asked(question.messages, clear)
    return asked | span_content.answered(draft.text, calls, reason, clear)
