"""Measures how long one turn of a project takes to begin while another project floods the same bridge and worker.

`python -m lab.benchmarks.fairness [--flood 1000] [--turns 5]`: starts worker and bridge as separate processes on
embedded servers. The flood is that many agents with a turn each, whose doorbells are published before the processes
start. Then the other project enqueues its turns one after the other. For each it prints the seconds from enqueue to
begin, how many of the flood's turns began meanwhile, and how many of them were left.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.support.processes.process import processes_of
from tests.support.processes.stack import open_stack
from tests.support.tenants import CHANNEL, Tenant, new_tenant, turn_of
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.embedded import EmbeddedServers
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.inbox import EnqueueRequest

AT_ONCE = 4
CONFIG = {"worker": {"max_concurrency": 20}}


async def ring(tenant: Tenant, agents: list[AgentId]) -> None:
    """Enqueue a turn for each of these agents, and publish its doorbell."""
    publisher = NatsPublisher(tenant.stack.conn)
    for agent in agents:
        request = EnqueueRequest(agent_id=agent, instruction="hello")
        made = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="benchmark")
        assert made.lease is not None
        await publisher.publish([made.lease.doorbell("benchmark", "enqueue")])


async def delay(loud: Tenant, quiet: Tenant, agent: AgentId, flood: int) -> str:
    """Enqueue one turn and describe its delay in a sentence."""
    turn = await quiet.ended(turn_of(await quiet.enqueue(agent)), timeout=170)
    [row] = await quiet.rows(
        "SELECT extract(epoch FROM o.started_at - i.created_at)::float8 AS seconds, i.created_at, o.started_at"
        " FROM state.turn_outcomes o JOIN state.agent_inbox i USING (inbox_id) WHERE o.agent_turn_id = $1",
        turn.view.agent_turn_id,
    )
    [began] = await loud.rows(
        "SELECT count(*) AS n FROM state.turn_outcomes WHERE project_id = $1 AND started_at BETWEEN $2 AND $3",
        *(loud.project, row["created_at"], row["started_at"]),
    )
    left = flood - await loud.count("state.turn_outcomes")
    return f"began after {row['seconds']:.2f} s, {began['n']} of the flood meanwhile, {left} left"


async def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flood", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory, CONFIG) as stack,
        ):
            loud, quiet = new_tenant(stack), new_tenant(stack)
            agents, agent = await loud.agents("slow", given.flood), await quiet.agent("plain")
            await asyncio.gather(*(ring(loud, agents[lane::AT_ONCE]) for lane in range(AT_ONCE)))
            async with processes_of(stack.config) as processes:
                await processes.ensure()
                for _ in range(given.turns):
                    print(await delay(loud, quiet, agent, given.flood), flush=True)  # noqa: T201 -- what this is for


if __name__ == "__main__":
    asyncio.run(main())
