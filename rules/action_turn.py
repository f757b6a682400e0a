"""A turn that one call does: a UI action's (§7.10), and one of an agent in code (§21). Pure.

It calls one tool and ends with the result, without a model. `action_call` runs twice: in the bridge before there is a
turn, so that a faulty action is refused at once, and in the turn's step, since the tool's row may have changed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import JsonValue, ValidationError

from turnstile.rules.outgoing import CallOrigin, Outgoing, Unsendable, outgoing
from turnstile.rules.resume import Termination, ended_by, result_of
from turnstile.rules.tool_specs import wanted_fields
from turnstile.rules.turn_config import TurnConfig, asked, run_by_of, tool_rows
from turnstile.rules.turn_ends import fallback_card
from turnstile.rules.turn_step import BegunStep
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card, CardType, JsonContent, content_of, value_of
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import tool_call_id
from turnstile.schema.people.approvals import ApprovalRule
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
    return _only_call(place, row, action.arguments)


def agent_call(place: CallOrigin, begun: BegunStep, config: TurnConfig) -> Outgoing:
    """The call that does the turn of an agent in code; it waits for a person if the profile or the tool's row says so.

    Of what is wanted beside the instruction it names what the tool's parameters let it name.

    Raises `Refused`: `unknown_tool`, `invalid_tool`, `invalid_arguments`; `CardUnreadable`.
    """
    row = None if config.run_by is None else config.tools.get(config.run_by)
    if row is None:
        raise Refused("unknown_tool", f"the project has no tool {config.run_by!r}")
    arguments: JsonObject = {"instruction": _instruction(place.turn, begun)}
    fields: list[JsonValue] = [field.model_dump(mode="json") for field in wanted_fields(begun.context).fields]
    wanted = {"output_schema": config.output_schema} if config.output_schema else {"result_fields": fields}
    arguments |= {name: value for name, value in wanted.items() if value and _takes(row, name)}
    return _only_call(place, row, arguments, config.interrupt_on.get(row.tool_name))


def _only_call(place: CallOrigin, row: ToolRow, arguments: JsonObject, rule: ApprovalRule | None = None) -> Outgoing:
    call = tool_call_id(place.step_id, 0, place.turn.turn_epoch)
    # the fault of arguments is read by more people than the arguments
    outcome = outgoing(place, call, row, json.dumps(arguments), rule, quotes=False)
    if isinstance(outcome, Unsendable):
        raise Refused(outcome.code, outcome.message)
    command = outcome.command.model_copy(update={"after_execution": AfterExecution.TERMINATE})
    return replace(outcome, command=command)


def _instruction(turn: TurnRef, begun: BegunStep) -> str:
    """The turn's own instruction; of a turn that was given a box alone, the last one there."""
    own = asked(turn, begun, anew=False)
    cards = own or [card for card in begun.context if card.type == CardType.INSTRUCTION][-1:]
    return "\n\n".join(v if isinstance(v := value_of(card), str) else json.dumps(v) for card in cards)


def _takes(row: ToolRow, name: str) -> bool:
    properties = row.parameters.get("properties")
    named = isinstance(properties, dict) and name in properties
    return named or row.parameters.get("additionalProperties", True) is not False


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


def call_ended(turn: TurnRef, begun: BegunStep) -> Termination | None:
    """How the turn ends after its call was answered; None before the call was sent."""
    head = begun.head
    if head.step_count == 0:
        return None
    cards = {card.card_id: card for card in begun.output}
    for call in head.answered:
        content = result_of(cards.get(call.tool_result_card_id))
        if content is not None and (head.turn_config is None or run_by_of(begun) is None):
            return ended_by(turn, call, content)
        if content is not None:
            config, fields = TurnConfig.model_validate(head.turn_config), wanted_fields(begun.context).fields
            return ended_by(turn, call, content, config.output_schema, fields, speaks=True)
    fallback = fallback_card(turn, begun.output, TurnStatus.FAILED, "the call has no result that can be read")
    return Termination(TurnStatus.FAILED, fallback, None, NO_RESULT)
