"""`budget`: turns without a budget, with one of their own each, and charged to one row of their project, alternately.

Medians of the rounds count. A turn with a budget reserves before its model is asked and settles with its end; what all
turns of a project share is one row, whose lock each of them waits for.
"""

import asyncio
import time
from collections.abc import Sequence

from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_least, medians, ratio
from lab.bench.system import System, open_system
from turnstile.ledger.budgets.budget_views import list_budgets
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId

_OWN: JsonObject = {"budget": {"max_tokens": 1_000_000, "max_turns": 2}}
_SHARED: JsonObject = {"max_tokens": 1_000_000_000_000, "max_turns": 100_000_000}
_KINDS = ("without", "own", "shared")
_OPERATOR = Caller("bench", operates=True)


async def run_budget(environment: Environment, bars: Bars) -> Result:
    """Measure what a budget costs a turn; every other round in the opposite order."""
    plan, rounds = environment.plan, list[dict[str, float]]()
    async with open_system(environment, "budget", "instant", plan.turns) as system:
        with bars.bar("budget: turns without and with budgets in turns", plan.rounds * len(_KINDS)) as advance:
            for number in range(plan.rounds):
                values: dict[str, float] = {}
                for kind in _KINDS if number % 2 == 0 else reversed(_KINDS):
                    values |= await _turns(system, kind, plan.turns)
                    advance(1)
                rounds.append(values)
        left = await environment.pool.run(
            lambda conn: list_budgets(conn, system.project, kind="turn", row_limit=100_000)
        )
        open_ones = sum(e.status != "closed" or e.tokens.reserved > 0 for e in left)
    values = medians(rounds)
    figures = [
        Figure(name="turns without a budget", value=values["without rate"], unit="/s"),
        Figure(name="turns with one each", value=values["own rate"], unit="/s"),
        Figure(name="turns of one project's day", value=values["shared rate"], unit="/s"),
        Figure(
            name="with one each ÷ without",
            value=_ratio(rounds, "own"),
            goal=at_least(0.95),
        ),
        Figure(name="of one project's day ÷ without", value=_ratio(rounds, "shared")),
        *(Figure(name=f"database round trips a turn, {kind}", value=values[f"{kind} round trips"]) for kind in _KINDS),
        *await system.common(),
    ]
    if open_ones:
        raise BenchError(f"{open_ones} grants of {len(left)} did not close")
    return Result(scenario="budget", figures=tuple(figures), details={"rounds": [{**r} for r in rounds]})


def _ratio(rounds: Sequence[dict[str, float]], kind: str) -> float:
    """The median of the rounds' ratios: what drifts over the run is in both parts of each."""
    return medians([{"ratio": ratio(r[f"{kind} rate"], r["without rate"])} for r in rounds])["ratio"]


async def _turns(system: System, kind: str, count: int) -> dict[str, float]:
    """A turn of each of so many agents at once."""
    if kind == "shared":
        await _limit(system, _SHARED)
    before, began = await system.read(), time.perf_counter()
    limits = _OWN if kind == "own" else {}
    await asyncio.gather(*(_turn(system, agent, limits) for agent in system.agents[:count]))
    seconds = time.perf_counter() - began
    spent = (await system.read()).since(before)
    if kind == "shared":
        await _limit(system, None)
    return {f"{kind} rate": count / seconds, f"{kind} round trips": system.used(spent, count)["round trips"]}


async def _turn(system: System, agent: AgentId, limits: JsonObject) -> None:
    await system.load.wait(await system.load.request({"agent_id": agent, "instruction": "hello", **limits}))


async def _limit(system: System, limits: JsonObject | None) -> None:
    request: JsonObject = {"period": "day", "limits": limits}
    reply = await system.load.client.request("limit_project", request, caller=_OPERATOR)
    if reply["status"] != "accepted":
        raise BenchError(f"the project's limit was refused: {reply['error']}")
