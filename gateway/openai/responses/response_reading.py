"""A turn as a response, read from the ledger: what it was asked with, what it did, how it ended (protocol §14.4)."""

import re
from typing import Final, cast

from turnstile.gateway.events.feed import SHOWN
from turnstile.gateway.events.positions import Position
from turnstile.gateway.openai.fields import NOTES
from turnstile.gateway.openai.responses.items import ItemLog
from turnstile.gateway.openai.responses.objects import (
    Failure,
    Incomplete,
    InputDetails,
    Named,
    OutputDetails,
    Response,
    Status,
    Usage,
)
from turnstile.gateway.v1.outputs import output_of
from turnstile.gateway.v1.resources import CardAnswer, Turn
from turnstile.ledger.access.pages import list_turn_progress
from turnstile.ledger.access.past import TurnRequest, get_turn_request
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.usage import TurnUsage, sum_turn_usage
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.chunk_order import step_number

_ID = re.compile(r"resp_([A-Za-z0-9_-]{1,128})")
PREFIX: Final = "resp_"


def turn_in(response: str) -> AgentTurnId:
    """The turn that a response's id names; raises `Refused` (unknown_response)."""
    found = _ID.fullmatch(response)
    if found is None:
        raise unknown_response()
    return AgentTurnId(found[1])


def unknown_response() -> Refused:
    """The error for a response that is not there, or is another's."""
    return Refused("unknown_response", "the project has no such response")


async def asked_with(pool: Pool, view: TurnView) -> TurnRequest:
    """What the turn was enqueued with."""
    found = await pool.run(lambda conn: get_turn_request(conn, view.project_id, view.agent_turn_id))
    return found if found is not None else TurnRequest.model_validate({"runtime_config": "{}", "metadata": "{}"})


async def read_response(pool: Pool, view: TurnView) -> Response:
    """The response as it is now."""
    project, turn = view.project_id, view.agent_turn_id
    rows = await pool.run(lambda conn: list_turn_progress(conn, project, turn))
    log = ItemLog()
    placed = [
        (Position(step_number(row.step_id), row.part, row.place, row.sub), row.card)
        for row in rows
        if row.card is not None and row.card.type in SHOWN
    ]
    for position, card in sorted(placed, key=lambda each: each[0]):
        log.take(position, CardAnswer.of(card))
    response = begun(view, await asked_with(pool, view), "queued" if view.status == "queued" else "in_progress")
    if view.ended_at is None:
        return response.model_copy(update={"output": log.items})
    card_id = view.deliverable_card_id
    output = None if card_id is None else await output_of(pool, view, card_id)
    ended = Turn.model_validate({**view.model_dump(), "output": output})
    log.end(ended)
    counted = await pool.run(lambda conn: sum_turn_usage(conn, project, turn))
    incomplete, failure = _incomplete(ended), _failure(ended)
    return response.model_copy(
        update={
            "status": _status(ended),
            "completed_at": int(view.ended_at.timestamp()) if _status(ended) == "completed" else None,
            "output": log.items,
            "usage": _usage(counted),
            "incomplete_details": incomplete,
            "error": failure,
        }
    )


def begun(view: TurnView, request: TurnRequest, status: Status) -> Response:
    """The response before the turn has done anything."""
    noted = request.metadata.get(NOTES)
    notes = cast("JsonObject", noted) if isinstance(noted, dict) else {}
    config = request.runtime_config
    return Response.model_validate(
        {
            **{name: notes[name] for name in _NOTED if name in notes},
            "id": PREFIX + view.agent_turn_id,
            "created_at": int(view.created_at.timestamp()),
            "status": status,
            "model": notes.get("model", view.agent_id),
            "instructions": config.get("instructions"),
            "max_output_tokens": config.get("max_tokens"),
            "temperature": config.get("temperature"),
            "conversation": Named(id=view.conversation_id) if view.conversation_id else None,
        }
    )


_NOTED = ("background", "metadata", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")


def _status(turn: Turn) -> Status:
    match TurnStatus(turn.status):
        case TurnStatus.SUCCESS:
            return "completed" if _incomplete(turn) is None else "incomplete"
        case TurnStatus.PARTIAL:
            return "incomplete"
        case TurnStatus.CANCELED:
            return "cancelled"
        case TurnStatus.FAILED | TurnStatus.TIMEOUT:
            return "failed"


def _incomplete(turn: Turn) -> Incomplete | None:
    if turn.status == TurnStatus.SUCCESS and turn.output is not None and turn.output.partial:
        return Incomplete(reason="max_output_tokens")
    return None


def _failure(turn: Turn) -> Failure | None:
    if turn.status in (TurnStatus.SUCCESS, TurnStatus.CANCELED):
        return None
    return Failure(code=turn.error_code or turn.status, message=turn.error or f"the turn ended: {turn.status}")


def _usage(counted: TurnUsage) -> Usage:
    return Usage(
        input_tokens=counted.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=counted.cached_tokens),
        output_tokens=counted.completion_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=counted.reasoning_tokens),
        total_tokens=counted.prompt_tokens + counted.completion_tokens,
    )
