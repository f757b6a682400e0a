"""Measured scenarios: one outage under load, and the time until everything has recovered.

No other fault is injected, so no Turnstile process may be restarted.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from rich.console import Console

from lab.chaos.load import KINDS, PROJECT, Load, Turn
from lab.chaos.run import RunOptions, RunState, conclude, open_run, printing_progress, report, until
from lab.chaos.verdict import QUERIES
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent
from turnstile.schema.ids import AgentId

NATS_SECONDS = 60.0
CALM_SECONDS = 15.0
"""Seconds of load before and after the outage."""
PATIENCE_SECONDS = 240.0
Notes = tuple[tuple[str, str], ...]


async def nats_down(state: RunState) -> Notes:
    """Kill NATS for a minute; meanwhile only requests that are written to the ledger directly are accepted."""
    options = state.options
    seconds = NATS_SECONDS + 2 * CALM_SECONDS
    async with asyncio.TaskGroup() as group:
        group.create_task(state.load.run(options.turns, seconds, KINDS))
        await asyncio.sleep(CALM_SECONDS)
        died = time.time()
        await state.environment.servers.kill("nats")
        await asyncio.sleep(NATS_SECONDS)
        ended = await _ended_since(state, died)
        await state.environment.servers.restart("nats")
        back = time.time()
        waiting = [turn for turn in state.load.turns if turn.turn not in state.observer.seen]
        first = await until(
            lambda: _any_seen(state.load, waiting), PATIENCE_SECONDS, "a turn that waited was announced"
        )
        await until(lambda: _all_seen(state.load, waiting), PATIENCE_SECONDS, "all turns that waited were announced")
        last = time.time() - back
    return (
        ("NATS was away", f"{back - died:.1f} s; {ended} turns ended meanwhile, {len(waiting)} waited for it"),
        ("recovery", f"first task event {first:.1f} s after it was back, all that waited after {last:.1f} s"),
    )


async def postgres_restart(state: RunState) -> Notes:
    """Restart PostgreSQL, as for an upgrade."""
    async with asyncio.TaskGroup() as group:
        group.create_task(state.load.run(state.options.turns, 3 * CALM_SECONDS, KINDS))
        await asyncio.sleep(CALM_SECONDS)
        died = time.time()
        await state.environment.servers.restart("postgres")
        back = time.time()
        waiting = [turn for turn in state.load.turns if turn.turn not in state.observer.seen]
        first = await until(lambda: _any_seen(state.load, waiting), PATIENCE_SECONDS, "a turn that waited has ended")
        await until(lambda: _all_seen(state.load, waiting), PATIENCE_SECONDS, "all turns that waited have ended")
        last = time.time() - back
    return (
        ("PostgreSQL was away", f"{back - died:.1f} s; {len(waiting)} turns were open"),
        ("recovery", f"first turn ended {first:.1f} s after it was back, all that were open after {last:.1f} s"),
    )


async def wipe(state: RunState) -> Notes:
    """Delete Temporal's data while all turns are live, half of them asleep."""
    count = state.options.turns
    pool = Pool(state.environment.direct.database_url, size=2, name="chaos-wipe")
    try:
        agents = [AgentId(f"wiped-{number}") for number in range(count)]
        for agent in agents:
            await add_agent(pool, PROJECT, agent, "chaos")
        streams = [{"text": "word " * 120, "delay": 0.5}]
        sleeps = [{"calls": [["slow", {"seconds": 60}], ["quick", {"n": 1}]]}, {"text": "It is done."}]
        gate = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with gate:
                kind, steps = ("slow", sleeps) if number % 2 else ("streamed", streams)
                await state.load.one(kind, "request", agents[number], steps)

        await asyncio.gather(*map(one, range(count)))

        async def count_live() -> dict[str, int]:
            return {str(row["status"]): int(row["turns"]) for row in await pool.run(QUERIES["heads"].many)}

        async def all_live() -> bool:
            live = await count_live()
            return live.get("running", 0) + live.get("suspended", 0) == count

        await until(all_live, 60, f"{count} turns are live")
        live = await count_live()
        died = time.time()
        await state.environment.wipe_engine()
        back = time.time()

        async def all_brought_back() -> bool:
            return not await pool.run(QUERIES["not_brought_back"].many)

        brought_back = await until(all_brought_back, PATIENCE_SECONDS, "every turn has a workflow again")
        await until(lambda: _all_seen(state.load, state.load.turns), PATIENCE_SECONDS, "all turns ended")
        last = time.time() - back
    finally:
        await pool.close()
    return (
        ("live when wiped", ", ".join(f"{status} {turns}" for status, turns in live.items())),
        ("Temporal was away", f"{back - died:.1f} s"),
        (
            "recovery",
            f"{brought_back:.1f} s after it was back all had a workflow again, {last:.1f} s after it all had ended",
        ),
    )


async def _any_seen(load: Load, turns: list[Turn]) -> bool:
    return any(turn.turn in load.observer.seen for turn in turns)


async def _all_seen(load: Load, turns: list[Turn]) -> bool:
    return all(turn.turn in load.observer.seen for turn in turns)


async def _ended_since(state: RunState, moment: float) -> int:
    pool = Pool(state.environment.direct.database_url, size=1, name="chaos-count")
    try:
        return sum(row["ended_at"] > moment for row in await pool.run(QUERIES["outcomes"].many))
    finally:
        await pool.close()


def _scenario(
    name: str, scenario: Callable[[RunState], Awaitable[Notes]]
) -> Callable[[RunOptions, Console], Awaitable[bool]]:
    async def run(options: RunOptions, console: Console) -> bool:
        began = time.monotonic()
        console.print(f"logs, data and notes: {options.directory}")
        async with open_run(replace(options, kills=0), console) as state:
            before = {program.name: (program.pid, program.starts) for program in state.environment.programs.values()}
            async with printing_progress(state, began):
                notes = await scenario(state)
                verdict = await conclude(state)
            after = {program.name: (program.pid, program.starts) for program in state.environment.programs.values()}
            same = "unchanged" if before == after else "CHANGED"
            passed = report(state, verdict, name, time.monotonic() - began, (*notes, ("processes of ours", same)))
            return passed and before == after

    return run


SCENARIOS: Mapping[str, Callable[[RunOptions, Console], Awaitable[bool]]] = {
    "nats-down": _scenario("nats-down", nats_down),
    "postgres-restart": _scenario("postgres-restart", postgres_restart),
    "wipe": _scenario("wipe", wipe),
}
