"""`box_fork` and `box_replace` from the outside (protocol §6): what is refused, and commands whose bridge dies."""

import signal
from pathlib import Path

import pytest

from schema.base import JsonObject
from schema.faults import Fault
from schema.ids import new_box_id, uuid7
from tests.support.invariants import assert_invariants
from tests.support.process import Processes
from tests.support.tenants import ALICE, Tenant


@pytest.mark.parametrize(
    ("verb", "arguments", "code"),
    [
        ("box_fork", {}, "bad_request"),
        ("box_fork", {"box_id": "x"}, "bad_request"),
        ("box_fork", {"box_id": new_box_id(), "new_box_id": new_box_id()}, "bad_request"),
        ("box_fork", {"box_id": new_box_id()}, "unknown_box"),
        ("box_replace", {"agent_id": ALICE}, "bad_request"),
        ("box_replace", {"agent_id": "a.b", "memory_context_box_id": None}, "bad_request"),
        ("box_replace", {"agent_id": ALICE, "memory_context_box_id": "x"}, "bad_request"),
        ("box_replace", {"agent_id": ALICE, "last_output_box_id": None}, "bad_request"),
        ("box_replace", {"agent_id": "nobody", "memory_context_box_id": None}, "unknown_agent"),
        ("box_replace", {"agent_id": ALICE, "last_output_box_id": new_box_id()}, "unknown_output_box"),
    ],
)
async def test_what_is_refused(apart: Tenant, verb: str, arguments: JsonObject, code: str) -> None:
    await apart.agent("echo")
    reply = await apart.client.request(verb, arguments)
    assert (reply["status"], reply["error_code"]) == ("rejected", code)


async def test_a_command_is_done_once_though_its_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path
) -> None:
    """The bridge dies between the commit and the ack, so both commands come again."""
    written = (await apart.run("echo")).view.output_box_id
    bridge = processes.bridge
    await bridge.stop()
    points = (Fault.BOX_FORKED, Fault.BOX_REPLACED)
    armed = ",".join(f"{point}=kill" for point in points)
    bridge.env = {"TURNSTILE_FAULTS": armed, "TURNSTILE_FAULTS_DIR": str(tmp_path)}
    commands = {"box_fork": {"box_id": written}, "box_replace": {"agent_id": ALICE, "memory_context_box_id": written}}
    async with apart.client.watching() as events:
        for (verb, arguments), point in zip(commands.items(), points, strict=True):
            await bridge.start()
            await apart.client.command(verb, JsonObject(arguments), uuid7())
            assert await bridge.died() == -signal.SIGKILL
            assert (tmp_path / point).exists()
        bridge.env = {}
        await bridge.start()
        acks = (event async for event in events if event.suffix in {"box_fork_ack", "box_replace_ack"})
        told = {ack.suffix: ack.payload for ack in [await anext(acks), await anext(acks)]}
    forks = await apart.rows("SELECT box_id::text AS box FROM boxes WHERE $1::text::uuid = ANY (parent_ids)", written)
    fork, replaced = told["box_fork_ack"], told["box_replace_ack"]
    assert (fork["status"], fork["duplicate"], [fork["box_id"]]) == ("accepted", True, [row["box"] for row in forks])
    assert (replaced["status"], replaced["memory_context_box_id"]) == ("accepted", written)
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
