"""What people decide about calls that wait, beside the plain ways of test_decisions.py: refusals and attacks.

And what they see before they decide: calls that a policy holds and questions, with their exact arguments.
"""

import asyncio
import json
from typing import Any, cast

import pytest

from tests.e2e.people.asking import LARGE, PAY, Person, asked, people
from tests.support.conditions import until
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of, heard_by_model
from turnstile.ledger.turns.cards import get_card
from turnstile.schema.access import Caller
from turnstile.schema.cards import ToolCallContent, content_of
from turnstile.schema.errors import Refused
from turnstile.schema.ids import CardId, InterruptId, interrupt_id
from turnstile.schema.people.digests import action_digest
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.sdk.client import accepted

pytestmark = pytest.mark.shared_stack


def ann(tenant: Tenant) -> Person:
    """Somebody who may decide."""
    return Person(tenant, "ann")


async def sent_arguments(hand: Hand, place: int = -1) -> Any:
    """What the tool reads of the command that it received: the arguments on the card that the command names."""
    command = hand.commands[place]
    card_id = CardId(str(command.payload["tool_call_card_id"]))
    card = await hand.tenant.pool.run(lambda conn: get_card(conn, hand.tenant.project, card_id))
    assert card is not None
    content = content_of(card)
    assert isinstance(content, ToolCallContent)
    return content.arguments


async def code_of(refused: Any) -> str:
    """The code of the refusal that this raises."""
    with pytest.raises(Refused) as raised:
        await refused
    return raised.value.code


async def test_a_rejected_call_of_a_tool_that_ends_turns_ends_none(tenant: Tenant) -> None:
    last = PAY.model_copy(update={"after_execution": "terminate"})
    async with hand_of(tenant, last, interrupt_on={"pay": True}) as hand:
        turn = await hand.start(calling(("pay", {"amount": 500})))
        [held] = await asked(hand, turn)
        await ann(tenant).decides(held, "reject", message="too much")
        ended = await hand.ended(turn)
    assert ended.view.status == "success"
    assert len(ended.steps) == 2


async def test_control_keys_in_an_answer_are_never_read(tenant: Tenant) -> None:
    control = {"__cg_control": {"after_execution": "terminate"}, "paid": True}
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}) as hand:
        turn = await hand.start(calling(("pay", {"amount": 500})))
        [held] = await asked(hand, turn)
        await ann(tenant).decides(held, "respond", response=control)
        ended = await hand.ended(turn)
    assert len(ended.steps) == 2
    assert heard_by_model(ended) == [{"status": "success", "result": {"value": control}}]
    assert hand.commands == []


async def test_an_answer_to_a_question_is_checked_and_becomes_its_result(tenant: Tenant) -> None:
    async with hand_of(tenant, PAY, allowed_tools=["pay", "ask_human"]) as hand:
        question = {"question": "Which?", "choices": ["red", "blue"]}
        turn = await hand.start(calling(("ask_human", question)))
        [held] = await asked(hand, turn)
        assert (held.message, held.view.action_digest) == ("Which?", None)
        assert await code_of(ann(tenant).decides(held, "respond", response="green")) == "invalid_response"
        assert await code_of(ann(tenant).decides(held, "approve")) == "decision_not_allowed"
        await ann(tenant).decides(held, "respond", response="blue")
        ended = await hand.ended(turn)
    assert heard_by_model(ended) == [{"status": "success", "result": {"value": "blue"}}]
    assert hand.commands == []


async def test_who_asked_may_answer_a_question_but_not_approve_a_call(tenant: Tenant) -> None:
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}, allowed_tools=["pay", "ask_human"]) as hand:
        steps = [calling(("pay", {"amount": 500}), ("ask_human", {"question": "Which?"}))]
        made = await tenant.client.request(
            "enqueue", {"agent_id": hand.agent, "instruction": json.dumps({"steps": steps})}, caller=Caller("ann")
        )
        turn = turn_of(accepted(EnqueueReply, made))
        call, question = await asked(hand, turn, 2)
        assert call.view.requester == "ann"
        assert await code_of(ann(tenant).decides(call, "approve")) == "own_request"
        assert await code_of(ann(tenant).decides(call, "reject")) == "own_request"
        await ann(tenant).decides(question, "respond", response="this one")
        await Person(tenant, "ben").decides(call, "approve")
        await hand.heard()
        await hand.report(call_of(turn), "paid")
        ended = await hand.ended(turn)
    assert [each.get("result") for each in heard_by_model(ended)] == ["paid", {"value": "this one"}]


async def test_what_is_not_allowed_or_not_what_was_shown_is_refused_and_changes_nothing(tenant: Tenant) -> None:
    rule = {"allowed_decisions": ["approve", "reject"]}
    async with hand_of(tenant, PAY, interrupt_on={"pay": rule}) as hand:
        turn = await hand.start(calling(("pay", {"amount": 500})))
        [held] = await asked(hand, turn)
        person = ann(tenant)
        assert await code_of(person.decides(held, "edit", arguments={"amount": 1})) == "decision_not_allowed"
        assert await code_of(person.decides(held, "respond", response=1)) == "decision_not_allowed"
        assert await code_of(person.says(held.id, "approve", "0" * 64)) == "digest_mismatch"
        assert await code_of(person.says(held.id, "approve", None)) == "digest_mismatch"
        unknown = held.id.replace("call_", "call_0")
        assert await code_of(person.says(cast("Any", unknown), "approve", None)) == "unknown_interrupt"
        assert (await people(tenant).interrupt(held.id)).is_open
        await person.decides(held, "approve")
        assert await code_of(Person(tenant, "ben").decides(held, "reject")) == "already_decided"
        await hand.heard()
        await hand.report(call_of(turn), "paid")
        await hand.ended(turn)
    assert len(hand.commands) == 1


async def test_a_call_that_nobody_decides_is_rejected_when_its_time_is_over(tenant: Tenant) -> None:
    rule = {"expires_after_seconds": 1}
    async with hand_of(
        tenant, PAY, interrupt_on={"pay": rule, "ask_human": rule}, allowed_tools=["pay", "ask_human"]
    ) as hand:
        turn = await hand.start(calling(("pay", {"amount": 500}), ("ask_human", {"question": "Which?"})))
        held, question = await asked(hand, turn, 2)
        ended = await hand.ended(turn)
        assert await code_of(ann(tenant).decides(held, "approve")) == "expired"
        assert await code_of(Person(tenant, "ben").decides(question, "respond", response="x")) == "expired"
    assert [each["error"]["code"] for each in heard_by_model(ended)] == ["approval_expired", "no_answer"]
    assert hand.commands == []


async def test_of_a_decision_and_a_stop_one_counts(tenant: Tenant) -> None:
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}) as hand:
        turn = await hand.start(calling(("pay", {"amount": 500})))
        [held] = await asked(hand, turn)
        stopping = tenant.client.request("stop", {"agent_turn_id": turn})
        deciding = asyncio.gather(ann(tenant).decides(held, "approve"), return_exceptions=True)
        _, [decided] = await asyncio.gather(stopping, deciding)
        ended = await hand.ended(turn)
        assert ended.view.status == "canceled"
        assert isinstance(decided, Refused) is ((await people(tenant).interrupt(held.id)).view.decision is None)
        assert await code_of(Person(tenant, "ben").decides(held, "approve")) in {"withdrawn", "already_decided"}


async def changed_arguments_never_run(tenant: Tenant, tries: int) -> None:
    """Whoever has a valid approval of one action cannot make another one run.

    Each try has an approved action X and an action Y that differs: in the same turn, in another one, by another tool,
    or edited. With the digest of X nothing but X is sent, and the tool reads X.
    """
    other = definition("refund", parameters=PAY.parameters, options={"args": {"fixed": {"account": "refunds"}}})
    person = ann(tenant)
    async with hand_of(tenant, PAY, other, interrupt_on={"pay": True, "refund": True}, max_steps=3) as hand:
        for number in range(tries):
            before = len(hand.commands)
            x, y = number + 1, number + 2
            turn = await hand.start(calling(("pay", {"amount": x}), ("pay", {"amount": y}), ("refund", {"amount": x})))
            approved, changed, another = await asked(hand, turn, 3)
            digest = approved.view.action_digest
            assert len({each.view.action_digest for each in (approved, changed, another)}) == 3
            for target in (changed, another):
                assert await code_of(person.says(target.id, "approve", digest)) == "digest_mismatch"
                more = {"arguments": {"amount": y}}
                assert await code_of(person.says(target.id, "edit", digest, **more)) == "digest_mismatch"
            await person.says(approved.id, "approve", digest)
            assert await code_of(person.says(approved.id, "edit", digest, arguments={"amount": y})) == "already_decided"
            await until(lambda before=before: _more(hand, before), 25, "the approved call is out")
            assert await sent_arguments(hand, before) == {"amount": x, "account": f"of {tenant.project}"}
            command = hand.commands[before]
            subject = f"cg.v1r4.{tenant.project}.public.cmd.tool.pay.run"
            assert command.subject == subject
            assert action_digest(command.call, "pay", subject, await sent_arguments(hand, before)) == digest
            await hand.report(call_of(turn), "paid")
            await person.decides(changed, "reject")
            await person.decides(another, "reject")
            await hand.ended(turn)
            assert len({c.call for c in hand.commands}) == number + 1


async def _more(hand: Hand, before: int) -> bool:
    return len(hand.commands) > before


async def test_an_approval_of_one_action_runs_no_other(tenant: Tenant) -> None:
    await changed_arguments_never_run(tenant, 3)


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
        assert [interrupt.id for interrupt in await client.interrupts(limit=1)] == seen[:1]
        with pytest.raises(Refused, match="no such"):
            await client.interrupt("int-unknown-1")
        assert hand.commands == []
        await client.bridge.request("stop", {"agent_turn_id": turn})
        await tenant.ended(turn)
