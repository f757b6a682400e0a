"""`fork`: turns that fork children and wait for all of them, next to as many bare workflows; then a deep tree.

A fork takes from the commit of the parent's call, by the ledger's clock, to the end of its last child. The wake-up is
from there to the begin of the parent's next step.
"""

import time
from collections.abc import Mapping

from lab.bench.agents import add_forker, forker_of, tree_of
from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_least, medians, percentile, ratio
from lab.bench.system import System, open_system
from lab.bench.yardsticks.measure import list_fork_timings
from lab.bench.yardsticks.take import bare_workers
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId


async def run_fork(environment: Environment, bars: Bars) -> Result:
    """Measure forks of each of the plan's sizes, and a tree of the plan's depth."""
    plan = environment.plan
    figures: list[Figure] = []
    details: JsonObject = {}
    with bars.bar("fork: forks and bare workflows in turns", plan.rounds * (len(plan.forks) + 1)) as advance:
        for size in plan.forks:
            rounds: list[dict[str, float]] = []
            async with (
                open_system(environment, "fork", "instant", 1) as system,
                bare_workers(environment) as bares,
            ):
                await add_forker(environment.pool, system.project, environment.target, forker_of(size))
                times = max(1, plan.fork_children // size)
                for _ in range(plan.rounds):
                    taken = [await bares.at_once("one", size) for _ in range(times)]
                    rounds.append(medians(taken) | await _forks(system, size, times))
                    advance(1)
            figures += _figures(size, medians(rounds), system, plan.rounds * times * size)
            details[f"{size}"] = [dict(r) for r in rounds]
        figures += await _tree(environment, plan.fork_depth, plan.fork_width, plan.rounds)
        advance(plan.rounds)
    return Result(scenario="fork", figures=tuple(figures), details=details)


async def _forks(system: System, size: int, times: int) -> dict[str, float]:
    """So many forks of this size, one after the other: medians of their times, and what each child used."""
    before = await system.read()
    turns: list[AgentTurnId] = []
    for _ in range(times):
        turns.append(await system.load.enqueue(forker_of(size)))
        await system.load.wait(turns[-1])
    used = system.used((await system.read()).since(before), size * times)
    timed = await system.environment.pool.run(lambda conn: list_fork_timings(conn, system.project, turns))
    return used | {
        "rate": size * 1000 / percentile([t.fork_ms for t in timed], 0.5),
        "opened": percentile([t.enqueued_ms for t in timed], 0.5),
        "wake": percentile([t.wake_ms for t in timed], 0.5),
    }


def _figures(size: int, values: Mapping[str, float], system: System, children: int) -> list[Figure]:
    used = {"kernel": "cpu kernel", "postgres": "cpu postgres", "temporal": "cpu temporal"}
    named = [
        Figure(name="children", value=values["rate"], unit="/s"),
        Figure(name="bare workflows, one activity", value=values["bare one rate"], unit="/s"),
        Figure(
            name="children/s ÷ bare workflows/s",
            value=ratio(values["rate"], values["bare one rate"]),
            goal=at_least(0.9),
        ),
        Figure(name="from the call to the last child's enqueue", value=values["opened"], unit="ms"),
        Figure(name="from the last child's end to the parent's next step", value=values["wake"], unit="ms"),
        Figure(name="database round trips a child", value=values["round trips"]),
        Figure(name="rows written a child", value=ratio(system.rows.written, children)),
        Figure(name="rows read a child", value=ratio(system.rows.read, children)),
        Figure(name="NATS messages a child", value=values["messages"]),
        *(
            Figure(name=f"CPU a child, {who}", value=values[name], unit="ms")
            for who, name in used.items()
            if name in values
        ),
        Figure(name="bare workflow, CPU each", value=values["bare one cpu"], unit="ms"),
        Figure(name="peak memory", value=system.peak_mb, unit="MB"),
    ]
    return [n.model_copy(update={"name": f"{size} children: {n.name}"}) for n in named]


async def _tree(environment: Environment, depth: int, width: int, rounds: int) -> list[Figure]:
    """Trees in which each turn forks `width` children, down to `depth` levels below the root."""
    turns = sum(width**level for level in range(depth + 1))
    taken: list[dict[str, float]] = []
    async with open_system(environment, "tree", "instant", 1) as system, bare_workers(environment) as bares:
        for level in range(1, depth + 1):
            await add_forker(environment.pool, system.project, environment.target, tree_of(level, width))
        for _ in range(rounds):
            values = await bares.at_once("one", turns)
            began = time.perf_counter()
            await system.load.wait(await system.load.enqueue(tree_of(depth, width)))
            taken.append(values | {"seconds": time.perf_counter() - began})
    values = medians(taken)
    name = f"tree of depth {depth}"
    rate = turns / values["seconds"]
    return [
        Figure(name=f"{name}: turns", value=turns),
        Figure(name=f"{name}: from request to the root's end", value=values["seconds"], unit="s"),
        Figure(name=f"{name}: turns/s ÷ bare workflows/s", value=ratio(rate, values["bare one rate"])),
    ]
