"""`suspended`: many turns asleep on tools that do not answer, what they cost, and how soon some of them are woken."""

import asyncio
import time

from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.figures import Figure, Result, spread
from lab.bench.place import Place, Section
from lab.bench.proc import resident_mb
from lab.bench.stage import Stage, staged, usage_figures
from lab.bench.yardsticks.measure import count_suspended, list_waiting_calls
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, ToolCallId

_PATIENT: dict[str, Section] = {
    "tools": {"suspend_timeout_seconds": 3600.0},
    "bridge": {"command_retry_seconds": 3600.0},
}
_ON_THEIR_WAY = 200
"""What nobody begins within `[bridge].dispatched_timeout_seconds` is ended."""
_LOOK_SECONDS = 0.2


async def run_suspended(place: Place, bars: Bars) -> Result:
    """Put them to sleep, look at what that costs, wake a hundred."""
    plan = place.plan
    wake = min(plan.wake, plan.asleep)
    async with staged(place, "suspended", "bench_later", plan.asleep, sections=_PATIENT, warm=False) as stage:
        empty = resident_mb(stage.pids())
        began = time.perf_counter()
        await _suspend(stage, bars)
        seconds = time.perf_counter() - began
        asleep = resident_mb(stage.pids())
        await stage.look_idle()
        before, began = await stage.read(), time.perf_counter()
        took = await _wake(stage, wake)
        woken = time.perf_counter() - began
        values = stage.used((await stage.read()).since(before), wake)
    figures = [
        Figure(name="turns put to sleep", value=plan.asleep / seconds, unit="/s"),
        Figure(name="memory for each that sleeps", value=(asleep - empty) * 1000 / plan.asleep, unit="kB"),
        Figure(
            name="CPU of worker and bridge while all sleep",
            value=stage.idle.kernel_cpu() / stage.idle.at * 100,
            unit="%",
        ),
        Figure(name="turns woken", value=wake / woken, unit="/s"),
        *spread("report to task event", took),
        *usage_figures(values),
        *await stage.common(plan.asleep),
    ]
    return Result(scenario="suspended", figures=tuple(figures))


async def _suspend(stage: Stage, bars: Bars) -> None:
    """A turn of every agent, until all are asleep; no more on their way than would begin in time."""
    count, asked, seen, quiet = len(stage.agents), 0, 0, 0.0
    with bars.bar("suspended: turns go to sleep", count) as advance:
        while seen < count:
            more = stage.agents[asked : seen + _ON_THEIR_WAY]
            await asyncio.gather(*map(stage.asker.enqueue, more))
            asked += len(more)
            await asyncio.sleep(_LOOK_SECONDS)
            now = await stage.place.pool.run(lambda conn: count_suspended(conn, stage.project))
            advance(now - seen)
            quiet = quiet + _LOOK_SECONDS if now == seen else 0.0
            if quiet > 60:
                raise BenchError(f"{now} of {count} turns fell asleep, and no more for a minute")
            seen = now


async def _wake(stage: Stage, count: int) -> list[float]:
    """Answer that many calls at once; ms from each report to the turn's `task` event."""
    calls = await stage.place.pool.run(lambda conn: list_waiting_calls(conn, stage.project, count))

    async def one(call: ToolCallId, turn: AgentTurnId) -> float:
        report: JsonObject = {"tool_call_id": call, "status": "success", "result": {"ok": True}}
        began = time.perf_counter()
        reply = await stage.asker.client.request("report", report, timeout=60)
        if reply["status"] != "accepted":
            raise BenchError(f"a report was not accepted: {reply}")
        return (await stage.asker.wait(turn) - began) * 1000

    return list(await asyncio.gather(*(one(call.tool_call_id, call.agent_turn_id) for call in calls)))
