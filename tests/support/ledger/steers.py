"""Steers, by the ledger's own functions, and steps that ask with them."""

from typing import Any

from tests.support.ledger.agents import CHANNEL, PROJECT, STARTED, card, rows
from turnstile.ledger.people.steers import steer, steer_turn
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.steps import CommittedStep, commit_step
from turnstile.rules.turn_ends import Ending, FinishedTurn
from turnstile.rules.turn_step import BegunStep, StepRecord
from turnstile.schema.access import Caller
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentTurnId, SteerId, new_steer_id
from turnstile.schema.people.steers import SteerRequest
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata
from turnstile.schema.turns import TurnRef

ROOT = Caller("root", operates=True)


def _request(turn: TurnRef | AgentTurnId, text: str, **fields: Any) -> SteerRequest:
    name = turn.agent_turn_id if isinstance(turn, TurnRef) else turn
    return SteerRequest.model_validate({"agent_turn_id": name, "text": text, **fields})


async def say(
    pool: Pool, turn: TurnRef | AgentTurnId, text: str = "listen", *, caller: Caller = ROOT, **fields: Any
) -> SteerId:
    """An accepted or repeated steer."""
    return (await steer(pool, PROJECT, CHANNEL, _request(turn, text, **fields), caller)).steer_id


async def say_on(conn: Connection, turn: TurnRef, text: str = "listen", **fields: Any) -> SteerId:
    """steer_turn, on this connection."""
    return (await steer_turn(conn, PROJECT, CHANNEL, _request(turn, text, **fields), ROOT, new_steer_id())).steer_id


async def steers(pool: Pool, turn: TurnRef | AgentTurnId) -> dict[str, tuple[str, str | None]]:
    """Status and step of each steer of a turn, in the order of acceptance."""
    name = turn.agent_turn_id if isinstance(turn, TurnRef) else turn
    found = await rows(pool, "SELECT * FROM state.steers WHERE agent_turn_id = $1 ORDER BY seq", name)
    return {row["steer_id"]: (row["status"], row["step_id"]) for row in found}


def _record(turn: TurnRef, begun: BegunStep, *, last: bool = False, steered: bool = False) -> StepRecord:
    number = begun.head.step_count + 1
    said = [s.card_id for s in begun.steers]
    cards = [*begun.steers, card(turn, number, "thought")]
    if last:
        cards.append(card(turn, number, "deliverable", CardType.DELIVERABLE))
    metadata = (EndMetadata if last else ContinueMetadata)(new_card_ids=tuple(c.card_id for c in cards))
    return StepRecord(number, metadata, cards, [], STARTED, kept=said, steers=said, steered=steered)


async def commit_asked(pool: Pool, turn: TurnRef, begun: BegunStep, *, steered: bool = False) -> CommittedStep:
    """commit_step of a step that asked with its steers."""
    record = _record(turn, begun, steered=steered)
    return await pool.run(lambda conn: commit_step(conn, turn, record))


async def finish_asked_on(conn: Connection, turn: TurnRef, begun: BegunStep, *, yields: bool = True) -> FinishedTurn:
    """finish_turn by a step that asked with its steers, on this connection."""
    record = _record(turn, begun, last=True)
    ending = Ending(TurnStatus.SUCCESS, record.cards[-1].card_id)
    return await finish_turn(conn, turn, ending, record=record, yields=yields)


async def finish_asked(pool: Pool, turn: TurnRef, begun: BegunStep, *, yields: bool = True) -> FinishedTurn:
    """finish_turn by a step that asked with its steers."""
    return await pool.run(lambda conn: finish_asked_on(conn, turn, begun, yields=yields))
