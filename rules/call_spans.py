"""The spans of a turn's calls, `execute_tool`: from the commit of a call to its result (docs/observability.md).

A call's span is the one that its command carries, so what the tool records, and the turns that it asks for, are below
it. The step that reads the results first records it, once: the attempt whose commit won. A turn that is stopped while
it waits records its calls with its end.
"""

from collections.abc import Mapping
from datetime import datetime

from turnstile.rules.turn_ends import RecalledStep
from turnstile.rules.turn_step import BegunStep
from turnstile.runtime import gen_ai, span_content
from turnstile.runtime.telemetry import Span, Telemetry, nanoseconds, step_traceparent, turn_attributes
from turnstile.schema.cards import Card, CardType, ToolCallContent, ToolResultContent, readable_content
from turnstile.schema.ids import step_id
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import SuspendMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers

CANCELED = "canceled"
"""`error.type` of a call that its turn did not wait for."""
_NAME_LENGTH = 128


def agent_name(begun: BegunStep) -> str:
    """The name of the profile that the agent works by; empty if it cannot be read."""
    if (pinned := begun.head.turn_config) is not None:
        return str(pinned.get("profile_name", ""))
    for card in reversed(begun.profile):
        if card.type == CardType.PROFILE and isinstance(card.content, dict):
            match card.content.get("data"):
                case {"name": str() as name}:
                    return name[:_NAME_LENGTH]
                case _:
                    pass
    return ""


def record_answers(telemetry: Telemetry, turn: TurnRef, begun: BegunStep) -> None:
    """Record the calls whose results the step read first."""
    head, tracer = begun.head, telemetry.tracer
    if not tracer.enabled or not head.answered:
        return
    name, sent = agent_name(begun), head.suspended_at or head.updated_at
    cards = {(card.type, card.tool_call_id): card for card in begun.output if card.tool_call_id is not None}
    for call in head.answered:
        result = _result(cards.get((CardType.TOOL_RESULT, call.tool_call_id)))
        attributes = gen_ai.tool(call.tool_name, call.tool_call_id)
        if tracer.clear is not None:
            asked = cards.get((CardType.TOOL_CALL, call.tool_call_id))
            content = None if asked is None else readable_content(asked)
            arguments = content.arguments if isinstance(content, ToolCallContent) else None
            attributes |= span_content.called(arguments, None if result is None else result.result, tracer.clear)
        own = turn_attributes(turn, head.context_headers, name)
        times = sent, call.reported_at or head.updated_at
        _record(telemetry, head.context_headers, turn, head.step_count, times, own | attributes, _code(result))


def record_unanswered(telemetry: Telemetry, turn: TurnRef, found: RecalledStep, ended: datetime) -> None:
    """Record the calls of a turn that was ended while it waited for them."""
    if not telemetry.tracer.enabled or found.step is None or not isinstance(found.step_metadata, SuspendMetadata):
        return
    own = turn_attributes(turn, found.context_headers)
    for call in found.step_metadata.commands:
        attributes = own | gen_ai.tool(call.tool_name, call.tool_call_id)
        code = CANCELED if call.tool_call_id in found.waiting else None
        times = found.updated_at or ended, ended
        _record(telemetry, found.context_headers, turn, found.step, times, attributes, code)


def _record(
    telemetry: Telemetry,
    context: Mapping[str, str],
    turn: TurnRef,
    step: int,
    times: tuple[datetime, datetime],
    attributes: gen_ai.Attributes,
    error_code: str | None,
) -> None:
    under = step_traceparent(context, step_id(turn.agent_turn_id, step))
    own = None if under is None else headers.derived_span(under, str(attributes["gen_ai.tool.call.id"]))
    if under is None or own is None:
        return
    name, what = gen_ai.operation("execute_tool", str(attributes["gen_ai.tool.name"]))
    began, ended = map(nanoseconds, times)
    telemetry.tracer.record(Span(name, own, headers.span_id(under), began, ended, what | attributes, error_code))


def _result(card: Card | None) -> ToolResultContent | None:
    content = None if card is None else readable_content(card)
    return content if isinstance(content, ToolResultContent) else None


def _code(result: ToolResultContent | None) -> str | None:
    """Why a call failed; None if it did not, or nobody can say."""
    if result is None or result.status is TurnStatus.SUCCESS:
        return None
    return result.status.value if result.error is None else result.error.code
