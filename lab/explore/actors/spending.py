"""Attempts that reserve of budgets, what steps say they used, and operators who raise and limit (protocol §6, budgets).

Two attempts of a step come in any order, and late. One reports what it used, or that nobody knows; the other used more
than it had reserved. An operator raises or lowers a grant once, and limits the day once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from lab.explore.actors.cast import PROJECT, Cast, Script, gated
from lab.explore.world import Move, View
from turnstile.ledger.budgets.attempts import reserve_attempt
from turnstile.ledger.budgets.steering import More, limit_project, raise_budget
from turnstile.ledger.pool import Pool
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import BudgetId, BudgetPeriod
from turnstile.schema.budgets.uses import AttemptUse, StepBudget
from turnstile.schema.turns import TurnRef

_INPUT, _OUTPUT = 10, 30
_USES: Mapping[str, tuple[int, int | None]] = {"1": (1, 25), "1?": (1, None), "2": (2, 90)}
"""What a step says: the first attempt what it used, or that nobody knows; the second more than it had reserved."""
_MODEL = "scripted/echo"
_ROOT, _OPERATOR = "root", "operator"


async def limit_day(pool: Pool, tokens: int, who: str = _ROOT) -> str:
    """Limit what the project may spend today."""
    limits = BudgetLimits(max_tokens=tokens)
    await pool.run(lambda conn: limit_project(conn, PROJECT, BudgetPeriod.DAY, limits, who))
    return "limited"


def used(script: Script, number: int, view: View) -> Iterator[tuple[str, StepBudget]]:
    """What an attempt of this step can say that was used, by a word; nothing of what was not reserved."""
    reserved = {row["attempt"] for row in view.all("budget_reservations", agent_turn_id=script.turn, step=number)}
    for word, (attempt, tokens) in _USES.items():
        if script.spends and attempt in reserved:
            yield word, StepBudget(uses=(AttemptUse(attempt=attempt, tokens=tokens, cost=0),))


def reservations(script: Script, turn: TurnRef, number: int) -> list[Move]:
    """An attempt of a step that has begun asks whether it may ask its model."""
    if not script.spends:
        return []

    async def reserve(pool: Pool, attempt: int) -> str:
        grant = await pool.run(
            lambda conn: reserve_attempt(conn, turn, number, attempt, _MODEL, input_tokens=_INPUT, max_tokens=_OUTPUT)
        )
        return grant.verdict

    name = f"reserve {script.letter} {number}"
    return [Move(f"{name} {number}", gated(lambda pool, n=number: reserve(pool, n))) for number in (1, 2)]


def operators(cast: Cast, view: View) -> list[Move]:
    """What an operator may change: each grant once, up or down, and the day once."""
    moves: list[Move] = []
    for script in cast.scripts:
        row = view.find("budgets", budget_id=script.turn)
        if row is not None and row["updated_by"] is None:
            moves += [_raises(script, more) for more in (30, -15)]
    days = view.all("budgets", kind="day")
    if days and days[0]["updated_by"] == _ROOT:
        moves.append(Move("limit", lambda pool: limit_day(pool, 45, _OPERATOR)))
    return moves


def _raises(script: Script, more: int) -> Move:
    async def do(pool: Pool) -> str:
        grant, key = BudgetId(script.turn), f"{script.turn}{more:+}"
        await pool.run(lambda conn: raise_budget(conn, PROJECT, grant, More(tokens=more), _OPERATOR, key))
        return "raised"

    return Move(f"{'raise' if more > 0 else 'lower'} {script.letter}", gated(do), repeats=False)


def unsettled(view: View) -> list[str]:
    """What of budgets is not over where all turns are: grants that are open, and what is reserved."""
    left = [f"budget {row['budget_id']} is open" for row in view.all("budgets", kind="turn", closed_at=None)]
    left += [f"budget {row['budget_id']} has something reserved" for row in view.table("budgets") if _reserves(row)]
    return left + [f"attempt {row['attempt']} is open" for row in view.all("budget_reservations", status="open")]


def _reserves(row: Mapping[str, Any]) -> bool:
    return any(row[f"reserved_{of}"] for of in ("tokens", "cost", "turns"))
