"""A UI action's turn: it calls the named tool and ends with the result, without a model (§7.10). Pure.

`action_call` runs twice: in the bridge before there is a turn, so that a faulty action is refused at once, and in the
turn's step, since the tool's row may have changed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import ValidationError

from turnstile.rules.outgoing import CallOrigin, Outgoing, Unsendable, outgoing
from turnstile.rules.resume import Termination, ended_by, result_of
from turnstile.rules.turn_config import tool_rows
from turnstile.rules.turn_ends import fallback_card
from turnstile.rules.turn_step import StepHead
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card, CardType, JsonContent, content_of
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import tool_call_id
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.tools import ToolRow, options_of
from turnstile.schema.turns import TurnRef

NO_RESULT = "no_result"


class ActionCall(Tolerant):
    """The content of an action's instruction card: the tool and its arguments."""

    tool_name: str
    arguments: JsonObject


def action_call(place: CallOrigin, action: ActionCall, rows: Iterable[JsonObject]) -> Outgoing:
    """The call of an action, by the project's tool rows; its result ends the turn, whatever the row says.

    A tool whose row asks for approval waits for it here, too.

    A delegating tool without a row is the kernel's own, as it is for a model (protocol §12).

    Raises `Refused`: `unknown_tool`, `ui_not_allowed`, `invalid_tool`, `invalid_arguments`.
    """
    raw_rows = list(rows)
    row = next((tool_row for tool_row in tool_rows(raw_rows) if tool_row.tool_name == action.tool_name), None)
    if row is None and not any(value.get("tool_name") == action.tool_name for value in raw_rows):
        row = kernel_tools().get(action.tool_name)
    if row is None:
        raise Refused("unknown_tool", f"the project has no tool {action.tool_name!r}")
    if not _ui_allowed(row):
        raise Refused("ui_not_allowed", f"the tool {row.tool_name} has no options.ui_allowed")
    call = tool_call_id(place.step_id, 0, place.turn.turn_epoch)
    outcome = outgoing(place, call, row, json.dumps(action.arguments), quotes=False)  # acks are events
    if isinstance(outcome, Unsendable):
        raise Refused(outcome.code, outcome.message)
    command = outcome.command.model_copy(update={"after_execution": AfterExecution.TERMINATE})
    return replace(outcome, command=command)


def _ui_allowed(row: ToolRow) -> bool:
    try:
        return options_of(row).ui_allowed
    except BadRequest as error:
        raise Refused("invalid_tool", str(error)) from None


def wanted_call(turn: TurnRef, context: Sequence[Card]) -> ActionCall:
    """The action in the turn's context box; raises `Refused` (`bad_request`) if L0 did not write it."""
    for card in context:
        if card.type == CardType.INSTRUCTION and card.metadata.agent_turn_id == turn.agent_turn_id:
            content = content_of(card)
            try:
                return ActionCall.model_validate(content.data if isinstance(content, JsonContent) else None)
            except ValidationError:
                break
    raise Refused("bad_request", "the turn's context box does not say which tool to call")


def action_ended(turn: TurnRef, head: StepHead, output: Sequence[Card]) -> Termination | None:
    """How the turn ends after its call was answered; None before the call was sent."""
    if head.step_count == 0:
        return None
    cards = {card.card_id: card for card in output}
    for call in head.answered:
        content = result_of(cards.get(call.tool_result_card_id))
        if content is not None:
            return ended_by(turn, call, content)
    fallback = fallback_card(turn, output, TurnStatus.FAILED, "the call has no result that can be read")
    return Termination(TurnStatus.FAILED, fallback, None, NO_RESULT)
