"""UI actions while bridge or worker dies: one turn, one call, and the UI hears both of its acks."""

import signal
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.actions import acks, button_of, called, pressed, turn_of, turns
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes, Role
from tests.support.processes.stack import Config
from tests.support.tenants import Tenant
from tests.support.tools import Hand, call_of
from turnstile.runtime.faults import Fault

CONFIG: Config = {**HASTY, "bridge": {**HASTY["bridge"], "ui_actions": True}}
pytestmark = pytest.mark.stack(CONFIG)


async def answered(hand: Hand, action_id: str) -> None:
    """The action's call is out, and answered."""
    call = call_of(await turn_of(hand.tenant, action_id))
    await hand.called(call, timeout=30)

    async def taken() -> bool:
        return (await hand.answer(call)).status.value == "accepted"

    await until(taken, 30, "a bridge takes the report")


@pytest.mark.parametrize(
    ("role", "points"),
    [
        pytest.param("bridge", [Fault.ENQUEUE_COMMITTED], marks=pytest.mark.long),
        pytest.param("bridge", [Fault.ENQUEUE_PUBLISHED], marks=pytest.mark.long),
        pytest.param("worker", [Fault.CALLS_COMMITTED, Fault.TURN_FINISHED], marks=pytest.mark.long),
    ],
)
async def test_one_turn_and_both_acks_whoever_dies(
    apart: Tenant, processes: Processes, role: Role, points: list[Fault], tmp_path: Path
) -> None:
    victim = processes.bridge if role == "bridge" else processes.worker
    await victim.stop()
    armed = ",".join(f"{point}=kill" for point in points)
    victim.env = {"TURNSTILE_FAULTS": armed, "TURNSTILE_FAULTS_DIR": str(tmp_path)}
    await victim.start()
    async with button_of(apart) as hand, pressed(hand, action_id="a-1"):
        for point in points:
            if point is Fault.TURN_FINISHED:
                await answered(hand, "a-1")
            assert await victim.died() == -signal.SIGKILL
            assert (tmp_path / point).exists()
            await victim.start()
        victim.env = {}
        await answered(hand, "a-1")
        turn = await turn_of(apart, "a-1")
        ended = await apart.ended(turn, timeout=30)

        async def both() -> bool:
            return {"accepted", "done"} <= {str(ack.payload["status"]) for ack in await acks(apart)}

        await until(both, 30, "both acks are stored")
    told = [str(ack.payload["status"]) for ack in await acks(apart)]
    assert (told[-1], set(told)) == ("done", {"accepted", "done"})
    assert (ended.view.status, len(ended.steps), await turns(apart)) == ("success", 1, 1)
    assert len({command.call for command in hand.commands}) == 1
    assert await apart.task_events() == {turn: 1}
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


async def test_a_stop_of_an_action_whose_worker_is_dead_is_told(apart: Tenant, processes: Processes) -> None:
    async with button_of(apart) as hand, pressed(hand) as waiter:
        turn = await called(hand, waiter)
        await processes.worker.kill()
        await processes.bridge.stop()
        processes.bridge.env = {"TURNSTILE__BRIDGE__STOP_GRACE_SECONDS": "0.5"}
        await processes.bridge.start()
        await apart.client.request("stop", {"agent_turn_id": turn})
        last = await waiter.last(20)
    processes.bridge.env = {}
    await apart.ended(turn)
    assert (last.status.value, last.error_code) == ("rejected", "stopped")
    assert [ack.payload["status"] for ack in await acks(apart)] == ["accepted", "rejected"]
