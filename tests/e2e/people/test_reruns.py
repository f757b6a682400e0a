"""A turn that is run again, on a whole stack (protocol §6, rerun)."""

import json
from typing import Any

import pytest

from tests.support.tenants import ALICE, Tenant
from tests.support.tools import call_of, calling, hand_of
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.shared_stack

FAILS: JsonObject = {"error": {"code": "auth_failed", "message": "no key"}}


async def test_a_turn_that_failed_goes_on_from_the_step_that_failed(tenant: Tenant) -> None:
    """Its call is not made again; the new turn has another model, and its tool is live."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), FAILS)
        await hand.report(call_of(turn), "found once")
        ended = await hand.ended(turn)
        assert (ended.view.status, ended.view.steps) == ("failed", 2)
        reply = await tenant.client.request("rerun", {"agent_turn_id": turn, "model": "scripted/mirror"})
        assert (reply["status"], reply["rerun_of"], reply["from_step"]) == ("accepted", turn, 2), reply
        again = await hand.ended(AgentTurnId(str(reply["agent_turn_id"])))
        assert "found once" in json.dumps(again.deliverable())
        assert len(hand.commands) == 1
        from_first = await tenant.client.request("rerun", {"agent_turn_id": turn, "from_step": 1})
        second = AgentTurnId(str(from_first["agent_turn_id"]))
        await hand.called(call_of(second))
        await hand.report(call_of(second), "found twice")
        assert (await hand.ended(second)).view.status == "failed"
    described: Any = await tenant.client.request("describe", {"agent_turn_id": turn})
    assert described["turn"]["reruns"] == [again.view.agent_turn_id, second]


async def test_only_who_asked_or_an_operator_may(tenant: Tenant) -> None:
    await tenant.agent("echo")
    asked = await tenant.client.request("enqueue", {"agent_id": ALICE, "instruction": "hello"}, caller=Caller("ada"))
    turn = (await tenant.ended(AgentTurnId(str(asked["agent_turn_id"])))).view.agent_turn_id
    rerun: JsonObject = {"agent_turn_id": turn}
    told = [await tenant.client.request("rerun", rerun, caller=caller) for caller in (Caller("ada"), Caller("bob"))]
    assert [each["error_code"] for each in told] == [None, "not_yours"]
    made = AgentTurnId(str(told[0]["agent_turn_id"]))
    await tenant.ended(made)
    of_hers = await tenant.client.request("rerun", {"agent_turn_id": made}, caller=Caller("ada"))
    assert of_hers["status"] == "accepted"
    operated = await tenant.client.request("rerun", rerun, caller=Caller("bob", operates=True))
    assert operated["status"] == "accepted"
    for each in (of_hers, operated):
        await tenant.ended(AgentTurnId(str(each["agent_turn_id"])))
