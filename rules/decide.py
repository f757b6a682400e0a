"""Decides what follows from a model's answer (protocol §7.4, §7.8). Pure: returns cards and the next action."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnstile.rules.answer import AnswerDraft, AnsweredCall, ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.holds import client_hold
from turnstile.rules.outgoing import CallOrigin, Outgoing, Unsendable, client_call, outgoing
from turnstile.rules.results import read_result
from turnstile.rules.resume import result_of
from turnstile.rules.text import function_name
from turnstile.rules.tool_specs import OUTPUT_INVALID, RESULT_FIELDS_MISSING, Accepted, Refusal, ending, typed_text
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    MOST_PARTS,
    SYSTEM_AUTHOR,
    Card,
    CardContent,
    CardType,
    FilePart,
    JsonContent,
    ResultField,
    Role,
    TextContent,
    ThoughtCall,
    ToolError,
    ToolResultContent,
    agent_author,
    make_card,
    parts_of,
    with_lines,
)
from turnstile.schema.ids import CardId, StepId, ToolCallId, step_card_id, step_id, tool_call_id, turn_card_id
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.tools import READ_FILE, READ_RESULT, SUBMIT_RESULT, ToolCommand
from turnstile.schema.turns import TurnRef

MAX_STEPS_CODE = "max_steps"
SUPERSEDED = (
    "This was not delivered: the user has said something more, which follows. Take it into account, then end anew."
)
"""The error of the call by which the model ended its turn, if a steer waits."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A step and its request: the turn, the number, the pinned configuration, and the fields the requester wants."""

    turn: TurnRef
    step: int
    config: TurnConfig
    result_fields: Sequence[ResultField]
    parent_step_id: str
    patience: Patience
    results: tuple[Card, ...] = ()
    """The cards whose results the model may read (`read_result`)."""
    repairs: int = 0
    """How many steps before it ended in an answer that was no value of the turn's schema."""
    files: tuple[FilePart, ...] = ()
    """The files that the turn's calls have brought: they are the deliverable's, too."""
    read_files: Mapping[str, JsonObject | str] = field(default_factory=dict[str, JsonObject | str])
    """What calls of `read_file` came to, by their arguments' text: the caller has read it."""
    compactions: int = 0
    """How many of the steps before it cut the memory: these count for no limit, and the model knows nothing of them."""

    @property
    def model_step(self) -> int:
        """The number of the step, as the model counts."""
        return self.step - self.compactions

    @property
    def step_id(self) -> StepId:
        """The id of this step."""
        return step_id(self.turn.agent_turn_id, self.step)

    @property
    def is_last(self) -> bool:
        """Whether no further step is allowed."""
        return self.model_step >= self.config.max_steps

    def card(
        self, card_id: CardId, kind: CardType, role: Role, content: CardContent, author: str | None = None, **more: Any
    ) -> Card:
        """A card of this step, by the agent unless `author` is given."""
        ids = {"turn": self.turn.agent_turn_id, "step": self.step_id, "trace": self.turn.trace_id}
        return make_card(card_id, kind, role, content, author=author or agent_author(self.turn.agent_id), **ids, **more)

    @property
    def needs_call(self) -> bool:
        """Whether text alone does not end the turn well: the profile or the requester asks for more."""
        return bool(self.config.must_end_with or self.result_fields or self.config.output_schema is not None)

    @property
    def may_repair(self) -> bool:
        """Whether the model may try again after an answer that is no value of the turn's schema."""
        return not self.is_last and self.repairs < self.config.output_repairs


@dataclass(frozen=True, slots=True)
class Continue:
    """Another step follows."""

    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Deliver:
    """The turn ends; if no card is a deliverable, the caller makes the fallback."""

    cards: tuple[Card, ...]
    status: TurnStatus
    deliverable: CardId | None
    error_code: str | None = None
    tool_result: CardId | None = None
    if_steered: Continue | None = None
    """What follows instead if a steer waits (protocol §6, steer); None where no step may follow."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """The turn is suspended until these calls are reported, each at most its `waits` seconds.

    A call with a hold goes out when a person lets it, and its seconds begin then.
    """

    cards: tuple[Card, ...]
    commands: tuple[ToolCommand, ...]
    waits: tuple[float, ...]
    holds: tuple[Hold | None, ...] = ()
    """Of each command; empty if no person is asked about any."""


Decision = Continue | Deliver | Suspend


@dataclass(frozen=True, slots=True)
class _Call:
    """A call under the kernel's id (protocol §10)."""

    id: ToolCallId
    answered: AnsweredCall


def decide(request: StepRequest, answer: ModelAnswer) -> Decision:
    """The cards of the step and the next action."""
    calls = [
        _Call(tool_call_id(request.step_id, index, request.turn.turn_epoch), call)
        for index, call in enumerate(answer.calls)
    ]
    thought = _thought(request, answer, calls)
    if not calls:
        return _without_calls(request, answer, thought)
    match ending(answer.calls, request.config.choices, request.result_fields, request.config.output_schema):
        case None:
            return _with_calls(request, answer.text, thought, calls)
        case Refusal(code, message, value):
            cards = (*thought, *(_refusal(request, call, code, message) for call in calls))
            again = request.may_repair if code == OUTPUT_INVALID else not request.is_last
            return Continue(cards) if again else _out_of_steps(request, answer.text, cards, value)
        case Accepted(deliverable):
            return _accept(request, thought, calls[0], deliverable)


def _with_calls(request: StepRequest, text: str, thought: tuple[Card, ...], calls: Sequence[_Call]) -> Decision:
    """Send the valid calls; each other call gets a failed `tool.result` at once."""
    outcomes = [_send(request, call) for call in calls]
    sent = [o for o in outcomes if isinstance(o, Outgoing)]
    cards = (*thought, *(o.card if isinstance(o, Outgoing) else o for o in outcomes))
    if sent:
        commands, waits = tuple(o.command for o in sent), tuple(o.wait_seconds for o in sent)
        return Suspend(cards, commands, waits, tuple(o.hold for o in sent))
    return _out_of_steps(request, text, cards) if request.is_last else Continue(cards)


def _send(request: StepRequest, call: _Call) -> Outgoing | Card:
    """The call to send, or the `tool.result` that the model gets at once: what it reads, or why it is not sent."""
    row = None if request.is_last else request.config.tool(call.answered.name)
    if row is None and call.answered.name == READ_RESULT and not request.is_last:
        return _read(request, call)
    if row is None and call.answered.name == READ_FILE and call.answered.arguments_text in request.read_files:
        return _read_outcome(request, call, request.read_files[call.answered.arguments_text])
    if not request.is_last and (schema := request.config.client_tools.get(call.answered.name)) is not None:
        return _held_for_client(request, call, schema)
    if row is None:
        return _refusal(request, call, "unknown_tool", _unknown(request, call))
    place = CallOrigin(request.turn, request.step_id, request.parent_step_id, request.patience)
    outcome = outgoing(
        place, call.id, row, call.answered.arguments_text, request.config.interrupt_on.get(row.tool_name)
    )
    return _refusal(request, call, outcome.code, outcome.message) if isinstance(outcome, Unsendable) else outcome


def _held_for_client(request: StepRequest, call: _Call, schema: JsonObject) -> Outgoing | Card:
    config, name = request.config, call.answered.name
    place = CallOrigin(request.turn, request.step_id, request.parent_step_id, request.patience)
    hold = client_hold(name, config.client_tool_seconds, config.client_gone)
    outcome = client_call(place, call.id, name, schema, call.answered.arguments_text, hold)
    return _refusal(request, call, outcome.code, outcome.message) if isinstance(outcome, Unsendable) else outcome


def _without_calls(request: StepRequest, answer: ModelAnswer, thought: tuple[Card, ...]) -> Decision:
    text, partial = answer.text, True if answer.truncated else None
    if (schema := request.config.output_schema) is not None and not request.config.must_end_with:
        return _typed(request, answer, thought, typed_text(text, schema))
    if request.is_last and request.needs_call:
        return _out_of_steps(request, text, thought)
    if not request.needs_call:
        deliverable = _deliverable(request, _said(request, text), partial=partial)
        more = None if request.is_last else Continue(thought)
        return Deliver((*thought, deliverable), TurnStatus.SUCCESS, deliverable.card_id, if_steered=more)
    return Continue((*thought, _reminding(request, _reminder(request))))


def _typed(
    request: StepRequest, answer: ModelAnswer, thought: tuple[Card, ...], value: Accepted | Refusal
) -> Continue | Deliver:
    """A text in a turn whose answer has a schema: its value, or another try (protocol §18)."""
    if isinstance(value, Refusal):
        if not request.may_repair:
            return _out_of_steps(request, answer.text, thought, value.value)
        how = f"{value.message} Answer with the value alone, as JSON, or by calling {SUBMIT_RESULT} if you have it."
        return Continue((*thought, _reminding(request, how)))
    deliverable = _deliverable(request, JsonContent(data=value.deliverable, parts=request.files))
    more = None if request.is_last else Continue(thought)
    return Deliver((*thought, deliverable), TurnStatus.SUCCESS, deliverable.card_id, if_steered=more)


def _reminding(request: StepRequest, text: str) -> Card:
    card_id = step_card_id(request.step_id, "must-end-with")
    return request.card(card_id, CardType.MUST_END_WITH_REQUIRED, Role.SYSTEM, TextContent(text=text), SYSTEM_AUTHOR)


def repairs(cards: Sequence[Card]) -> int:
    """How many steps ended in an answer that was no value of the schema, by the turn's own cards."""
    return len({card.metadata.step_id for card in cards if _is_repaired(card)})


def _is_repaired(card: Card) -> bool:
    if card.type == CardType.MUST_END_WITH_REQUIRED:
        return True
    content = result_of(card) if card.type == CardType.TOOL_RESULT else None
    return content is not None and content.error is not None and content.error.code == OUTPUT_INVALID


def _reminder(request: StepRequest) -> str:
    """The reminder how to end the turn."""
    submit = (SUBMIT_RESULT,) if request.result_fields else ()
    names = ", ".join(dict.fromkeys((*request.config.must_end_with, *request.config.choices, *submit)))
    text = f"This task is not finished by text alone. End it by calling one of these tools: {names}."
    if not request.result_fields:
        return text
    fields = ", ".join(dict.fromkeys(field.name for field in request.result_fields))
    return f"{text} {SUBMIT_RESULT} must have each of these fields once: {fields}."


def _out_of_steps(request: StepRequest, text: str, cards: tuple[Card, ...], value: JsonObject | None = None) -> Deliver:
    """End the turn after its last allowed step or try: the deliverable is the value, or the step's text (§7.8)."""
    code = RESULT_FIELDS_MISSING if request.result_fields else MAX_STEPS_CODE
    if request.config.output_schema is not None:
        code = OUTPUT_INVALID
    if value is not None:
        deliverable = _deliverable(request, JsonContent(data=value, parts=request.files), partial=True)
        return Deliver((*cards, deliverable), TurnStatus.PARTIAL, deliverable.card_id, code)
    if not text.strip():
        return Deliver(cards, TurnStatus.PARTIAL, None, code)
    if not request.needs_call:
        deliverable = _deliverable(request, _said(request, text))
        return Deliver((*cards, deliverable), TurnStatus.SUCCESS, deliverable.card_id)
    deliverable = _deliverable(request, _said(request, text), partial=True)
    return Deliver((*cards, deliverable), TurnStatus.PARTIAL, deliverable.card_id, code)


def _accept(request: StepRequest, thought: tuple[Card, ...], call: _Call, data: JsonObject) -> Deliver:
    """End the turn with the call's data, whatever `must_end_with` says."""
    accepted = ToolResultContent(
        status=TurnStatus.SUCCESS, after_execution=AfterExecution.TERMINATE, result={"accepted": True}
    )
    result = _result(request, call, accepted)
    deliverable = _deliverable(request, JsonContent(data=data, parts=request.files))
    superseded = _refusal(request, call, "superseded", SUPERSEDED)
    return Deliver(
        (*thought, result, deliverable),
        TurnStatus.SUCCESS,
        deliverable.card_id,
        tool_result=result.card_id,
        if_steered=None if request.is_last else Continue((*thought, superseded)),
    )


def _unknown(request: StepRequest, call: _Call) -> str:
    tools = () if request.is_last else (*map(function_name, request.config.tools), *request.config.client_tools)
    names = [*tools, *request.config.choices, SUBMIT_RESULT]
    return f"There is no tool {call.answered.name[:64]!r} here. Available: {', '.join(names)}."


def _read(request: StepRequest, call: _Call) -> Card:
    return _read_outcome(
        request, call, read_result(request.results, call.answered.arguments_text, request.config.inline_result_chars)
    )


def _read_outcome(request: StepRequest, call: _Call, read: JsonObject | str) -> Card:
    if isinstance(read, str):
        return _refusal(request, call, "invalid_arguments", read)
    content = ToolResultContent(status=TurnStatus.SUCCESS, after_execution=AfterExecution.SUSPEND, result=read)
    return _result(request, call, content)


def _refusal(request: StepRequest, call: _Call, code: str, message: str) -> Card:
    error = ToolError(code=code, message=message)
    content = ToolResultContent(status=TurnStatus.FAILED, after_execution=AfterExecution.SUSPEND, error=error)
    return _result(request, call, content)


def _result(request: StepRequest, call: _Call, content: ToolResultContent) -> Card:
    name, card_id = call.answered.name, CardId(f"{call.id}-result")
    return request.card(
        card_id, CardType.TOOL_RESULT, Role.TOOL, content, SYSTEM_AUTHOR, tool_call=call.id, function_name=name
    )


def _said(request: StepRequest, text: str) -> TextContent:
    """What the model said, with the files of the turn's calls."""
    return TextContent(text=with_lines(text, request.files), parts=request.files)


def brought_files(turn: TurnRef, output: Sequence[Card]) -> tuple[FilePart, ...]:
    """The files of the results of the turn's own calls, each once, the newest last; at most `MOST_PARTS`."""
    results = (card for card in output if card.type == CardType.TOOL_RESULT)
    own = (card for card in results if card.metadata.agent_turn_id == turn.agent_turn_id)
    parts = {part.artifact_id: part for card in own for part in parts_of(card)}
    return tuple(parts.values())[-MOST_PARTS:]


def _deliverable(request: StepRequest, content: CardContent, *, partial: bool | None = None) -> Card:
    card_id = turn_card_id(request.turn.agent_turn_id, "deliverable")
    return request.card(card_id, CardType.DELIVERABLE, Role.ASSISTANT, content, partial=partial)


def _thought(request: StepRequest, answer: ModelAnswer, calls: Sequence[_Call]) -> tuple[Card, ...]:
    """The `agent.thought` of the step; none if the answer has neither text nor calls."""
    if not answer.text.strip() and not calls:
        return ()
    recorded = [
        ThoughtCall(
            tool_call_id=call.id,
            tool_name=call.answered.name,
            arguments=call.answered.arguments_text,
            provider_call_id=call.answered.provider_call_id,
        )
        for call in calls
    ]
    content = TextContent(text=answer.text, reasoning=answer.kept)
    card_id = step_card_id(request.step_id, "thought")
    other = None if answer.model == request.config.model.model else answer.model
    card = request.card(card_id, CardType.THOUGHT, Role.ASSISTANT, content, tool_calls=recorded or None, model=other)
    return (card,)


def partial_thought(turn: TurnRef, step: int, draft: AnswerDraft | None) -> Card | None:
    """A card of the text that a stopped model had written so far; None if there is none. Its calls are dropped."""
    if draft is None or not draft.text.strip():
        return None
    key = step_id(turn.agent_turn_id, step)
    return make_card(
        step_card_id(key, "thought"),
        CardType.THOUGHT,
        Role.ASSISTANT,
        TextContent(text=draft.text),
        author=agent_author(turn.agent_id),
        turn=turn.agent_turn_id,
        step=key,
        trace=turn.trace_id,
        partial=True,
    )
