"""`growth`: the statements behind enqueue and claim, alternately on a ledger with many old rows and on an empty one."""

import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from lab.bench.agents import add_agents
from lab.bench.bars import Advance, Bars
from lab.bench.children import BenchError
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most, percentile, ratio
from lab.bench.load_client import CHANNEL
from lab.bench.yardsticks.postgres import add_old_rows, scratch_database
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.intake import enqueue
from turnstile.ledger.turns.lease import claim_inbox
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.wire.inbox import EnqueueRequest

_DEPTH = 20


@dataclass
class _Ledger:
    """A ledger with agents that have no turns, and the ms that its statements took."""

    pool: Pool
    agents: Sequence[AgentId]
    enqueues: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)


async def run_growth(environment: Environment, bars: Bars) -> Result:
    """Measure the p50 of both statements on both ledgers, over one connection each; each agent gets one turn."""
    plan, project = environment.plan, ProjectId(f"bench-growth-{uuid.uuid4().hex[:8]}")
    count = plan.warm + plan.growth_turns
    async with AsyncExitStack() as stack:
        empty, old = [await _open(environment, project, count, stack) for _ in range(2)]
        with bars.bar("growth: old rows", plan.old_rows) as advance:
            await _age(old[0], project, old[1].agents, plan.old_rows, advance)
        with bars.bar("growth: enqueues and claims", count) as advance:
            for number in range(count):
                for _, ledger in (empty, old):
                    await _measure(ledger, project, environment.target, ledger.agents[number])
                advance(1)
    figures: list[Figure] = []
    for name in ("enqueue", "claim"):
        without, long = (
            percentile((each.enqueues if name == "enqueue" else each.claims)[plan.warm :], 0.5)
            for each in (empty[1], old[1])
        )
        figures += [
            Figure(name=f"{name}, empty ledger, median", value=without, unit="ms"),
            Figure(name=f"{name}, old ledger, median", value=long, unit="ms"),
            Figure(name=f"{name}: old ÷ empty", value=ratio(long, without), goal=at_most(1.2)),
        ]
    return Result(scenario="growth", figures=tuple(figures), details={"old_rows": plan.old_rows})


async def _open(environment: Environment, project: ProjectId, count: int, stack: AsyncExitStack) -> tuple[str, _Ledger]:
    url = await stack.enter_async_context(scratch_database(environment.endpoints.database_url))
    pool = Pool(url, size=1, name="turnstile-bench")
    stack.push_async_callback(pool.close)
    await migrate(pool)
    return url, _Ledger(pool, await add_agents(pool, project, environment.target, "instant", count))


async def _age(url: str, project: ProjectId, agents: Sequence[AgentId], rows: int, advance: Advance) -> None:
    sent = 0

    def report(total: int) -> None:
        nonlocal sent
        advance(total - sent)
        sent = total

    await add_old_rows(url, project, agents, rows, report)


async def _measure(ledger: _Ledger, project: ProjectId, target: str, agent: AgentId) -> None:
    """Time an enqueue for the agent, and the claim of its row."""
    request, keys = EnqueueRequest(agent_id=agent, instruction="hello"), [(project, agent)]
    began = time.perf_counter()
    await enqueue(ledger.pool, project, CHANNEL, request, {}, depth_limit=_DEPTH, sender="bench")
    asked = time.perf_counter()
    claimed = await ledger.pool.run(lambda conn: claim_inbox(conn, keys, [target], row_limit=10))
    ended = time.perf_counter()
    if [claim.verdict for claim in claimed] != ["start"]:
        raise BenchError(f"a claim found {[claim.verdict for claim in claimed]}")
    ledger.enqueues.append((asked - began) * 1000)
    ledger.claims.append((ended - asked) * 1000)
