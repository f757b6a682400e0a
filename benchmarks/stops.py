"""Time to stop: from a stop's acceptance to the turn's `task` event, while scripted models stream.

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


class Watch:
    """When each turn first streamed, and when its `task` event came."""

    def __init__(self) -> None:
        self._streams: dict[str, asyncio.Event] = {}
        self._ends: dict[str, asyncio.Future[float]] = {}

    async def run(self, client: BridgeClient) -> None:
        """Take in events until cancelled."""
        async for event in client.watch(None, include_chunks=True):
            turn = str(event.payload.get("agent_turn_id"))
            if event.suffix == "chunk" and event.payload.get("chunk_type") == "content":
                self.stream(turn).set()
            elif event.suffix == "task" and not self.end(turn).done():
                self.end(turn).set_result(time.perf_counter())

    def stream(self, turn: str) -> asyncio.Event:
        """Set once the turn streams."""
        return self._streams.setdefault(turn, asyncio.Event())

    def end(self, turn: str) -> "asyncio.Future[float]":
        """The moment of its end."""
        return self._ends.setdefault(turn, asyncio.get_running_loop().create_future())


async def one_stop(tenant: Tenant, watch: Watch, agent: AgentId, running: dict[AgentId, AgentTurnId]) -> float:
    """Stop what the agent does, start it again, and give the milliseconds from accepted to ended."""
    turn = running[agent]
    request: JsonObject = {"agent_turn_id": turn, "reason": "benchmark"}
    reply = await tenant.client.request("stop", request)
    accepted = time.perf_counter()
    assert reply["status"] == "accepted", reply
    took = (await asyncio.wait_for(watch.end(turn), 30) - accepted) * 1000
    await start(tenant, watch, agent, running)
    return max(took, 0.0)


async def start(tenant: Tenant, watch: Watch, agent: AgentId, running: dict[AgentId, AgentTurnId]) -> None:
    """A new turn of the agent, once it streams."""
    running[agent] = turn_of(await tenant.enqueue(agent))
    await asyncio.wait_for(watch.stream(running[agent]).wait(), 60)


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
