"""Which calls wait for a person: approvals by policy, and the built-in tool `ask_human` (protocol §13.2, §13.3). Pure.

A held call has its card like any other, so that a person sees exactly what would be sent: the digest is over the card's
arguments, forced ones included. The arguments of a question are checked here, since no tool will; so is what a tool
asks under its call (protocol §13.8).
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.cards import Card, CardType, Role, ToolCallContent, agent_author, make_card
from turnstile.schema.ids import AgentId, CardId, StepId, ToolCallId
from turnstile.schema.parameters import checked_schema
from turnstile.schema.people.approvals import EXPIRES_AFTER_SECONDS, MOST_SECONDS, ApprovalRule, Decision, approval
from turnstile.schema.people.digests import action_digest
from turnstile.schema.people.interrupts import Hold, InterruptReason, ToolPin
from turnstile.schema.tools import ASK_HUMAN, ToolRow, options_of
from turnstile.schema.turns import TurnRef
from turnstile.schema.validation import describe_faults

_LONGEST_QUESTION = 16_384

ASK_HUMAN_ROW = ToolRow(
    tool_name=ASK_HUMAN,
    description=(
        "Ask a person, and wait for the answer. Say in the question everything that the person must know. "
        "With choices the answer is one of them; with response_schema it is JSON of that schema; else a text."
    ),
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string", "description": "The question."},
            "choices": {"type": "array", "items": {"type": "string"}, "description": "The possible answers."},
            "response_schema": {"type": "object", "description": "A JSON schema that the answer must match."},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
)
"""As the kernel offers it: without a target, since it goes to no tool."""


def is_question(row: ToolRow) -> bool:
    """Whether a turn's row is the built-in `ask_human`; a project's own tool of this name has a target."""
    return row.tool_name == ASK_HUMAN and not row.target_subject


def hold_of(
    agent: AgentId, row: ToolRow, card: Card, content: ToolCallContent, rule: ApprovalRule | None
) -> Hold | None:
    """Why this call waits for a person, by the profile's rule and the tool's; None if it goes out at once.

    Raises `BadRequest`: a row whose options do not parse, or arguments that have no exact digest.
    """
    needed = approval((rule, options_of(row).interrupt_on), content.arguments)
    if needed is None:
        return None
    return Hold(
        reason=InterruptReason.TOOL_CALL,
        message=needed.description or f"The agent {agent} wants to call the tool {row.tool_name}.",
        action_digest=action_digest(
            card.tool_call_id or "", content.tool_name, content.target_subject or "", content.arguments
        ),
        allowed_decisions=needed.allowed_decisions,
        expires_after_seconds=needed.expires_after_seconds,
        on_expiry=needed.on_expiry,
        requester_may_decide=needed.requester_may_decide,
        tool_pin=ToolPin(target_subject=row.target_subject, parameters=row.parameters),
    )


def client_hold(tool: str, seconds: float, if_gone: Literal["timeout", "cancel"]) -> Hold:
    """A call of a client's tool: the turn's requester answers it, or rejects it where it could not be run (§19)."""
    return Hold(
        reason=InterruptReason.CLIENT_TOOL,
        message=f"The client runs its own tool {tool}.",
        allowed_decisions=(Decision.RESPOND, Decision.REJECT),
        expires_after_seconds=seconds,
        on_expiry=if_gone,
        requester_may_decide=True,
        only_requester=True,
    )


class _Question(Strict):
    question: str = Field(min_length=1, max_length=_LONGEST_QUESTION)
    choices: list[Annotated[str, Field(min_length=1, max_length=1024)]] | None = Field(
        default=None, min_length=1, max_length=256
    )
    response_schema: Annotated[JsonObject, AfterValidator(checked_schema)] | None = None


class _ToolQuestion(_Question):
    expires_after_seconds: float | None = Field(default=None, ge=1, le=MOST_SECONDS)


def question_of(arguments_text: str, rule: ApprovalRule | None) -> tuple[JsonObject, Hold] | str:
    """The arguments of a question and its hold, or a sentence for the model that says what is wrong with it."""
    arguments = parse_arguments(arguments_text)
    if arguments is None:
        return bad_arguments(ASK_HUMAN, arguments_text)
    hold = _hold_of_question(_Question, arguments, rule)
    return hold if isinstance(hold, str) else (arguments, hold)


def tool_question_of(arguments: JsonObject, rule: ApprovalRule | None) -> Hold | str:
    """What a tool asks a person under its call, or a sentence that says what is wrong with it."""
    return _hold_of_question(_ToolQuestion, arguments, rule)


def _hold_of_question(form: type[_Question], arguments: JsonObject, rule: ApprovalRule | None) -> Hold | str:
    """Who asked for the turn may answer, unless the profile has a rule for `ask_human` that says otherwise."""
    try:
        question = form.model_validate(arguments)
    except ValidationError as error:
        return f"The arguments of {ASK_HUMAN} do not fit: {describe_faults(error, form, most=1)[:700]}"
    if question.choices is not None and question.response_schema is not None:
        return f"{ASK_HUMAN} takes choices or a response_schema, not both: put the choices into the schema as an enum."
    schema: JsonObject | None = {"type": "string"}
    if question.choices is not None:
        schema = {"enum": [*dict.fromkeys(question.choices)]}
    elif question.response_schema is not None:
        schema = question.response_schema
    longest = None if rule is None else rule.expires_after_seconds
    expiry = question.expires_after_seconds if isinstance(question, _ToolQuestion) else None
    return Hold(
        reason=InterruptReason.INPUT_REQUIRED,
        message=question.question,
        allowed_decisions=(Decision.RESPOND, Decision.REJECT),
        response_schema=schema,
        expires_after_seconds=min(expiry or longest or EXPIRES_AFTER_SECONDS, longest or MOST_SECONDS),
        requester_may_decide=True if rule is None else rule.requester_may_decide,
    )


def call_card(
    turn: TurnRef,
    step: StepId,
    call: ToolCallId,
    row: ToolRow,
    arguments: JsonObject,
    subject: str | None,
    added: frozenset[str],
) -> tuple[Card, ToolCallContent]:
    """The `tool.call` card of a call, with its content; `added` names the arguments that the row's options added."""
    content = ToolCallContent(tool_name=row.tool_name, arguments=arguments, target_subject=subject)
    card = make_card(
        CardId(f"{call}-call"),
        CardType.TOOL_CALL,
        Role.ASSISTANT,
        content,
        author=agent_author(turn.agent_id),
        turn=turn.agent_turn_id,
        step=step,
        trace=turn.trace_id,
        tool_call=call,
        function_name=row.tool_name,
    )
    metadata = card.metadata.model_copy(update={"added": tuple(sorted(added & arguments.keys()))})
    return card.model_copy(update={"metadata": metadata}), content
