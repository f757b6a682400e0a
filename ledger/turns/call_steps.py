"""What a program records and reads under the call that it runs (protocol §21).

Guarantees: a step has one value, the first that was recorded while the call waited and its turn was not being stopped;
what a model used for it is booked in the same statement. Each is one round trip. Never publishes.
"""

import json
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from pydantic import JsonValue

from turnstile.ledger.queries import Connection, query
from turnstile.ledger.trees.batches import ParentCall
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card, CardMetadata, value_of
from turnstile.schema.errors import Refused
from turnstile.schema.ids import CardId, ProjectId, ToolCallId
from turnstile.schema.wire.call_requests import CALL_BYTES, MOST_STEPS, VALUE_BYTES, HistoryCard, StepOutcome

_MICRO = 1_000_000
_REFUSALS = {
    "unknown_call": "the project has no such call",
    "parent_over": "the call waits no more: its turn is over, or it was answered",
    "parent_stopping": "the turn is being stopped: it does nothing more",
    "not_sent": "the call was not sent to its tool: it waits for something else first",
    "too_many_steps": f"a call has at most {MOST_STEPS} steps, and {CALL_BYTES} bytes of values",
    "budget_exhausted": "the turn has nothing left of its budget",
}


class CallStep(Tolerant):
    """A step of a call: absent, or with the value that counts."""

    verdict: Literal["absent", "recorded", "duplicate"]
    value: JsonValue = None


class _HistoryRow(Tolerant):
    part: int
    position: int
    card_id: CardId
    content: str
    metadata: str


async def step_of_call(
    conn: Connection, project: ProjectId, call: ToolCallId, key: str, outcome: StepOutcome | None = None
) -> CallStep:
    """Record the step, or look for it without `outcome`; raises `Refused` with the code of why it may not run."""
    row = await query("step_of_call").one(
        conn, project_id=project, tool_call_id=call, key=key, recorded=None if outcome is None else _recorded(outcome)
    )
    answer = json.loads(row["step"])
    if (refusal := _REFUSALS.get(answer["verdict"])) is not None:
        raise Refused(answer["verdict"], refusal)
    return CallStep.model_validate(answer)


def _recorded(outcome: StepOutcome) -> str:
    size = len(json.dumps(outcome.value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > VALUE_BYTES:
        raise Refused("result_too_large", f"the value has {size} bytes; the limit is {VALUE_BYTES}")
    recorded: JsonObject = {"value": outcome.value, "bytes": size}
    if (use := outcome.usage) is not None:
        cost = int((Decimal(str(use.cost)) * _MICRO).to_integral_value(ROUND_CEILING))
        recorded |= {"model": use.model, "tokens": use.tokens, "written": use.written, "cost": cost}
    return json.dumps(recorded)


async def page_call_history(
    conn: Connection, call: ParentCall, after: tuple[int, int], row_limit: int
) -> list[HistoryCard]:
    """The next cards that the turn of the call may read; none at the end."""
    rows = await query("page_call_history").all_as(
        conn,
        _HistoryRow,
        project_id=call.project_id,
        agent_turn_id=call.agent_turn_id,
        output_box_id=call.output_box_id,
        context_box_id=call.context_box_id,
        after_part=after[0],
        after_position=after[1],
        row_limit=row_limit,
    )
    return [_shown(row) for row in rows]


def _shown(row: _HistoryRow) -> HistoryCard:
    metadata = CardMetadata.model_validate_json(row.metadata)
    card = Card(card_id=row.card_id, content=json.loads(row.content), metadata=metadata)
    return HistoryCard(
        place=f"{row.part}:{row.position}",
        card_id=row.card_id,
        type=metadata.type,
        role=metadata.role,
        agent_turn_id=metadata.agent_turn_id,
        value=value_of(card),
    )
