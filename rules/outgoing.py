"""Makes a call's `tool.call` card and the command that points to it (protocol §6, command_intent). Pure."""

from dataclasses import dataclass

from turnstile.rules.arguments import Patience, ready, schema_violation
from turnstile.rules.holds import call_card, hold_of, is_question, question_of
from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import StepId, ToolCallId
from turnstile.schema.people.approvals import ApprovalRule
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.tools import ToolCommand, ToolRow, expand_subject, options_of
from turnstile.schema.turns import TurnRef


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """The origin of a call: the turn and its step, the parent step, and how long the turn waits."""

    turn: TurnRef
    step_id: StepId
    parent_step_id: str
    patience: Patience


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A call that may be sent; with `hold`, once a person lets it."""

    card: Card
    command: ToolCommand
    wait_seconds: float
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class Unsendable:
    """Why a call may not be sent: a code, and a sentence for the model or user that made it."""

    code: str
    message: str


def outgoing(
    place: CallOrigin,
    call: ToolCallId,
    row: ToolRow,
    arguments_text: str,
    rule: ApprovalRule | None = None,
    *,
    quotes: bool = True,
) -> Outgoing | Unsendable:
    """Fill and check the arguments, and make the card and the command (protocol §7.3).

    The call waits for a person if the profile's `rule` or the tool's own says so. If the arguments do not fit, the
    sentence quotes them, unless `quotes` is False: then others may read it, too.
    """
    turn = place.turn
    if is_question(row):
        return _question(place, call, row, arguments_text, rule)
    values = turn.placeholders(place.step_id, place.parent_step_id) | {"tool_call_id": call}
    filled = ready(row, arguments_text, values, place.patience, quotes=quotes)
    if isinstance(filled, str):
        return Unsendable("invalid_arguments", filled)
    try:
        subject = expand_subject(row.target_subject or "", turn.project_id, turn.channel_id)
    except BadRequest as error:
        return Unsendable("invalid_tool", f"The tool {row.tool_name} cannot be reached: {error}")
    card, content = call_card(turn, place.step_id, call, row, filled.arguments, subject, options_of(row).hidden)
    try:
        hold = hold_of(turn.agent_id, row, card, content, rule)
    except BadRequest as error:
        return Unsendable("bad_arguments", f"A person cannot be asked about this call of {row.tool_name}: {error}")
    return Outgoing(card, _command(call, row, card, subject), filled.wait_seconds, hold)


def client_call(
    place: CallOrigin, call: ToolCallId, tool: str, schema: JsonObject, arguments_text: str, hold: Hold
) -> Outgoing | Unsendable:
    """A call that the turn's requester runs: it is checked and held, and its command is never published (§19)."""
    arguments = parse_arguments(arguments_text)
    if arguments is None:
        return Unsendable("invalid_arguments", bad_arguments(tool, arguments_text))
    if (problem := schema_violation(tool, schema, arguments)) is not None:
        return Unsendable("invalid_arguments", problem)
    row = ToolRow(tool_name=tool)
    card, _ = call_card(place.turn, place.step_id, call, row, arguments, None, frozenset())
    return Outgoing(card, _command(call, row, card, ""), hold.expires_after_seconds, hold)


def _question(
    place: CallOrigin, call: ToolCallId, row: ToolRow, arguments_text: str, rule: ApprovalRule | None
) -> Outgoing | Unsendable:
    """A call of `ask_human`: its command has no subject, and is never published."""
    question = question_of(arguments_text, rule)
    if isinstance(question, str):
        return Unsendable("invalid_arguments", question)
    arguments, hold = question
    card, _ = call_card(place.turn, place.step_id, call, row, arguments, None, frozenset())
    return Outgoing(card, _command(call, row, card, ""), place.patience.tool_seconds, hold)


def _command(call: ToolCallId, row: ToolRow, card: Card, subject: str) -> ToolCommand:
    return ToolCommand(
        tool_call_id=call,
        tool_name=row.tool_name,
        tool_call_card_id=card.card_id,
        after_execution=row.after_execution,
        subject=subject,
    )
