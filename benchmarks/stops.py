"""Time to stop: from the request to the turn's `task` event, while scripted models stream.

The request, not its acceptance: the event may well overtake the reply.

`python -m benchmarks.stops [--stops 500] [--streams 1 --streams 100]`: worker and bridge as processes of their own on
embedded servers. Prints p50, p99 and the slowest in ms for each number of streams.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bridge.client import BridgeClient
from schema.base import JsonObject
from schema.ids import AgentId, AgentTurnId
from tests.support.process import processes_of
from tests.support.stack import open_stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.embedded import EmbeddedServers

SCRIPTS = Path(__file__).parent / "scripts"
CONFIG = {"worker": {"max_concurrency": 200}}


SETTLE_SECONDS = 0.15
"""From the beginning of a turn's first step to a model that surely streams."""


class Watch:
    """When each turn began, and when its `task` event came; without the chunks, which would slow this clock."""

    def __init__(self) -> None:
        self._begun: dict[str, asyncio.Event] = {}
        self._ends: dict[str, asyncio.Future[float]] = {}

    async def run(self, client: BridgeClient) -> None:
        """Take in events until cancelled."""
        async for event in client.watch(None, include_chunks=False):
            turn = str(event.payload.get("agent_turn_id"))
            if event.suffix == "step" and event.payload.get("phase") == "started":
                self.begun(turn).set()
            elif event.suffix == "task" and not self.end(turn).done():
                self.end(turn).set_result(time.perf_counter())

    def begun(self, turn: str) -> asyncio.Event:
        """Set once the turn's step has begun."""
        return self._begun.setdefault(turn, asyncio.Event())

    def end(self, turn: str) -> "asyncio.Future[float]":
        """The moment of its end."""
        return self._ends.setdefault(turn, asyncio.get_running_loop().create_future())


async def one_stop(tenant: Tenant, watch: Watch, agent: AgentId, running: dict[AgentId, AgentTurnId]) -> float:
    """Stop what the agent does, start it again, and give the milliseconds from request to event."""
    turn = running[agent]
    request: JsonObject = {"agent_turn_id": turn, "reason": "benchmark"}
    sent = time.perf_counter()
    reply = await tenant.client.request("stop", request)
    assert reply["status"] == "accepted", reply
    took = (await asyncio.wait_for(watch.end(turn), 30) - sent) * 1000
    await start(tenant, watch, agent, running)
    return took


async def start(tenant: Tenant, watch: Watch, agent: AgentId, running: dict[AgentId, AgentTurnId]) -> None:
    """A new turn of the agent, once it streams."""
    running[agent] = turn_of(await tenant.enqueue(agent))
    await asyncio.wait_for(watch.begun(running[agent]).wait(), 60)
    await asyncio.sleep(SETTLE_SECONDS)


async def measure(tenant: Tenant, streams: int, stops: int) -> list[float]:
    """Milliseconds of each stop, one after the other, while that many models stream."""
    watch, running = Watch(), dict[AgentId, AgentTurnId]()
    watching = asyncio.create_task(watch.run(tenant.client))
    await asyncio.sleep(0.2)
    agents = await tenant.agents("streams", streams)
    await asyncio.gather(*(start(tenant, watch, agent, running) for agent in agents))
    took = [await one_stop(tenant, watch, agents[number % streams], running) for number in range(stops)]
    await asyncio.gather(*(tenant.client.request("stop", {"agent_turn_id": turn}) for turn in running.values()))
    watching.cancel()
    return took


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=500)
    parser.add_argument("--streams", type=int, action="append")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory, CONFIG, scripts=[SCRIPTS]) as stack,
            processes_of(stack.config) as processes,
        ):
            await processes.ensure()
            for streams in given.streams or [1, 100]:
                took = await measure(new_tenant(stack), streams, given.stops)
                p99 = statistics.quantiles(took, n=100)[98]
                print(  # noqa: T201 -- what this program is for
                    f"{streams} streams, {len(took)} stops: p50 {statistics.median(took):.0f} ms, "
                    f"p99 {p99:.0f} ms, slowest {max(took):.0f} ms"
                )


if __name__ == "__main__":
    asyncio.run(main())
