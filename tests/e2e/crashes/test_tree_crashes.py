"""A bridge that is killed after each commit of what agents ask of others: batches are decided, agents made once.

So is what a tool asks, whoever dies meanwhile: the bridge, or the tool itself.
"""

import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.support.conditions import until
from tests.support.delegation import CHIEF, answer, fork, result, says, staff, steps, task
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.paths import ROOT
from tests.support.processes.process import Processes
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import calling
from turnstile.ledger.roster import put_tool
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.tools import ToolDefinition

pytestmark = pytest.mark.stack(HASTY)

NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)
COMPARE = ROOT / "examples" / "tools" / "compare.py"
POINTS = {Fault.BATCH_OPENED: "success", Fault.CHILDREN_ENQUEUED: "success", Fault.BATCH_EXPIRED: "timeout"}
"""Where the bridge dies, and what its batch comes to."""


@pytest.mark.parametrize(
    "points",
    [
        pytest.param({Fault.CHILDREN_ENQUEUED: "success"}, id="enqueued"),
        pytest.param(POINTS, id="every-point", marks=pytest.mark.long),
    ],
)
async def test_a_batch_is_decided_once_wherever_its_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: dict[Fault, str]
) -> None:
    await staff(apart)
    bridge = processes.bridge
    for number, (point, status) in enumerate(points.items(), 1):
        await bridge.stop()
        bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
        await bridge.start()
        second = task(instruction=NEVER if status == "timeout" else says("done"))
        asked = fork([task(), second], **({"deadline_seconds": 2} if status == "timeout" else {}))
        reply = await apart.enqueue(CHIEF, steps(asked))
        assert await bridge.died() == -signal.SIGKILL, point
        assert (tmp_path / point).exists()
        bridge.env = {}
        await bridge.start()
        assert reply.agent_turn_id is not None
        told = result(await apart.ended(reply.agent_turn_id, timeout=60))
        assert (told["status"], [each["status"] for each in told["results"]]) == (status, ["success", status])
        assert await apart.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == 2 * number, point
        assert await apart.count("state.pmo_batches", "decided_at IS NOT NULL") == number, point
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.parametrize(
    ("point", "call"),
    [
        pytest.param(
            Fault.AGENT_CHANGED,
            ("provision_agent", {"action": "ensure", "agent_id": "new", "profile_name": "worker"}),
            marks=pytest.mark.long,
        ),
        pytest.param(Fault.CHILDREN_ENQUEUED, ("delegate_async", task()), marks=pytest.mark.long),
    ],
    ids=["provision_agent", "delegate_async"],
)
async def test_an_agent_is_made_once_wherever_the_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, point: Fault, call: tuple[str, JsonObject]
) -> None:
    await staff(apart)
    row = kernel_tools()[call[0]].model_dump(exclude={"options"}, exclude_none=True)
    patient = ToolDefinition.model_validate({**row, "options": {"suspend_timeout_seconds": 60}})
    await put_tool(apart.pool, apart.project, patient)
    bridge = processes.bridge
    await bridge.stop()
    bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
    await bridge.start()
    turn = turn_of(await apart.enqueue(CHIEF, steps(calling(call))))
    assert await bridge.died() == -signal.SIGKILL
    bridge.env = {}
    await bridge.start()
    ended = await apart.ended(turn, timeout=60)
    told = result(ended)
    assert (told["status"], ended.view.status) == ("accepted", "success")
    made = told["agent_id"]
    assert await apart.count("resource.project_agents", f"agent_id = '{made}'") == 1
    assert await apart.count("state.identity_edges", f"target_agent_id = '{made}'") == 1
    if point is Fault.AGENT_CHANGED:
        assert told["roster_updated"] is True
    else:
        await apart.ended(told["agent_turn_id"])
        assert await apart.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == 1
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


@contextmanager
def comparing(tenant: Tenant) -> Generator[subprocess.Popen[bytes]]:
    """A process of the tool `compare`."""
    arguments = ("--nats", tenant.stack.endpoints.nats_url, "--project", tenant.project)
    process = subprocess.Popen([sys.executable, COMPARE, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((), id="the-tool"),
        pytest.param((Fault.BATCH_OPENED, Fault.CHILDREN_ENQUEUED), id="the-bridge-too", marks=pytest.mark.long),
    ],
)
async def test_what_a_tool_asks_is_asked_once_whoever_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: Sequence[Fault]
) -> None:
    definition = ToolDefinition.model_validate(yaml.safe_load(COMPARE.with_suffix(".yaml").read_text()))
    await put_tool(apart.pool, apart.project, definition)
    await staff(apart, tools=["compare"])
    for name, model in (("advocate", "player"), ("critic", "player"), ("judge", "echo")):
        await apart.profile(name, model)
    bridge = processes.bridge

    async def compared(turn: AgentTurnId, number: int) -> None:
        ended = await apart.ended(turn, timeout=60)
        assert answer(ended).status == "success", answer(ended)
        told = result(ended)
        assert (told["status"], "advocate: yes\ncritic: yes" in told["verdict"]) == ("success", True)
        assert await apart.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == 3 * number
        assert await apart.count("state.pmo_batches", "status = 'success' AND result IS NOT NULL") == 2 * number

    with comparing(apart) as tool:
        for number, point in enumerate(points, 1):
            await bridge.stop()
            bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
            await bridge.start()
            turn = turn_of(await apart.enqueue(CHIEF, steps(calling(("compare", {"topic": says("yes")})))))
            assert await bridge.died() == -signal.SIGKILL, point
            bridge.env = {}
            await bridge.start()
            await compared(turn, number)
        slow = calling(("compare", {"topic": says("yes", delay_seconds=2)}))
        turn = turn_of(await apart.enqueue(CHIEF, steps(slow)))

        async def forked() -> bool:
            return await apart.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == 3 * len(points) + 2

        await until(forked, 25, "the tool waits for two agents")
        tool.kill()
        tool.wait()
        with comparing(apart):
            await compared(turn, len(points) + 1)
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
