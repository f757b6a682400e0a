"""Runs the scenarios one after the other in a temporary directory, and collects their results in a report."""

import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from lab.bench.bars import Bars
from lab.bench.environment import Environment, open_environment
from lab.bench.figures import Result
from lab.bench.plan import Plan, Scenario
from lab.bench.proc import load_average, machine, require_proc
from lab.bench.scenarios.audit import run_audit, run_retention
from lab.bench.scenarios.budget import run_budget
from lab.bench.scenarios.conversations import run_conversations
from lab.bench.scenarios.fairness import run_fairness
from lab.bench.scenarios.fanout import run_fanout
from lab.bench.scenarios.fork import run_fork
from lab.bench.scenarios.gateway import run_gateway
from lab.bench.scenarios.growth import run_growth
from lab.bench.scenarios.load import run_load
from lab.bench.scenarios.providers import run_providers
from lab.bench.scenarios.soak import run_soak
from lab.bench.scenarios.stages import run_stages
from lab.bench.scenarios.start import run_start
from lab.bench.scenarios.stop import run_stop
from lab.bench.scenarios.stream import run_stream
from lab.bench.scenarios.suspended import run_suspended
from lab.bench.scenarios.sync import run_sync
from lab.bench.scenarios.turn import run_tool, run_turn
from lab.bench.scenarios.usual import run_usual
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import TurnstileError
from turnstile.settings import Settings

RUNNERS: Mapping[Scenario, Callable[[Environment, Bars], Awaitable[Result]]] = {
    Scenario.TURN: run_turn,
    Scenario.STAGES: run_stages,
    Scenario.TOOL: run_tool,
    Scenario.USUAL: run_usual,
    Scenario.BUDGET: run_budget,
    Scenario.FANOUT: run_fanout,
    Scenario.STREAM: run_stream,
    Scenario.PROVIDERS: run_providers,
    Scenario.SOAK: run_soak,
    Scenario.STOP: run_stop,
    Scenario.FORK: run_fork,
    Scenario.LOAD: run_load,
    Scenario.CONVERSATIONS: run_conversations,
    Scenario.GATEWAY: run_gateway,
    Scenario.GROWTH: run_growth,
    Scenario.SUSPENDED: run_suspended,
    Scenario.FAIRNESS: run_fairness,
    Scenario.SYNC: run_sync,
    Scenario.START: run_start,
    Scenario.AUDIT: run_audit,
    Scenario.RETENTION: run_retention,
}


class Report(Strict):
    """The report of a whole run, as written to its JSON file."""

    began_at: datetime
    seconds: float
    machine: JsonObject
    load_before: float
    load_after: float
    generator_cpu_seconds: float
    """CPU time of this process, which shares the cores with the system under test."""
    embedded: list[str]
    plan: JsonObject
    results: list[Result]
    failures: dict[str, str] = Field(default_factory=dict[str, str])
    """The error of each scenario that has no result."""

    def result(self, scenario: str) -> Result | None:
        """The result of a scenario; None if it has none."""
        return next((result for result in self.results if result.scenario == scenario), None)


async def run_bench(settings: Settings, plan: Plan, scenarios: Collection[Scenario], bars: Bars) -> Report:
    """Run the scenarios in the order of `Scenario`, also if one fails; raises what `open_environment` raises."""
    require_proc()
    began_at, began, before = datetime.now(UTC), time.monotonic(), load_average()
    cpu, results, failures = time.process_time(), list[Result](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="turnstile-bench-") as name:
        bars.print_line("starting servers")
        async with open_environment(settings, plan, Path(name)) as environment:
            for scenario in (s for s in Scenario if s in scenarios):
                bars.print_line(scenario)
                try:
                    results.append(await RUNNERS[scenario](environment, bars))
                except TurnstileError as error:  # the other scenarios still run
                    failures[scenario] = str(error)
            embedded = [*environment.servers.embedded]
    return Report(
        began_at=began_at,
        seconds=round(time.monotonic() - began, 1),
        machine=machine(),
        load_before=before,
        load_after=load_average(),
        generator_cpu_seconds=round(time.process_time() - cpu, 2),
        embedded=embedded,
        plan=_sizes(plan),
        results=results,
        failures=failures,
    )


def _sizes(plan: Plan) -> JsonObject:
    sizes: JsonObject = asdict(plan)
    sizes["forks"] = [*plan.forks]
    sizes["provider_forms"] = [*plan.provider_forms]
    sizes["provider_held"] = [*plan.provider_held]
    sizes["gateway_parts"] = [*plan.gateway_parts]
    return sizes
