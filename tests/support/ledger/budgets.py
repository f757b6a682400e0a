"""Turns with budgets, built by the ledger's own functions."""

import json
from typing import Any, cast

from tests.support.ledger.agents import ALICE, PROJECT, STARTED, begin, card, command, rows, send, start
from turnstile.ledger.budgets.attempts import Reservation, reserve_attempt
from turnstile.ledger.budgets.steering import limit_project
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.intake import Enqueued
from turnstile.ledger.turns.steps import CommittedStep, commit_step
from turnstile.rules.turn_ends import Ending, FinishedTurn
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import BudgetPeriod
from turnstile.schema.budgets.uses import AttemptUse, StepBudget
from turnstile.schema.cards import CardType
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata
from turnstile.schema.turns import TurnRef

MODEL = "scripted/echo"
_HOOK = """
CREATE OR REPLACE FUNCTION state.test_budget() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.payload := NEW.payload || jsonb_strip_nulls(jsonb_build_object('budget', coalesce(
        nullif(current_setting('test.plan', true), '')::jsonb, state.plan_budget(
            NEW.project_id, NEW.agent_turn_id, nullif(current_setting('test.own', true), '')::jsonb, NULL))));
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER test_budget BEFORE INSERT ON state.agent_inbox FOR EACH ROW
    WHEN (coalesce(current_setting('test.on', true), '') <> '') EXECUTE FUNCTION state.test_budget();
"""


async def hook(pool: Pool) -> None:
    """Let `enqueued` say what an enqueue may spend."""
    async with pool.connection() as conn:
        await conn.execute(_HOOK)


async def price(pool: Pool) -> None:
    """A token of the model costs 2 micro-dollars in, 10 out."""
    await rows(pool, "INSERT INTO state.model_prices VALUES ($1, 2, 10, NULL, 4096, 'test')", MODEL)


async def enqueued_on(conn: Connection, agent: AgentId, own: dict[str, int] | None) -> Enqueued:
    """Enqueue a turn that may spend this, in the transaction of the connection."""
    session = cast("Session", conn)
    await session.fetch("SELECT set_config('test.own', $1, true)", "" if own is None else json.dumps(own))
    await session.fetch("SELECT set_config('test.on', '1', true)")
    return await send(conn, command(agent))


async def enqueued(pool: Pool, own: dict[str, int] | None = None, agent: AgentId = ALICE) -> Enqueued:
    """Enqueue a turn that may spend this, of nobody's but its project's."""
    return await pool.transact(lambda conn: enqueued_on(conn, agent, own))


async def spender(pool: Pool, own: dict[str, int] | None = None, agent: AgentId = ALICE) -> TurnRef:
    """A running turn that may spend this, in its first step."""
    await enqueued(pool, own, agent)
    turn = await start(pool, agent)
    await begin(pool, turn)
    return turn


async def payload(pool: Pool, turn: TurnRef) -> Any:
    """Where a turn is charged."""
    text = "SELECT payload ->> 'budget' AS budget FROM state.agent_inbox WHERE agent_turn_id = $1"
    [row] = await rows(pool, text, turn.agent_turn_id)
    return json.loads(row["budget"]) if row["budget"] else None


async def child_on(
    conn: Connection, parent: dict[str, Any] | None, own: dict[str, int] | None, agent: AgentId
) -> Enqueued:
    """Enqueue a turn that may spend this of what another one may, as its child."""
    session = cast("Session", conn)
    asked = command(agent)
    texts = [None if each is None else json.dumps(each) for each in (own, parent)]
    [row] = await session.fetch(
        "SELECT state.plan_budget($1, $2, $3, $4)::text AS plan", PROJECT, asked.agent_turn_id, *texts
    )
    plan = None if row["plan"] is None else json.loads(row["plan"])
    plans = json.dumps([{"agent_turn_id": asked.agent_turn_id, "budget": plan}])
    if plan is not None:
        refused = await session.fetch("SELECT refusal::text FROM state.judge_children($1)", plans)
        if refused:
            raise Refused("budget_exceeded", refused[0]["refusal"])
        await session.fetch("SELECT set_config('test.plan', $1, true)", json.dumps(plan | {"granted": True}))
    await session.fetch("SELECT set_config('test.on', '1', true)")
    done = await send(conn, asked)
    if plan is not None:
        await session.fetch("SELECT state.grant_children($1, 'public', $2)", PROJECT, plans)
    return done


async def child_of(pool: Pool, parent: TurnRef, own: dict[str, int] | None, agent: AgentId) -> TurnRef:
    """A running turn that another one has asked for, in its first step."""
    known = await payload(pool, parent)
    await pool.transact(lambda conn: child_on(conn, known, own, agent))
    turn = await start(pool, agent)
    await begin(pool, turn)
    return turn


async def limit(
    pool: Pool, period: BudgetPeriod = BudgetPeriod.DAY, project: ProjectId = PROJECT, **limits: Any
) -> None:
    """What the turns of the project may spend; nothing limits them without any."""
    named = BudgetLimits.model_validate(limits)
    await pool.run(lambda conn: limit_project(conn, project, period, named, "user.test"))


async def reserving(
    conn: Connection,
    turn: TurnRef,
    step: int = 1,
    attempt: int = 1,
    tokens: tuple[int, int] = (100, 50),
    model: str = MODEL,
) -> Reservation:
    """reserve_attempt: input, and the most that the model may answer; on this connection."""
    return await reserve_attempt(conn, turn, step, attempt, model, input_tokens=tokens[0], max_tokens=tokens[1])


async def reserve(
    pool: Pool, turn: TurnRef, step: int = 1, attempt: int = 1, tokens: tuple[int, int] = (100, 50), model: str = MODEL
) -> Reservation:
    """As `reserving`, in a transaction of its own."""
    return await pool.run(lambda conn: reserving(conn, turn, step, attempt, tokens, model))


async def settled_now(conn: Connection) -> None:
    """Do at once what a transaction would do of budgets at its commit."""
    await cast("Session", conn).fetch("SET CONSTRAINTS ALL IMMEDIATE")


def uses(*known: tuple[int, int | None, int | None]) -> StepBudget:
    """What attempts used: their number, tokens and cost, null where nobody knows."""
    return StepBudget(uses=tuple(AttemptUse(attempt=a, tokens=t, cost=c) for a, t, c in known))


async def commit_uses(pool: Pool, turn: TurnRef, used: StepBudget, step: int = 1) -> CommittedStep:
    """commit_step of a middle step that says what its attempts used."""
    record = StepRecord(step, ContinueMetadata(budget=used), [card(turn, step, "thought")], [], STARTED)
    return await pool.run(lambda conn: commit_step(conn, turn, record))


async def end_on(conn: Connection, turn: TurnRef, used: StepBudget | None = None, step: int = 1) -> FinishedTurn:
    """finish_turn by a step that says what its attempts used, on this connection."""
    made = card(turn, step, "deliverable", CardType.DELIVERABLE)
    record = StepRecord(step, EndMetadata(budget=used), [made], [], STARTED)
    return await finish_turn(conn, turn, Ending(TurnStatus.SUCCESS, made.card_id), record=record)


async def end(pool: Pool, turn: TurnRef, used: StepBudget | None = None, step: int = 1) -> FinishedTurn:
    """As `end_on`, in a transaction of its own."""
    return await pool.run(lambda conn: end_on(conn, turn, used, step))


async def budget(pool: Pool, name: str | None) -> dict[str, Any]:
    """The row of a budget."""
    [row] = await rows(pool, "SELECT * FROM state.budgets WHERE budget_id = $1", name)
    return row


async def figures(pool: Pool, name: str, dimension: str = "tokens") -> tuple[int | None, int, int]:
    """Of a budget: what it has, what is spent and what is reserved."""
    row = await budget(pool, name)
    return (row[f"max_{dimension}"], row[f"spent_{dimension}"], row[f"reserved_{dimension}"])


async def charged_turn(pool: Pool, turn: AgentTurnId | None) -> JsonObject | None:
    """What the turn carries: whose budgets it spends, and until when; None if nothing limits it."""
    found = "SELECT payload -> 'budget' AS budget FROM state.agent_inbox WHERE agent_turn_id = $1"
    [row] = await rows(pool, found, turn)
    return None if row["budget"] is None else json.loads(row["budget"])


async def charged(pool: Pool, made: Enqueued) -> JsonObject | None:
    """What an enqueued turn carries."""
    return await charged_turn(pool, made.reply.agent_turn_id)
