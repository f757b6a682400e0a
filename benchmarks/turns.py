"""Plain turns next to bare workflows, on the same servers, worker settings and run.

`python -m benchmarks.turns [--turns 300] [--alone 50]`: worker and bridge in one process, an instant scripted model, an
agent a turn. Prints turns/s and bare one-activity workflows/s with all started at once, their ratio, and the p50 of one
at a time (enqueue to `task` event, start to result).
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client

from schema.ids import AgentId
from tests.support.stack import open_stack, running_here
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.embedded import EmbeddedServers
from turnstile.plugin import turn_workers, turnstile_plugin
from workflows.options import task_queue

BARE = "bare"
CONFIG = {"worker": {"max_concurrency": 200}}


@activity.defn
async def nothing() -> None:
    """An activity that does nothing."""


@workflow.defn
class BareWorkflow:
    """A workflow with one empty activity: what the engine itself costs."""

    @workflow.run
    async def run(self) -> None:
        """Run the activity."""
        await workflow.execute_activity(nothing, start_to_close_timeout=timedelta(seconds=60))


async def one_turn(tenant: Tenant, agent: AgentId) -> None:
    """From enqueue to `task` event."""
    async with tenant.client.wait_task(agent) as waiting:
        turn = turn_of(await tenant.enqueue(agent))
        await waiting.wait(turn, timeout=120)


async def alone(count: int, one: Callable[[int], Awaitable[None]]) -> float:
    """The p50 in ms, one at a time."""
    took: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        await one(number)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


async def at_once(count: int, one: Callable[[int], Awaitable[None]]) -> float:
    """How many a second, all started at once."""
    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(count)))
    return count / (time.perf_counter() - began)


async def bare(client: Client, target: str, number: str) -> None:
    """One bare workflow, from start to result."""
    await client.execute_workflow(
        BareWorkflow.run,
        id=f"bare-{target}-{number}",
        task_queue=task_queue(f"{BARE}-{target}"),
        request_eager_start=True,
    )


async def measure(tenant: Tenant, turns: int, single: int) -> None:
    """Both, one after the other, twice, so that a drift of the machine shows."""
    endpoints = tenant.stack.endpoints
    [target] = tenant.stack.settings.worker.worker_targets
    client = await Client.connect(
        endpoints.temporal_address, namespace=endpoints.temporal_namespace, plugins=[turnstile_plugin()]
    )
    [worker] = turn_workers(
        client, [f"{BARE}-{target}"], max_concurrency=200, activities=[nothing], workflows=[BareWorkflow]
    )
    agents = await tenant.agents("instant", turns)
    async with worker:
        await alone(5, lambda number: bare(client, target, f"warm-{number}"))
        await alone(5, lambda number: one_turn(tenant, agents[number]))
        for run in (1, 2):
            bare_ms = await alone(single, lambda number, run=run: bare(client, target, f"a{run}-{number}"))
            turn_ms = await alone(single, lambda number: one_turn(tenant, agents[number]))
            bare_rate = await at_once(turns, lambda number, run=run: bare(client, target, f"b{run}-{number}"))
            turn_rate = await at_once(turns, lambda number: one_turn(tenant, agents[number]))
            print(  # noqa: T201 -- what this program is for
                f"run {run}: turns {turn_rate:.0f}/s, bare {bare_rate:.0f}/s, share {turn_rate / bare_rate:.2f}; "
                f"p50 alone: turn {turn_ms:.1f} ms, bare {bare_ms:.1f} ms"
            )


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--alone", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory, CONFIG) as stack,
            running_here(stack),
        ):
            await measure(new_tenant(stack), given.turns, given.alone)


if __name__ == "__main__":
    asyncio.run(main())
