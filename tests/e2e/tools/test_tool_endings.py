"""Tools that end their turn: whose word counts, and which result is the deliverable (protocol §7.5)."""

from typing import Any

import pytest

from tests.support.tenants import Ended, Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of

pytestmark = pytest.mark.shared_stack

CLOSE = definition("close", after_execution="terminate")
BOTH = [CLOSE, definition("shut", after_execution="terminate"), definition()]
ERROR = {"code": "stuck", "message": "it is stuck"}


def ending(ended: Ended) -> tuple[str, str | None, Any]:
    """Status, code and deliverable; a tool's end makes no step."""
    assert len(ended.steps) == 1
    assert ended.types()[-1] == "task.deliverable"
    return ended.view.status, ended.view.error_code, ended.deliverable()


async def played(hand: Hand, *reports: dict[str, Any], tools: tuple[str, ...]) -> Ended:
    """A turn that calls these tools at once and hears these reports, in the order of the calls."""
    turn = await hand.suspended(calling(*tools))
    await hand.heard(len(tools))
    for index, each in enumerate(reports):
        await hand.report(call_of(turn, index), **each)
    return await hand.ended(turn)


async def test_a_tool_row_that_says_terminate_ends_the_turn_with_its_result(tenant: Tenant) -> None:
    async with hand_of(tenant, CLOSE) as hand:
        ended = await played(hand, {"result": {"closed": True}}, tools=("close",))
    assert ending(ended) == ("success", None, {"closed": True})
    [result] = [card for card in ended.cards if card.type == "tool.result"]
    [event] = await tenant.events("agent.*.task")
    assert event.payload["tool_result_card_id"] == ended.view.tool_result_card_id == result.card_id
    assert event.payload["deliverable_card_id"] == ended.view.deliverable_card_id


async def test_a_report_that_says_terminate_ends_the_turn(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        report = {"result": {"found": 1}, "after_execution": "terminate"}
        ended = await played(hand, report, tools=("search",))
    assert ending(ended) == ("success", None, {"found": 1})


async def test_a_result_whose_control_says_terminate_ends_the_turn_and_the_control_is_not_delivered(
    tenant: Tenant,
) -> None:
    async with hand_of(tenant) as hand:
        result = {"found": 1, "__cg_control": {"after_execution": "terminate"}, "__cg_data": {"0": "iVBO"}}
        ended = await played(hand, {"result": result, "after_execution": "suspend"}, tools=("search",))
    assert ending(ended) == ("success", None, {"found": 1})


@pytest.mark.parametrize(
    "report",
    [
        {"result": {"ok": 1}, "after_execution": "suspend"},
        {"result": {"ok": 1, "__cg_control": {"after_execution": "suspend"}}, "after_execution": "terminate"},
    ],
    ids=["the report over the row", "the control over both"],
)
async def test_suspend_overrules_terminate(tenant: Tenant, report: dict[str, Any]) -> None:
    async with hand_of(tenant, CLOSE) as hand:
        ended = await played(hand, report, tools=("close",))
    assert (ended.view.status, len(ended.steps)) == ("success", 2)
    assert "__cg_control" not in str(ended.deliverable())  # nor does the model hear of it


@pytest.mark.parametrize(
    "control",
    ["terminate", {"after_execution": "explode"}, {"after_execution": ["terminate"]}, {}, None, 7],
    ids=["text", "unknown word", "list", "empty", "null", "number"],
)
async def test_an_invalid_control_is_ignored(tenant: Tenant, control: Any) -> None:
    async with hand_of(tenant, definition(), CLOSE) as hand:
        result = {"found": 1, "__cg_control": control}
        goes_on = await played(hand, {"result": result}, tools=("search",))
        ends = await played(hand, {"result": result}, tools=("close",))
    assert (goes_on.view.status, len(goes_on.steps)) == ("success", 2)
    assert ending(ends) == ("success", None, {"found": 1})


async def test_a_failed_terminating_result_comes_first(tenant: Tenant) -> None:
    async with hand_of(tenant, *BOTH) as hand:
        failed = {"status": "failed", "error": ERROR}
        ended = await played(hand, {"result": {"n": 1}}, failed, tools=("close", "shut"))
    assert ending(ended) == ("failed", "stuck", {"error": ERROR})
    [event] = await tenant.events("agent.*.task")
    assert (event.payload["status"], event.payload["error_code"]) == ("failed", "stuck")


async def test_else_the_first_in_call_order_though_it_came_last(tenant: Tenant) -> None:
    async with hand_of(tenant, *BOTH) as hand:
        turn = await hand.suspended(calling("search", "shut", "close"))
        for index in (2, 0, 1):
            await hand.report(call_of(turn, index), {"index": index})
        ended = await hand.ended(turn)
    assert ending(ended) == ("success", None, {"index": 1})
    assert [result[0] for result in ended.results()] == ["success"] * 3  # the others are in the box all the same


async def test_a_failure_of_a_tool_that_does_not_end_the_turn_does_not_count(tenant: Tenant) -> None:
    async with hand_of(tenant, *BOTH) as hand:
        failed = {"status": "failed", "error": ERROR}
        ended = await played(hand, failed, {"result": {"n": 2}}, tools=("search", "close"))
    assert ending(ended) == ("success", None, {"n": 2})


async def test_a_terminating_tool_waits_for_the_other_calls(tenant: Tenant) -> None:
    async with hand_of(tenant, *BOTH) as hand:
        turn = await hand.suspended(calling("close", "search"))
        await hand.report(call_of(turn), {"n": 1})
        head = await hand.until_head(waiting_tool_count=1)
        assert head["status"] == "suspended"
        await hand.report(call_of(turn, 1))
        ended = await hand.ended(turn)
    assert ending(ended) == ("success", None, {"n": 1})


async def test_a_terminating_tool_may_end_a_turn_that_must_end_with_another(tenant: Tenant) -> None:
    async with hand_of(tenant, CLOSE, must_end_with=["submit_result"]) as hand:
        ended = await played(hand, {"result": {"n": 1}}, tools=("close",))
    assert ending(ended) == ("success", None, {"n": 1})


@pytest.mark.parametrize(("status", "code"), [("partial", "tool_partial"), ("canceled", "tool_canceled")])
async def test_the_turn_ends_with_the_status_of_the_result(tenant: Tenant, status: str, code: str) -> None:
    async with hand_of(tenant, CLOSE) as hand:
        result = {"half": 1} if status == "partial" else None
        ended = await played(hand, {"result": result, "status": status}, tools=("close",))
    assert (ended.view.status, ended.view.error_code) == (status, code)


async def test_a_tool_s_end_frees_the_agent_for_its_next_turn(tenant: Tenant) -> None:
    async with hand_of(tenant, CLOSE) as hand:
        turn = await hand.suspended(calling("close"))
        waiting = await tenant.enqueue(hand.agent, '{"steps": [{"text": "next"}]}')
        assert waiting.inbox_status == "queued"
        await hand.report(call_of(turn), {"n": 1})
        assert (await hand.ended(turn)).view.status == "success"
        assert (await hand.ended(turn_of(waiting))).deliverable() == "next"
    assert await tenant.task_events() == {turn: 1, turn_of(waiting): 1}
