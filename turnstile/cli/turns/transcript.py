"""A turn as a transcript: what was asked, and step by step what the model said, called and heard. Pure.

It is made of the turn's cards, its step rows and the rows of its calls, in that order of trust: a card that does not
parse is shown as it is, and what retention has taken is left out. `turn show --json` prints it as it stands here.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import Field, JsonValue

from turnstile.ledger.turns.views import SentCall, StepView
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import (
    Card,
    CardType,
    CardUnreadable,
    ToolResultContent,
    content_of,
    value_of,
)
from turnstile.schema.ids import StepId, ToolCallId
from turnstile.schema.states import TurnStatus


class CallEntry(Tolerant):
    """A call of a step, with its answer if there is one."""

    tool_call_id: ToolCallId
    tool: str
    arguments: JsonValue = None
    """As the model gave them; text if they are no JSON."""
    status: str
    """That of the result, or `waiting`."""
    error_code: str | None = None
    error: str | None = None
    result: JsonValue = None
    sent_at: datetime | None = None
    """Null where the call was answered without being sent: refused, or built in."""
    answered_at: datetime | None = None


class StepEntry(Tolerant):
    """A step: the attempts at its model, the answer, its calls."""

    number: int
    step_id: StepId
    status: str
    started_at: datetime
    ended_at: datetime | None
    model: str | None = None
    text: str | None = None
    calls: list[CallEntry] = Field(default_factory=list[CallEntry])
    failed_attempts: list[str] = Field(default_factory=list[str])
    """The error code of each attempt that gave no answer, in order."""
    truncated: str | None = None
    reminded: bool = False
    """Whether the model was told to end the turn with a tool."""
    error_code: str | None = None
    error: str | None = None
    tokens: int | None = None
    response_cost: float | None = None


class Transcript(Tolerant):
    """What was asked and what came of it. `response_cost` is in US dollars, null where no step's is known."""

    request: list[JsonValue]
    """The instructions in the context box."""
    steps: list[StepEntry]
    calls_timed_out: int
    failed_attempts: int
    response_cost: float | None


def transcript_of(
    steps: Sequence[StepView], context: Sequence[Card], output: Sequence[Card], sent: Sequence[SentCall]
) -> Transcript:
    """The transcript of a turn from its steps, the cards of its two boxes, and the calls it has sent."""
    results = {card.tool_call_id: card for card in output if card.type == CardType.TOOL_RESULT}
    waits = {call.tool_call_id: call for call in sent}
    entries = [
        _step(number, step, [card for card in output if card.metadata.step_id == step.step_id], results, waits)
        for number, step in enumerate(steps, 1)
    ]
    costs = [entry.response_cost for entry in entries if entry.response_cost is not None]
    return Transcript(
        request=[value_of(card) for card in context if card.type == CardType.INSTRUCTION],
        steps=entries,
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
    attempts = [each for each in _listed(metadata.get("attempts")) if isinstance(each, dict)]
    thought = next((card for card in cards if card.type == CardType.THOUGHT), None)
    text = None if thought is None else value_of(thought)
    models = [each["model"] for each in attempts if isinstance(each.get("model"), str)]
    usage = metadata.get("llm_usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    cost = metadata.get("llm_response_cost")
    return StepEntry(
        number=number,
        step_id=step.step_id,
        status=step.status,
        started_at=step.started_at,
        ended_at=step.ended_at,
        model=str(models[-1]) if models else None,
        text=text if isinstance(text, str) or text is None else json.dumps(text, ensure_ascii=False),
        calls=list(_calls(step, thought, cards, results, waits)),
        failed_attempts=[str(each["error_code"]) for each in attempts if each.get("error_code") is not None],
        truncated=_word(metadata, "truncated"),
        reminded=any(card.type == CardType.MUST_END_WITH_REQUIRED for card in cards),
        error_code=_word(metadata, "error_code"),
        error=step.error,
        tokens=tokens if isinstance(tokens, int) else None,
        response_cost=cost if isinstance(cost, int | float) else None,
    )


def _calls(
    step: StepView,
    thought: Card | None,
    cards: Sequence[Card],
    results: dict[ToolCallId | None, Card],
    waits: dict[ToolCallId, SentCall],
) -> Iterable[CallEntry]:
    """The calls of the model's answer; those of a step without one (a UI action) by their cards."""
    made = {
        call.tool_call_id: (call.tool_name, call.arguments) for call in (thought.tool_calls if thought else ()) or ()
    }
    for card in cards:
        if card.type == CardType.TOOL_CALL and card.tool_call_id is not None and card.tool_call_id not in made:
            content = card.content if isinstance(card.content, dict) else {}
            made[card.tool_call_id] = (str(content.get("tool_name")), json.dumps(content.get("arguments")))
    for call in (*made, *(each for each in step.tool_call_ids or () if each not in made)):
        wait, result = waits.get(call), results.get(call)
        tool, arguments = made.get(call, (wait.tool_name if wait else "?", ""))
        entry = CallEntry(
            tool_call_id=call,
            tool=tool,
            arguments=_parsed(arguments),
            status="waiting",
            sent_at=wait.created_at if wait else None,
            answered_at=(wait.received_at or wait.applied_at) if wait else None,
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
    told: dict[str, JsonValue] = {"status": content.status, "result": content.result}
    return told if error is None else {**told, "error_code": error.code, "error": error.message}


def _parsed(arguments: str) -> JsonValue:
    try:
        found: JsonValue = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return found


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


def _word(metadata: JsonObject, name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) else None
