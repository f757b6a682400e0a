"""A bridge that is killed after each commit of what people decide: the call goes out, and its result counts once."""

import signal
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.people import Person
from tests.support.processes.process import Processes
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Interrupt

pytestmark = pytest.mark.stack(HASTY)

PAY = definition("pay", options={"suspend_timeout_seconds": 60})
Given = tuple[Decision | None, JsonObject]
SENT: Given = (Decision.APPROVE, {})
ANSWERED: Given = (Decision.RESPOND, {"response": "paid"})
EDITED: Given = (Decision.EDIT, {"arguments": {"q": "less"}})
POINTS: dict[Fault, tuple[Given, ...]] = {
    Fault.DECISION_COMMITTED: (EDITED, ANSWERED),
    Fault.DECISION_PUBLISHED: (SENT,),
    Fault.INTERRUPT_EXPIRED: ((None, {}),),
}
"""Where the bridge dies, and what was decided; None: nothing, in time."""
ONCE: dict[Fault, tuple[Given, ...]] = {Fault.DECISION_COMMITTED: (EDITED,)}


async def decided(person: Person, asked: Interrupt, decision: Decision, fields: JsonObject) -> None:
    """Decide; the bridge dies instead of an answer."""
    wanted: JsonObject = {"interrupt_id": asked.interrupt_id, "action_digest": asked.action_digest}
    with pytest.raises(ServerUnavailable):
        await person.tenant.client.request("decide", {**wanted, "decision": decision, **fields}, timeout=3)


@pytest.mark.parametrize(
    "points", [pytest.param(ONCE, id="edited"), pytest.param(POINTS, id="every-point", marks=pytest.mark.long)]
)
async def test_a_decision_counts_once_wherever_its_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: dict[Fault, tuple[Given, ...]]
) -> None:
    bridge, person = processes.bridge, Person(apart)
    async with hand_of(apart, PAY, interrupt_on={"pay": True}) as hand:
        for point, decisions in points.items():
            for decision, fields in decisions:
                await bridge.stop()
                faults = tmp_path / f"{point}-{decision}"
                faults.mkdir()
                bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(faults)}
                await bridge.start()
                turn = await hand.start(calling("pay"))
                [asked] = await person.asked()
                if decision is None:
                    await apart.rows("UPDATE state.interrupts SET expires_at = now() WHERE status = 'open'")
                else:
                    await decided(person, asked, decision, fields)
                assert await bridge.died() == -signal.SIGKILL, point
                bridge.env = {}
                await bridge.start()
                call = call_of(turn)
                if decision in {Decision.APPROVE, Decision.EDIT}:
                    first, *_ = await hand.called(call, timeout=30)
                    number = "-2" if decision is Decision.EDIT else ""
                    assert first.payload["tool_call_card_id"] == f"{call}-call{number}"
                    await hand.report(call)
                ended = await apart.ended(turn, timeout=60)
                code = "approval_expired" if decision is None else None
                assert [each[1] for each in ended.results()] == [code], point
                assert (await person.closed())[-1].interrupt_id == asked.interrupt_id

    async def settled() -> bool:
        return await apart.count("state.agent_inbox", "archived_at IS NULL") == 0

    await until(settled, 30, "no row is left")
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
