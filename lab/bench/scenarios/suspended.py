"""`suspended`: many turns sleep on calls that are not answered; measures their cost, and how fast some are woken."""

import asyncio
import time

from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.environment import Environment, Section
from lab.bench.figures import Figure, Result, percentile, ratio, spread
from lab.bench.proc import resident_mb
from lab.bench.system import System, open_system, usage_figures
from lab.bench.yardsticks.measure import count_suspended, list_waiting_calls
from lab.bench.yardsticks.take import bare_workers
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, ToolCallId

_PATIENT: dict[str, Section] = {
    "tools": {"suspend_timeout_seconds": 3600.0},
    "bridge": {"command_retry_seconds": 3600.0},
}
_MOST_IN_FLIGHT = 200
"""Turns in flight at most: a turn that does not begin within `[bridge].dispatched_timeout_seconds` is ended."""
_POLL_SECONDS = 0.2


async def run_suspended(environment: Environment, bars: Bars) -> Result:
    """Put the turns to sleep, measure what that costs, and wake some; then as many bare workflows."""
    plan = environment.plan
    wake = min(plan.wake, plan.asleep)
    async with open_system(
        environment, "suspended", "bench_later", plan.asleep, sections=_PATIENT, warm=False
    ) as system:
        empty = resident_mb(system.pids())
        began = time.perf_counter()
        await _suspend(system, bars)
        seconds = time.perf_counter() - began
        asleep = resident_mb(system.pids())
        await system.measure_idle(plan.asleep_seconds)
        before, began = await system.read(), time.perf_counter()
        took = await _wake(system, wake)
        woken = time.perf_counter() - began
        values = system.used((await system.read()).since(before), wake)
    async with bare_workers(environment) as bares:
        bare = await bares.woken(wake)
    figures = [
        Figure(name="turns put to sleep", value=plan.asleep / seconds, unit="/s"),
        Figure(name="memory for each that sleeps", value=(asleep - empty) * 1000 / plan.asleep, unit="kB"),
        Figure(
            name="CPU of worker and bridge while all sleep",
            value=system.idle.kernel_cpu() / system.idle.at * 100,
            unit="%",
        ),
        Figure(name="turns woken", value=wake / woken, unit="/s"),
        *spread("report to task event", took),
        *spread("bare workflows woken, signal to local activity", bare),
        Figure(name="p99, a turn ÷ a bare workflow", value=ratio(percentile(took, 0.99), percentile(bare, 0.99))),
        *usage_figures(values),
        *await system.common(plan.asleep),
    ]
    return Result(scenario="suspended", figures=tuple(figures))


async def _suspend(system: System, bars: Bars) -> None:
    """Start a turn of every agent and wait until all sleep; at most `_MOST_IN_FLIGHT` turns start at a time."""
    count, requested, seen, quiet = len(system.agents), 0, 0, 0.0
    with bars.bar("suspended: turns go to sleep", count) as advance:
        while seen < count:
            more = system.agents[requested : seen + _MOST_IN_FLIGHT]
            await asyncio.gather(*map(system.load.enqueue, more))
            requested += len(more)
            await asyncio.sleep(_POLL_SECONDS)
            now = await system.environment.pool.run(lambda conn: count_suspended(conn, system.project))
            advance(now - seen)
            quiet = quiet + _POLL_SECONDS if now == seen else 0.0
            if quiet > 60:
                raise BenchError(f"{now} of {count} turns fell asleep, and no more for a minute")
            seen = now


async def _wake(system: System, count: int) -> list[float]:
    """Answer `count` calls concurrently; returns ms from each report to the turn's `task` event."""
    calls = await system.environment.pool.run(lambda conn: list_waiting_calls(conn, system.project, count))

    async def one(call: ToolCallId, turn: AgentTurnId) -> float:
        report: JsonObject = {"tool_call_id": call, "status": "success", "result": {"ok": True}}
        began = time.perf_counter()
        reply = await system.load.client.request("report", report, timeout=60)
        if reply["status"] != "accepted":
            raise BenchError(f"a report was not accepted: {reply}")
        return (await system.load.wait(turn) - began) * 1000

    return list(await asyncio.gather(*(one(call.tool_call_id, call.agent_turn_id) for call in calls)))
