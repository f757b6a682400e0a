"""Reports that are wrong: each leaves a row that says what happened, and the call still waits for a right one."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.ledger.calls import TOOL, result_card, write_card
from tests.support.tenants import CHANNEL, Tenant, new_tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentId, AgentTurnId, new_box_id
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.inbox import RESULT_LIMIT_BYTES
from turnstile.transport.json_messages import decode_object

pytestmark = pytest.mark.shared_stack

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Wrong:
    """A report that is refused: its words, or its bytes, and its headers."""

    payload: JsonObject | bytes
    told: dict[str, str] | None = None


Making = Callable[[Hand, str], Awaitable[Wrong]]


def words(told: dict[str, str] | None = None, **fields: Any) -> Making:
    """A report of the call, good but for these."""

    async def make(_: Hand, call: str) -> Wrong:
        return Wrong({"tool_call_id": call, "status": "success", "result": "x", **fields}, told)

    return make


def raw(text: str) -> Making:
    """These bytes, the call's id in the header."""

    async def make(_: Hand, call: str) -> Wrong:
        return Wrong(text.encode(), {headers.TOOL_CALL_ID: call})

    return make


def pointing(**changes: Any) -> Making:
    """A pointer to a card of the tool, with these changes to its metadata or its `tool_call_id`."""

    async def make(hand: Hand, call: str) -> Wrong:
        [turn] = {AgentTurnId(command.headers[headers.TURN_ID]) for command in hand.commands}
        ref = await hand.ref(turn)
        card = result_card(ref, call, **{key: value for key, value in changes.items() if key != "project"})
        project = new_tenant(hand.tenant.stack).project if "project" in changes else hand.tenant.project
        if card.type == "tool.result":
            await write_card(hand.tenant.pool, card, project)
        else:  # any other card is in a box
            await write_in_box(
                hand.tenant, json.dumps(card.content), card.card_id, call, card.metadata.model_dump_json()
            )
        return Wrong({"tool_call_id": call, "status": "success", "tool_result_card_id": card.card_id})

    return make


async def write_in_box(tenant: Tenant, content: str, card: str, call: str, metadata: str) -> None:
    """A card in a new box."""
    box = new_box_id()
    async with tenant.pool.connection() as conn, conn.transaction():
        await conn.fetch("INSERT INTO boxes (box_id, tenant_id) VALUES ($1::text::uuid, $2)", box, tenant.project)
        await conn.fetch(
            "INSERT INTO cards (card_id, tenant_id, content, tool_call_id, metadata)"
            " VALUES ($1, $2, $3::text::jsonb, $4, $5::text::jsonb)",
            *(card, tenant.project, content, call, metadata),
        )
        await conn.fetch("INSERT INTO box_cards VALUES ($1::text::uuid, 1, $2)", box, card)


WRONG: dict[str, tuple[str, Making]] = {
    "an unknown call": ("unknown_call", words(tool_call_id="call_of_nobody")),
    "another turn's call": ("not_your_call", words({headers.TURN_ID: "another-turn"})),
    "another agent's call": ("not_your_call", words({headers.AGENT_ID: "bob"})),
    "a call of another depth": ("not_your_call", words({headers.DEPTH: "7"})),
    "another call in the header": ("bad_request", words({headers.TOOL_CALL_ID: "call_other"})),
    "a card of another type": ("not_its_card", pointing(type="task.instruction")),
    "a card of nobody": ("not_its_card", pointing(author_id=None)),
    "a card of an agent": ("not_its_card", pointing(author_id="alice")),
    "a card of another call": ("not_its_card", pointing(tool_call_id="call_other")),
    "a card of another project": ("unknown_card", pointing(project="another")),
    "a card that is not there": ("unknown_card", words(result=None, tool_result_card_id="card-of-nobody")),
    "a card and a result": ("bad_request", words(tool_result_card_id="card")),
    "a large result": ("result_too_large", words(result="x" * RESULT_LIMIT_BYTES)),
    "a result of 3 MB": ("result_too_large", words(result="x" * 3 * MEGABYTE)),
    "an error of many bytes": ("result_too_large", words(result=None, error={"code": "x", "message": "ä" * 300_000})),
    "invalid JSON": ("bad_request", raw('{"tool_call_id": "x", "status": ')),
    "no object": ("bad_request", raw("[1]")),
    "nothing": ("bad_request", raw("")),
    "no status": ("bad_request", raw('{"tool_call_id": "x"}')),
    "an unknown status": ("bad_request", words(status="done")),
    "an unknown ending": ("bad_request", words(after_execution="explode")),
    "a control field": ("bad_request", words(turn_epoch=1)),
}


async def refused(hand: Hand, wrong: Wrong) -> JsonObject:
    """The reply to a wrong report."""
    data = wrong.payload if isinstance(wrong.payload, bytes) else json.dumps(wrong.payload).encode()
    subject = subjects.bridge_request(hand.tenant.project, CHANNEL, "report")
    answer = await hand.tenant.stack.conn.request(subject, data, timeout=25, headers=wrong.told or {})
    return decode_object(answer.data)


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_report_leaves_a_rejection_and_the_call_waits_on(tenant: Tenant, case: str) -> None:
    code, make = WRONG[case]
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL))
        call = call_of(turn)
        wrong = await make(hand, call)
        reply = await refused(hand, wrong)
        assert (reply["status"], reply["error_code"]) == ("rejected", code), reply
        [(recorded, ids)] = await hand.rejections()
        assert recorded == code
        assert ids["tool_call_id"] in {call, "call_of_nobody", "x"}
        assert await hand.inbox(call) == []
        assert (await hand.waits(turn), (await hand.head())["status"]) == ({call: "waiting"}, "suspended")
        await hand.report(call, "the right one")
        ended = await hand.ended(turn)
    assert ended.results() == [("success", None, "")]
    [row] = await tenant.rows("SELECT * FROM state.rejections WHERE project_id = $1", tenant.project)
    assert row["source"].startswith("request:")
    assert "xxxx" not in row["error"]  # what was refused, never its body


async def test_a_report_for_a_call_of_another_project_is_refused_where_it_was_sent(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        stranger = Hand(new_tenant(tenant.stack), hand.agent)
        reply = await stranger.answer(call_of(turn))
        assert reply.error_code == "unknown_call"
        assert await stranger.rejections() == [
            ("unknown_call", {"tool_call_id": call_of(turn), "tool_result_card_id": ""})
        ]
        assert await hand.rejections() == []
        await hand.report(call_of(turn))
        assert (await hand.ended(turn)).view.status == "success"


async def test_a_result_of_5_mb_is_refused_before_it_is_sent_and_may_come_as_a_card(tenant: Tenant) -> None:
    huge = "x" * 5 * MEGABYTE
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL), {"text": "A long one."})
        call = call_of(turn)
        with pytest.raises(BadRequest, match="at most"):
            await hand.report(call, huge)
        card = result_card(await hand.ref(turn), call)
        assert isinstance(card.content, dict)
        card = card.model_copy(update={"content": {**card.content, "result": huge}})
        await hand.report(call, tool_result_card_id=await write_card(tenant.pool, card, tenant.project))
        ended = await hand.ended(turn)
    assert ended.deliverable() == "A long one."
    assert await hand.settled(call) == ("consumed", None)


async def test_a_report_after_the_turn_is_over_is_recorded_and_changes_nothing(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        first, second = call_of(turn), call_of(turn, 1)
        await hand.report(first)
        await hand.until_head(waiting_tool_count=1)
        await tenant.client.request("stop", {"agent_turn_id": turn})
        ended = await hand.ended(turn)
        assert (await hand.report(first, "again")).duplicate
        assert not (await hand.report(second, "too late")).duplicate
        assert await hand.settled(second) == ("consumed", "already_settled")
    assert await hand.waits(turn) == {first: "applied", second: "dropped"}
    assert (await hand.ended(turn)).cards == ended.cards
    assert await tenant.task_events() == {turn: 1}


async def test_a_report_under_the_wrong_agent_s_row_is_an_error(tenant: Tenant) -> None:
    """By SQL: the row of one agent for a call of another."""
    bob = AgentId("bob")
    await tenant.agent("plain", bob)
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        call = call_of(turn)
        await tenant.rows(
            "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id,"
            " agent_turn_id, turn_epoch, payload) VALUES ('wrong-' || $3::text, $1, $2, 'timeout', $3, $4, 1, '{}')",
            *(tenant.project, bob, call, turn),
        )
        assert await hand.settled(call, "timeout") == ("error", "protocol_violation")
        [(code, ids)] = await until(hand.rejections, 25, "the row is refused")
        assert (code, ids["correlation_id"]) == ("protocol_violation", call)
        await hand.report(call)
        assert (await hand.ended(turn)).view.status == "success"
