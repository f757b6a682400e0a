"""Decides from the results of a step's calls whether the turn ends (protocol §7.5). Pure.

When no call waits any more, the turn continues with its next step, unless a result's effective `after_execution` is
`terminate`: then the turn ends with that result. Of several, a failed one is used, else the first in call order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from turnstile.rules.tool_specs import code_delivers
from turnstile.rules.turn_step import ReportedCall
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    CONTROL_KEY,
    SYSTEM_AUTHOR,
    Card,
    CardType,
    JsonContent,
    ResultField,
    Role,
    TextContent,
    ToolResultContent,
    make_card,
    readable_content,
    visible_result,
    with_lines,
)
from turnstile.schema.ids import CardId, ToolCallId, turn_card_id
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.tools import ToolRow
from turnstile.schema.turns import TurnRef


@dataclass(frozen=True, slots=True)
class Termination:
    """The end of a turn by a tool: status and code, the deliverable, and the result card that it came from, if any."""

    status: TurnStatus
    deliverable: Card
    tool_result: CardId | None
    error_code: str | None


def termination(
    turn: TurnRef,
    answered: Sequence[ReportedCall],
    output: Sequence[Card],
    tools: Mapping[str, ToolRow],
    output_schema: JsonObject | None = None,
) -> Termination | None:
    """How the results end the turn; None if they do not. A result that `output_schema` refuses ends it as partial."""
    cards = {card.card_id: card for card in output}
    order = _call_order(turn, output)
    ending: list[tuple[ReportedCall, ToolResultContent]] = []
    for call in sorted(answered, key=lambda a: order.get(a.tool_call_id, len(order))):
        content = result_of(cards.get(call.tool_result_card_id))
        if content is not None and _effective(call, content, tools) is AfterExecution.TERMINATE:
            ending.append((call, content))
    if not ending:
        return None
    failed = [entry for entry in ending if entry[1].status is not TurnStatus.SUCCESS]
    call, content = (failed or ending)[0]
    return ended_by(turn, call, content, output_schema)


def ended_by(
    turn: TurnRef,
    call: ReportedCall,
    content: ToolResultContent,
    output_schema: JsonObject | None = None,
    fields: Sequence[ResultField] = (),
    *,
    speaks: bool = False,
) -> Termination:
    """The end of a turn by the result of this call: as partial, where a success lacks what was asked for.

    `speaks`: whether a text that is the result is what the agent says.
    """
    value, status = _delivered(content), content.status
    code, lack = None if content.error is None else content.error.code, None
    if status is TurnStatus.SUCCESS:
        value, lack = code_delivers(value, output_schema, fields)
    if lack is not None:
        status, code = TurnStatus.PARTIAL, lack
    card = make_card(
        turn_card_id(turn.agent_turn_id, "deliverable"),
        CardType.DELIVERABLE,
        Role.ASSISTANT,
        TextContent(text=with_lines(value, content.parts), parts=content.parts)
        if speaks and isinstance(value, str)
        else JsonContent(data=value, parts=content.parts),
        author=SYSTEM_AUTHOR,
        turn=turn.agent_turn_id,
        trace=turn.trace_id,
        partial=None if lack is None else True,
    )
    return Termination(status, card, call.tool_result_card_id, code)


def result_of(card: Card | None) -> ToolResultContent | None:
    """The content of a `tool.result` card; None if there is no card or it cannot be read."""
    content = None if card is None else readable_content(card)
    return content if isinstance(content, ToolResultContent) else None


def _effective(call: ReportedCall, content: ToolResultContent, tools: Mapping[str, ToolRow]) -> AfterExecution:
    """The `after_execution` in the result if valid, else the report's, else the tool row's."""
    control = content.result.get(CONTROL_KEY) if isinstance(content.result, dict) else None
    requested = control.get("after_execution") if isinstance(control, dict) else None
    for value in (requested, call.after_execution):
        if isinstance(value, str) and value in set(AfterExecution):
            return AfterExecution(value)
    row = tools.get(call.tool_name)
    return AfterExecution.SUSPEND if row is None else row.after_execution


def _delivered(content: ToolResultContent) -> JsonValue:
    result = visible_result(content.result)
    if content.error is None:
        return result
    failure: JsonObject = {"code": content.error.code, "message": content.error.message}
    return {"error": failure} if result is None else {"result": result, "error": failure}


def _call_order(turn: TurnRef, output: Sequence[Card]) -> dict[ToolCallId, int]:
    for card in reversed(output):
        if card.type == CardType.THOUGHT and card.metadata.agent_turn_id == turn.agent_turn_id and card.tool_calls:
            return {call.tool_call_id: place for place, call in enumerate(card.tool_calls)}
    return {}
