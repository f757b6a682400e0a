"""What sleeping costs: many turns suspended at once on one worker, and then all of them woken.

`python -m benchmarks.suspended [--turns 1000]`: worker and bridge as processes of their own on embedded servers. Prints
the worker's resident memory idle, with all turns asleep, and after all have ended, in MB, and how long the wake took.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from ledger.roster import put_tool
from schema.base import JsonObject
from schema.ids import AgentId
from schema.tools import ToolDefinition
from tests.support.conditions import until
from tests.support.process import Processes, processes_of
from tests.support.stack import open_stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.embedded import EmbeddedServers

SCRIPTS = Path(__file__).parent / "scripts"
CONFIG = {"tools": {"suspend_timeout_seconds": 3600}, "bridge": {"command_retry_seconds": 3600}}
LATER = ToolDefinition(
    tool_name="later",
    description="Answers later.",
    target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.later.run",
)


def resident(processes: Processes) -> float:
    """The worker's resident memory in MB."""
    return psutil.Process(processes.worker.pid).memory_info().rss / 1_000_000


async def suspend(tenant: Tenant, turns: int) -> None:
    """That many agents, each asleep in a turn."""
    agents: list[AgentId] = await tenant.agents("calls_once", turns, allowed_tools=["later"])
    gate = asyncio.Semaphore(16)

    async def one(agent: AgentId) -> None:
        async with gate:
            turn_of(await tenant.enqueue(agent))

    await asyncio.gather(*map(one, agents))

    async def asleep() -> bool:
        return await tenant.count("state.agent_state_head", "status = 'suspended'") == turns

    await until(asleep, 300, "all turns sleep", pause=0.5)


async def wake(tenant: Tenant, turns: int) -> float:
    """Report every call; returns the seconds until every turn has ended well."""
    rows = await tenant.rows("SELECT tool_call_id FROM state.turn_waiting_tools WHERE project_id = $1", tenant.project)
    began, gate = time.monotonic(), asyncio.Semaphore(16)

    async def one(call: str) -> None:
        async with gate:
            report: JsonObject = {"tool_call_id": call, "status": "success", "result": {"ok": True}}
            reply = await tenant.client.request("report", report, timeout=60)
            assert reply["status"] == "accepted", reply

    await asyncio.gather(*(one(row["tool_call_id"]) for row in rows))

    async def ended() -> bool:
        return await tenant.count("state.turn_outcomes", "status = 'success' AND agent_id LIKE 'agent-%'") == turns

    await until(ended, 300, "all turns ended", pause=0.5)
    return time.monotonic() - began


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1000)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory, CONFIG, scripts=[SCRIPTS]) as stack,
            processes_of(stack.config) as processes,
        ):
            await processes.ensure()
            tenant = new_tenant(stack)
            await put_tool(tenant.pool, tenant.project, LATER)
            await tenant.turn(await tenant.agent("instant"))  # everything is loaded that a turn loads
            idle = resident(processes)
            await suspend(tenant, turns)
            asleep = resident(processes)
            seconds = await wake(tenant, turns)
            print(  # noqa: T201 -- what this program is for
                f"{turns} turns: idle {idle:.0f} MB, asleep {asleep:.0f} MB ({asleep - idle:+.0f}), "
                f"after {resident(processes):.0f} MB; all woken and ended in {seconds:.1f} s"
            )


if __name__ == "__main__":
    asyncio.run(main())
