"""Makes a call's `tool.call` card and the command that points to it (protocol §6, command_intent). Pure."""

from dataclasses import dataclass

from turnstile.activities.calls.arguments import ready
from turnstile.schema.cards import Card, CardType, Role, ToolCallContent, agent_author, make_card
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import CardId, StepId, ToolCallId
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.tools import ToolCommand, ToolRow, expand_subject
from turnstile.schema.turns import TurnRef


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a call: the turn and its step, the parent step, and how long the turn waits at least."""

    turn: TurnRef
    step_id: StepId
    parent_step_id: str
    suspend_seconds: float


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
    place: Place, call: ToolCallId, row: ToolRow, arguments_text: str, *, quotes: bool = True
) -> Outgoing | Unsendable:
    """Fill and check the arguments, and make the card and the command (protocol §7.3).

    If the arguments do not fit, the sentence quotes them, unless `quotes` is False: then others may read it, too.
    """
    turn = place.turn
    values = turn.placeholders(place.step_id, place.parent_step_id) | {"tool_call_id": call}
    found = ready(row, arguments_text, values, place.suspend_seconds, quotes=quotes)
    if isinstance(found, str):
        return Unsendable("invalid_arguments", found)
    try:
        subject = expand_subject(row.target_subject or "", turn.project_id, turn.channel_id)
    except BadRequest as error:
        return Unsendable("invalid_tool", f"The tool {row.tool_name} cannot be reached: {error}")
    card = make_card(
        CardId(f"{call}-call"),
        CardType.TOOL_CALL,
        Role.ASSISTANT,
        ToolCallContent(tool_name=row.tool_name, arguments=found.arguments, target_subject=subject),
        author=agent_author(turn.agent_id),
        turn=turn.agent_turn_id,
        step=place.step_id,
        trace=turn.trace_id,
        tool_call=call,
        function_name=row.tool_name,
    )
    command = ToolCommand(
        tool_call_id=call,
        tool_name=row.tool_name,
        tool_call_card_id=card.card_id,
        after_execution=row.after_execution,
        subject=subject,
    )
    return Outgoing(card, command, found.wait_seconds)
