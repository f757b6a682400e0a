"""What people see of what they are asked: calls that a policy holds and questions, with their exact arguments."""

from typing import Any

import pytest

from tests.e2e.people.asking import LARGE, PAY, asked, people
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, hand_of
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InterruptId, interrupt_id
from turnstile.schema.people.digests import action_digest
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus


async def test_parallel_calls_go_out_at_once_beside_those_that_wait(tenant: Tenant) -> None:
    async with hand_of(tenant, PAY, interrupt_on={"pay": LARGE}) as hand:
        turn = await hand.suspended(
            calling(("pay", {"amount": 99}), ("pay", {"amount": 100, "account": "mine"}), ("pay", {"amount": 1}))
        )
        [held] = await asked(hand, turn)
        await hand.heard(2)
        assert {command.call for command in hand.commands} == {call_of(turn, 0), call_of(turn, 2)}
        assert held.view.reason is InterruptReason.TOOL_CALL
        assert held.id == interrupt_id(call_of(turn, 1))
        assert held.arguments is not None
        assert held.arguments == {"amount": 100, "account": f"of {tenant.project}"}
        assert held.view.is_what_is_shown
        subject = f"cg.v1r4.{tenant.project}.public.cmd.tool.pay.run"
        assert held.view.target_subject == subject
        assert held.view.action_digest == action_digest(call_of(turn, 1), "pay", subject, held.arguments)
        await hand.report(call_of(turn, 0), "paid")
        await hand.report(call_of(turn, 2), "paid")
        assert (await people(tenant).interrupt(held.id)).is_open
        await people(tenant).bridge.request("stop", {"agent_turn_id": turn})
        ended = await tenant.ended(turn)
    assert ended.view.status == "canceled"
    assert (await people(tenant).interrupt(held.id)).view.status is InterruptStatus.WITHDRAWN
    assert await people(tenant).interrupts() == []


async def test_pages_are_the_newest_first_and_only_of_what_was_asked_for(tenant: Tenant) -> None:
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}, allowed_tools=["pay", "ask_human"]) as hand:
        turn = await hand.start(
            calling(("pay", {"amount": 1}), ("ask_human", {"question": "Which?"}), ("pay", {"amount": 2}))
        )
        found = await asked(hand, turn, 3)
        client = people(tenant)
        seen: list[InterruptId] = []
        after: InterruptId | None = None
        while True:
            page = await client.bridge.request("interrupt.list", {"limit": 2, **({"after": after} if after else {})})
            rows: Any = page["interrupts"]
            seen += [row["interrupt_id"] for row in rows]
            assert all("arguments" not in row for row in rows)
            after = InterruptId(str(page["next"])) if page["next"] else None
            if after is None:
                break
        assert sorted(seen) == sorted(each.id for each in found)
        assert {each.view.reason.value for each in found} == {"tool_call", "input_required"}
        assert await client.interrupts(agent_id="nobody") == []
        assert await client.interrupts(status="resolved") == []
        assert [each.id for each in await client.interrupts(limit=1)] == seen[:1]
        with pytest.raises(Refused, match="no such"):
            await client.interrupt("int-unknown-1")
        assert hand.commands == []
        await client.bridge.request("stop", {"agent_turn_id": turn})
        await tenant.ended(turn)
