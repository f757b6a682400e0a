"""The system under test for one scenario: new processes, a project with agents, and the resources they use.

Worker and bridge run in one process, as `turnstile up` composes them, or in two, with the plan's number of replicas.
Rows touched are counted over the whole life of the processes, since a database session reports them when it ends. All
other counters are differences between two readings.
"""

import asyncio
import math
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from lab.bench.agents import add_agents
from lab.bench.children import TURNSTILE, Child, child
from lab.bench.environment import Environment, Section
from lab.bench.figures import Figure, ratio, spread
from lab.bench.load_client import LoadClient, open_load_client
from lab.bench.proc import cpu_seconds, peak_memory_mb, tree_cpu_seconds
from lab.bench.tool import NATS_URL, READY
from lab.bench.yardsticks.measure import RowsTouched, list_step_timings, list_turn_timings, rows_touched
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId
from turnstile.workflows.options import turn_workflow_id

_HISTORY_SAMPLE = 10


@dataclass(frozen=True)
class Reading:
    """Counters at one moment, counted since the processes began. CPU in seconds."""

    at: float
    cpu: Mapping[str, float]
    round_trips: float
    messages: float
    stored: float

    def since(self, earlier: "Reading") -> "Reading":
        """The difference to an earlier reading."""
        return Reading(
            self.at - earlier.at,
            {name: value - earlier.cpu[name] for name, value in self.cpu.items()},
            self.round_trips - earlier.round_trips,
            self.messages - earlier.messages,
            self.stored - earlier.stored,
        )

    def kernel_cpu(self) -> float:
        """CPU seconds of worker and bridge together."""
        return sum(self.cpu.get(role, 0.0) for role in KERNEL)


TOGETHER = "worker+bridge"
KERNEL = ("worker", "bridge", TOGETHER)


@dataclass
class System:
    """The processes that serve one project, and its agents."""

    environment: Environment
    project: ProjectId
    agents: Sequence[AgentId]
    load: LoadClient
    children: Sequence[tuple[str, Child, int]]
    """Role, process and metrics port."""
    idle: Reading = field(default_factory=lambda: Reading(1.0, {}, 0, 0, 0))
    """What the idle processes used."""
    rows: RowsTouched = field(default_factory=lambda: RowsTouched(read=0, written=0))
    peak_mb: float = math.nan

    def pids(self) -> list[int]:
        """The process ids of worker and bridge."""
        return [process.pid for _, process, _ in self.children]

    async def read(self) -> Reading:
        """The counters now; raises `BenchError` if a process has ended."""
        for _, process, _ in self.children:
            process.check()
        round_trips, messages = 0.0, 0.0
        for _, _, port in self.children:
            counted = await asyncio.to_thread(_scrape, port)
            round_trips += counted.get("turnstile_database_round_trips_total", 0)
            messages += counted.get("turnstile_nats_messages_total", 0)
        cpu: dict[str, float] = {}
        for role, process, _ in self.children:
            cpu[role] = cpu.get(role, 0.0) + cpu_seconds(process.pid)
        cpu |= {name: tree_cpu_seconds(pid) for name, pid in self.environment.server_pids().items()}
        stored = await self.environment.stored()
        return Reading(asyncio.get_running_loop().time(), cpu, round_trips, messages, stored)

    async def measure_idle(self, seconds: float) -> None:
        """Measure what the processes use in these seconds, while they are idle."""
        before = await self.read()
        await asyncio.sleep(seconds)
        self.idle = (await self.read()).since(before)

    def used(self, spent: Reading, turns: int) -> dict[str, float]:
        """What each turn used; of round trips and messages the idle processes' share is subtracted."""
        idle = spent.at / self.idle.at
        values = {f"cpu {role}": seconds * 1000 / turns for role, seconds in spent.cpu.items() if role != TOGETHER}
        values["cpu kernel"] = spent.kernel_cpu() * 1000 / turns
        values["round trips"] = (spent.round_trips - self.idle.round_trips * idle) / turns
        values["messages"] = (spent.messages - self.idle.messages * idle) / turns
        values["stored"] = (spent.stored - self.idle.stored * idle) / turns
        return values

    async def timings(self) -> list[Figure]:
        """Percentiles by the ledger's clock, over all turns of the project."""
        pool = self.environment.pool
        turns = await pool.run(lambda conn: list_turn_timings(conn, self.project))
        steps = await pool.run(lambda conn: list_step_timings(conn, self.project))
        return [
            *spread("queue_delay_ms", [turn.queue_delay_ms for turn in turns]),
            *spread("step_ms", [step.step_ms for step in steps]),
            *spread("e2e_ms", [turn.e2e_ms for turn in turns]),
        ]

    async def common(self, begun: int | None = None) -> list[Figure]:
        """Figures that every scenario has after its processes have ended; rows per turn of all turns, or of `begun`."""
        turns = begun or len(await self.environment.pool.run(lambda conn: list_turn_timings(conn, self.project)))
        return [
            *await self.timings(),
            Figure(name="rows read a turn", value=ratio(self.rows.read, turns)),
            Figure(name="rows written a turn", value=ratio(self.rows.written, turns)),
            Figure(name="peak memory", value=self.peak_mb, unit="MB"),
        ]

    async def histories(self, turns: Sequence[AgentTurnId]) -> list[tuple[float, float]]:
        """Number of events and of bytes in the histories of the first few of these turns."""
        histories: list[tuple[float, float]] = []
        for turn in turns[:_HISTORY_SAMPLE]:
            handle = self.environment.temporal.get_workflow_handle(turn_workflow_id(turn))
            await handle.result()
            about = (await handle.describe()).raw_description.workflow_execution_info
            histories.append((about.history_length, about.history_size_bytes))
        return histories


def usage_figures(values: Mapping[str, float]) -> list[Figure]:
    """The values of `System.used` as figures."""
    return [
        Figure(name=f"CPU a turn, {_CPU.get(name, name.removeprefix('cpu '))}", value=value, unit="ms")
        if name.startswith("cpu ")
        else Figure(name=_NAMES[name], value=value)
        for name, value in values.items()
        if name.startswith("cpu ") or name in _NAMES
    ]


_CPU = {"cpu kernel": "worker and bridge together"}
_NAMES = {
    "round trips": "database round trips a turn",
    "messages": "NATS messages a turn, in and out of worker and bridge",
    "stored": "messages stored in streams a turn",
}


@asynccontextmanager
async def open_system(
    environment: Environment,
    name: str,
    model: str,
    agents: int,
    *,
    sections: Mapping[str, Section] | None = None,
    tool: bool = False,
    warm: bool = True,
) -> AsyncGenerator[System]:
    """Start processes that serve a new project with agents on `scripted/{model}`; with `tool` also a tool process."""
    project = ProjectId(f"bench-{name}-{uuid.uuid4().hex[:8]}")
    setup = Pool(environment.endpoints.database_url, size=1, name="turnstile-bench")
    added = await add_agents(setup, project, environment.target, model, agents)
    await setup.close()  # the session reports the rows it touched when it closes, before the count begins
    before = await environment.pool.run(rows_touched)
    async with AsyncExitStack() as stack:
        children = await start_processes(environment, name, sections or {}, stack)
        if tool:
            log, environ = environment.directory / f"{name}-tool.log", {NATS_URL: environment.endpoints.nats_url}
            started = child("tool", ("-m", "lab.bench.tool"), log, environment=environ)
            await (await stack.enter_async_context(started)).wait_for_log(READY)
        load = await stack.enter_async_context(open_load_client(environment.conn, project))
        system = System(environment, project, added, load, children)
        if warm:
            await load.alone(added[: environment.plan.warm])
        await system.measure_idle(environment.plan.idle_seconds)
        yield system
        system.peak_mb = peak_memory_mb(system.pids())
    after = await environment.pool.run(rows_touched)
    system.rows = RowsTouched(read=after.read - before.read, written=after.written - before.written)


async def start_processes(
    environment: Environment, name: str, sections: Mapping[str, Section], stack: AsyncExitStack
) -> list[tuple[str, Child, int]]:
    """Start worker and bridge as the plan composes them; returns role, process and metrics port of each."""
    plan = environment.plan
    workers = [("worker" if plan.split else TOGETHER, number) for number in range(plan.workers)]
    started: list[tuple[str, Child, int]] = []
    for role, number in [*workers, *([("bridge", 0)] if plan.split else [])]:
        label = f"{name}-{role}-{number}"
        config, port = environment.config(label, sections)
        words = [*TURNSTILE, *_COMMANDS[role], "--config", str(config)]
        if role == TOGETHER:
            words += ["--data", str(environment.directory / f"{label}-data")]
        log = environment.directory / f"{label}.log"
        started.append((role, await stack.enter_async_context(child(role, words, log)), port))
    await asyncio.gather(*(process.wait_for_log(_SAYS[role]) for role, process, _ in started))
    return started


_COMMANDS = {TOGETHER: ("up",), "worker": ("worker",), "bridge": ("bridge",)}
_SAYS = {TOGETHER: "turnstile is up", "worker": "worker serves", "bridge": "bridge serves"}


def _scrape(port: int) -> dict[str, float]:
    """Counters by name, summed over their labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = cast("bytes", answer.read()).decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums
