"""A bridge that is killed after each commit of what people decide: the call goes out, and its result counts once.

Also while a call begins that must not be repeated, and while a person is asked about one.
"""

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sdk.tools.test_once import start
from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.people import Person
from tests.support.processes.process import Processes
from tests.support.tenants import ALICE, Tenant, turn_of
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.roster import put_tool
from turnstile.runtime.faults import Fault
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptListReply
from turnstile.schema.people.interrupts import Interrupt

pytestmark = pytest.mark.stack({**HASTY, "bridge": {**HASTY["bridge"], "command_retry_seconds": 1.0}})

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
                assert [result[1] for result in ended.results()] == [code], point
                assert (await person.closed())[-1].interrupt_id == asked.interrupt_id

    async def settled() -> bool:
        return await apart.count("state.agent_inbox", "archived_at IS NULL") == 0

    await until(settled, 30, "no row is left")
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


CALL_POINTS = (Fault.CALL_BEGUN, Fault.OUTCOME_SETTLED, Fault.OUTCOME_PUBLISHED)


async def questions(tenant: Tenant) -> Sequence[Interrupt]:
    """What people are asked."""
    reply = await tenant.client.request("interrupt.list", {"agent_id": ALICE})
    return InterruptListReply.model_validate(reply).interrupts


def has_run(file: Path) -> bool:
    """Whether the tool has begun to run its call."""
    return file.exists() and bool(file.read_text())


async def called(tenant: Tenant, target: str) -> AgentTurnId:
    """A turn that calls the tool."""
    step = calling((f"work_{target}", {}))
    return turn_of(await tenant.enqueue(ALICE, json.dumps({"steps": [step]})))


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((Fault.OUTCOME_SETTLED,), id="settled"),
        pytest.param(CALL_POINTS, id="every-point", marks=pytest.mark.long),
    ],
)
async def test_a_call_runs_once_and_is_asked_about_once_wherever_the_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: Sequence[Fault]
) -> None:
    target = f"t{apart.project.replace('-', '')[-12:]}"
    subject = f"cg.v1r4.{{project_id}}.{{channel_id}}.cmd.tool.{target}.work"
    options = {"timeout_seconds": 60, "repeat": "unsafe"}
    tool = definition(f"work_{target}", target_subject=subject, options=options, parameters={"type": "object"})
    await put_tool(apart.pool, apart.project, tool)
    await apart.agent("player", allowed_tools=[tool.tool_name])
    for number, point in enumerate(points):
        file, struck = tmp_path / f"runs-{number}", tmp_path / str(number)
        struck.mkdir()
        await processes.bridge.stop()
        processes.bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
        await processes.bridge.start()
        replica = start(apart.stack.endpoints.nats_url, target, str(file), "hang", "unsafe")
        turn = await called(apart, target)

        async def began(file: Path = file) -> bool:
            return has_run(file)

        if point is not Fault.CALL_BEGUN:  # else the bridge dies before the replica hears that it may begin
            await until(began, 30, "the call is run")
            replica.kill()
        assert await processes.bridge.died() == -signal.SIGKILL, point
        processes.bridge.env = {}
        await processes.bridge.start()
        await until(began, 30, "the call is run")
        replica.kill()
        replica.wait()

        async def asked(turn: AgentTurnId = turn) -> Interrupt | None:
            return next((question for question in await questions(apart) if question.agent_turn_id == turn), None)

        question = await until(asked, 30, "a person is asked")
        payload = {"interrupt_id": question.interrupt_id, "action_digest": question.action_digest}
        decided = await apart.client.request(
            "decide", {**payload, "decision": "respond", "response": "done"}, caller=Caller("ada")
        )
        assert decided["status"] == "accepted", decided
        ended = await apart.ended(turn, timeout=60)
        assert (ended.view.status, len(file.read_text().splitlines())) == ("success", 1), point
    assert await apart.count("state.interrupts") == len(points)
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
