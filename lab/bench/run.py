"""A run: the scenarios one after the other in a temporary directory, and what all of them came to."""

import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from lab.bench.bars import Bars
from lab.bench.figures import Result
from lab.bench.place import Place, open_place
from lab.bench.plan import Plan, Scenario
from lab.bench.proc import load_average, machine, require_proc
from lab.bench.scenarios.fanout import run_fanout
from lab.bench.scenarios.growth import run_growth
from lab.bench.scenarios.load import run_load
from lab.bench.scenarios.stop import run_stop
from lab.bench.scenarios.stream import run_stream
from lab.bench.scenarios.suspended import run_suspended
from lab.bench.scenarios.turn import run_tool, run_turn
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import TurnstileError
from turnstile.settings import Settings

RUNNERS: Mapping[Scenario, Callable[[Place, Bars], Awaitable[Result]]] = {
    Scenario.TURN: run_turn,
    Scenario.TOOL: run_tool,
    Scenario.FANOUT: run_fanout,
    Scenario.STREAM: run_stream,
    Scenario.STOP: run_stop,
    Scenario.LOAD: run_load,
    Scenario.GROWTH: run_growth,
    Scenario.SUSPENDED: run_suspended,
}


class Report(Strict):
    """A whole run, as its JSON file has it."""

    began_at: datetime
    seconds: float
    machine: JsonObject
    load_before: float
    load_after: float
    generator_cpu_seconds: float
    """What this process used, which shares the cores with what it measures."""
    embedded: list[str]
    plan: JsonObject
    results: list[Result]
    failures: dict[str, str] = Field(default_factory=dict[str, str])
    """What went wrong in scenarios that have no result."""

    def result(self, scenario: str) -> Result | None:
        """A scenario's, if it ran."""
        return next((result for result in self.results if result.scenario == scenario), None)


async def run_bench(settings: Settings, plan: Plan, scenarios: Collection[Scenario], bars: Bars) -> Report:
    """Run them in the order of `Scenario`, whatever becomes of one; raises what `open_place` raises."""
    require_proc()
    began_at, began, before = datetime.now(UTC), time.monotonic(), load_average()
    cpu, results, failures = time.process_time(), list[Result](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="turnstile-bench-") as name:
        bars.say("starting servers")
        async with open_place(settings, plan, Path(name)) as place:
            for scenario in (each for each in Scenario if each in scenarios):
                bars.say(scenario)
                try:
                    results.append(await RUNNERS[scenario](place, bars))
                except TurnstileError as error:  # the others are worth no less
                    failures[scenario] = str(error)
            embedded = [*place.servers.embedded]
    return Report(
        began_at=began_at,
        seconds=round(time.monotonic() - began, 1),
        machine=machine(),
        load_before=before,
        load_after=load_average(),
        generator_cpu_seconds=round(time.process_time() - cpu, 2),
        embedded=embedded,
        plan=asdict(plan),
        results=results,
        failures=failures,
    )
