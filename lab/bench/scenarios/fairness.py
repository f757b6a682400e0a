"""`fairness`: how long a turn of one project takes to begin while another project floods the same bridge and worker.

The flood is an agent for each turn, whose doorbells are published before the processes start. Then the other project
enqueues its turns, one after the other.
"""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack

from lab.bench.agents import SLOW, add_players
from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, spread
from lab.bench.load_client import CHANNEL, open_load_client
from lab.bench.system import start_processes
from lab.bench.yardsticks.measure import Delay, read_delay
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.wire.inbox import EnqueueRequest

_AT_ONCE = 4
_SECTIONS = {"worker": {"max_concurrency": 20}}


async def run_fairness(environment: Environment, bars: Bars) -> Result:
    """Measure the quiet project's turns while the flood lasts."""
    plan, suffix = environment.plan, uuid.uuid4().hex[:8]
    loud, quiet = ProjectId(f"bench-loud-{suffix}"), ProjectId(f"bench-quiet-{suffix}")
    pool, target, delays = environment.pool, environment.target, list[Delay]()
    flood = await add_players(pool, loud, target, SLOW, "loud", plan.flood)
    [agent] = await add_players(pool, quiet, target, "instant", "quiet", 1)
    with bars.bar("fairness: a flood, then turns beside it", len(flood) + plan.quiet_turns) as advance:
        await asyncio.gather(*(_ring(environment, loud, flood[lane::_AT_ONCE]) for lane in range(_AT_ONCE)))
        advance(len(flood))
        async with AsyncExitStack() as stack:
            await start_processes(environment, "fairness", _SECTIONS, stack)
            load = await stack.enter_async_context(open_load_client(environment.conn, quiet))
            for _ in range(plan.quiet_turns):
                turn = await load.enqueue(agent)
                await load.wait(turn)
                delays.append(await pool.run(lambda conn, turn=turn: read_delay(conn, turn, loud)))
                advance(1)
    figures = (
        *spread("from enqueue to begin", [delay.seconds * 1000 for delay in delays]),
        Figure(name="turns of the flood that began meanwhile, at most", value=max(delay.meanwhile for delay in delays)),
        Figure(name="turns of the flood left after the last", value=len(flood) - delays[-1].ended),
    )
    return Result(scenario="fairness", figures=figures, details={"turns": [delay.model_dump() for delay in delays]})


async def _ring(environment: Environment, project: ProjectId, agents: Sequence[AgentId]) -> None:
    """Enqueue a turn for each of these agents, and publish its doorbell."""
    publisher = NatsPublisher(environment.conn)
    for agent in agents:
        request = EnqueueRequest(agent_id=agent, instruction="hello")
        enqueued = await enqueue(environment.pool, project, CHANNEL, request, {}, depth_limit=20, sender="bench")
        assert enqueued.lease is not None
        await publisher.publish([enqueued.lease.doorbell("bench", "enqueue")])
