"""A turn as a transcript: its instructions, and for each step the model's text, its calls and their results. Pure.

It is made from the turn's cards, its step rows and the rows of its calls. A card that does not parse is shown unparsed;
what retention has removed is left out. `turn show --json` prints these models.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import Field, JsonValue, ValidationError

from turnstile.schema.base import JsonObject, Tolerant, too_deep
from turnstile.schema.cards import (
    Card,
    CardType,
    CardUnreadable,
    ToolResultContent,
    content_of,
    value_of,
    without_added,
)
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import StepId, ToolCallId
from turnstile.schema.json_reading import read_json_text
from turnstile.schema.ledger_reads import CallRecord, SentCall, StepView
from turnstile.schema.people.steers import Steer
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ATTEMPT_CANCELED, Compaction


class CallEntry(Tolerant):
    """A tool call of a step, with its result if there is one."""

    tool_call_id: ToolCallId
    tool: str
    arguments: JsonValue = None
    """The model's arguments; a string if they are not valid JSON."""
    edited: JsonObject | None = None
    """The arguments that a person gave it instead, without hidden ones."""
    status: str
    """The status of the result, or `waiting`."""
    error_code: str | None = None
    error: str | None = None
    result: JsonValue = None
    sent_at: datetime | None = None
    """Null if the call was not sent to a tool: it was refused, or is built in."""
    answered_at: datetime | None = None
    recorded: CallRecord | None = None
    """What a program recorded under it (protocol §21)."""


class SteerEntry(Steer):
    """Something said to the turn while it ran."""

    text: str | None
    """Null if its card is gone."""


class StepEntry(Tolerant):
    """A step: its model calls, the model's text, its tool calls."""

    number: int
    step_id: StepId
    status: str
    started_at: datetime
    ended_at: datetime | None
    model: str | None = None
    text: str | None = None
    calls: list[CallEntry] = Field(default_factory=list[CallEntry])
    failed_attempts: list[str] = Field(default_factory=list[str])
    """The error code of each failed model call, in order."""
    truncated: str | None = None
    reminded: bool = False
    """Whether the model was reminded to end the turn with a tool."""
    compaction: Compaction | None = None
    """How the step cut the memory, in place of an answer."""
    error_code: str | None = None
    error: str | None = None
    tokens: int | None = None
    response_cost: float | None = None


class Transcript(Tolerant):
    """The transcript of a turn. `response_cost` is in US dollars, null if it is known for no step."""

    request: list[JsonValue]
    """The instructions in the context box."""
    steps: list[StepEntry]
    steers: list[SteerEntry] = Field(default_factory=list[SteerEntry])
    """What was said to the turn while it ran, in order, and where that stands."""
    calls_timed_out: int
    failed_attempts: int
    response_cost: float | None


def transcript_of(
    steps: Sequence[StepView],
    context: Sequence[Card],
    output: Sequence[Card],
    sent: Sequence[SentCall],
    steers: Sequence[SteerEntry] = (),
    *,
    first: int = 1,
) -> Transcript:
    """The transcript of a turn, from its steps, the cards of its two boxes, the calls that it sent, and its steers.

    `first` is the number of the first of these steps, where they are not all.
    """
    results = {card.tool_call_id: card for card in output if card.type == CardType.TOOL_RESULT}
    waits = {call.tool_call_id: call for call in sent}
    entries = [
        _step(number, step, [card for card in output if card.metadata.step_id == step.step_id], results, waits)
        for number, step in enumerate(steps, first)
    ]
    costs = [entry.response_cost for entry in entries if entry.response_cost is not None]
    return Transcript(
        request=[value_of(card) for card in context if card.type == CardType.INSTRUCTION],
        steps=entries,
        steers=list(steers),
        calls_timed_out=sum(call.status == TurnStatus.TIMEOUT for entry in entries for call in entry.calls),
        failed_attempts=sum(len(entry.failed_attempts) for entry in entries),
        response_cost=sum(costs) if costs else None,
    )


def _step(
    number: int,
    step: StepView,
    cards: Sequence[Card],
    results: dict[ToolCallId | None, Card],
    waits: dict[ToolCallId, SentCall],
) -> StepEntry:
    metadata = step.metadata
    attempts = [a for a in _list_or_empty(metadata.get("attempts")) if isinstance(a, dict)]
    thought = next((card for card in cards if card.type == CardType.THOUGHT), None)
    text = None if thought is None else value_of(thought)
    entries = list(_calls(step, thought, cards, results, waits))
    records = [entry.recorded for entry in entries if entry.recorded is not None]
    models = [a["model"] for a in attempts if isinstance(a.get("model"), str)]
    models += [did.model for record in records for did in record.steps if did.model is not None]
    codes = [attempt.get("error_code") for attempt in attempts]
    usage = metadata.get("llm_usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    counts = [count for count in (tokens, *(record.tokens for record in records)) if isinstance(count, int)]
    cost = metadata.get("llm_response_cost")
    costs = [c for c in (cost, *(record.cost for record in records)) if isinstance(c, int | float)]
    return StepEntry(
        number=number,
        step_id=step.step_id,
        status=step.status,
        started_at=step.started_at,
        ended_at=step.ended_at,
        model=str(models[-1]) if models else None,
        text=text if isinstance(text, str) or text is None else json.dumps(text, ensure_ascii=False),
        calls=entries,
        failed_attempts=[str(code) for code in codes if code not in {None, ATTEMPT_CANCELED}],
        truncated=_string_or_none(metadata, "truncated"),
        reminded=any(card.type == CardType.MUST_END_WITH_REQUIRED for card in cards),
        compaction=_compaction(metadata.get("compaction")),
        error_code=_string_or_none(metadata, "error_code"),
        error=step.error,
        tokens=sum(counts) if counts else None,
        response_cost=sum(costs) if costs else None,
    )


def _compaction(value: JsonValue) -> Compaction | None:
    try:
        return None if value is None else Compaction.model_validate(value)
    except ValidationError:  # of another version
        return None


def _calls(
    step: StepView,
    thought: Card | None,
    cards: Sequence[Card],
    results: dict[ToolCallId | None, Card],
    waits: dict[ToolCallId, SentCall],
) -> Iterable[CallEntry]:
    """The calls in the model's answer; for a step without a model (a UI action) the calls of its cards."""
    calls = {
        call.tool_call_id: (call.tool_name, call.arguments) for call in (thought.tool_calls if thought else ()) or ()
    }
    edits = {card.tool_call_id: card.metadata.edited for card in cards if card.metadata.edited is not None}
    for card in cards:
        if card.type == CardType.TOOL_CALL and card.tool_call_id is not None and card.tool_call_id not in calls:
            content = without_added(card).content
            called: JsonObject = content if isinstance(content, dict) else {}
            calls[card.tool_call_id] = (str(called.get("tool_name")), json.dumps(called.get("arguments")))
    for call in (*calls, *(call_id for call_id in step.tool_call_ids or () if call_id not in calls)):
        wait, result = waits.get(call), results.get(call)
        tool, arguments = calls.get(call, (wait.tool_name if wait else "?", ""))
        entry = CallEntry(
            tool_call_id=call,
            tool=tool,
            arguments=_parse_arguments(arguments),
            edited=edits.get(call),
            status="waiting",
            sent_at=wait.created_at if wait else None,
            answered_at=(wait.received_at or wait.applied_at) if wait else None,
            recorded=wait.recorded if wait else None,
        )
        yield entry if result is None else entry.model_copy(update=_answer(result))


def _answer(card: Card) -> dict[str, JsonValue]:
    try:
        content = content_of(card)
    except CardUnreadable:
        return {"status": "unreadable", "result": card.content}
    if not isinstance(content, ToolResultContent):
        return {"status": "unreadable", "result": card.content}
    error = content.error
    fields: dict[str, JsonValue] = {"status": content.status, "result": content.result}
    return fields if error is None else {**fields, "error_code": error.code, "error": error.message}


def _parse_arguments(arguments: str) -> JsonValue:
    try:
        parsed = read_json_text(arguments) if arguments.strip() else {}
    except BadRequest:
        return arguments
    return arguments if too_deep(parsed) else parsed


def _list_or_empty(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _string_or_none(metadata: JsonObject, name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) else None
