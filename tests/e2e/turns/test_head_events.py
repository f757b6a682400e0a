"""What the events `state`, `step` and `inbox_progress` say of a turn, in order (protocol §3, §5)."""

import json
from typing import Any, get_args

import pytest

from tests.support.conditions import until
from tests.support.ledger.calls import written_report
from tests.support.tenants import ALICE, StoredEvent, Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.wire.events import InboxProgress

pytestmark = pytest.mark.shared_stack

BOB = AgentId("bob")
SLOW: JsonObject = {"text": "one two three four", "chunks": 4, "delay_seconds": 0.1}


async def states(tenant: Tenant, turn: AgentTurnId) -> list[tuple[str, JsonObject]]:
    """Status and metadata of the turn's `state` events, which are in the order of the head's changes."""
    found = [event.payload for event in await tenant.events("agent.*.state")]
    own = [each for each in found if each["agent_turn_id"] == turn]
    times = [str(each["updated_at"]) for each in own]
    assert times == sorted(times)
    assert len({(str(each["output_box_id"]), str(each["turn_epoch"])) for each in own}) == 1
    told: list[tuple[str, JsonObject]] = []
    for each in own:
        assert isinstance(each["metadata"], dict)
        told.append((str(each["status"]), each["metadata"]))
    return told


async def test_every_change_of_the_head_is_told_in_order(tenant: Tenant) -> None:
    async with hand_of(tenant, definition("search"), definition("weigh")) as hand:
        turn = await hand.suspended(calling("search", "weigh", "weigh"))
        for index, left in enumerate((2, 1, 0)):
            await hand.report(call_of(turn, index))
            if left:
                await hand.until_head(waiting_tool_count=left)
        await hand.ended(turn)
    waits = {"activity": "awaiting_tool_result"}
    assert await states(tenant, turn) == [
        ("dispatched", {}),
        ("running", {"activity": "thinking"}),
        ("suspended", {**waits, "current_tool": "search, weigh", "waiting_tool_count": 3}),
        ("suspended", {**waits, "current_tool": "weigh", "waiting_tool_count": 2}),
        ("suspended", {**waits, "current_tool": "weigh", "waiting_tool_count": 1}),
        ("running", {"activity": "thinking"}),
        ("idle", {}),
    ]


async def test_a_turn_that_a_tool_ends_becomes_idle_at_once(tenant: Tenant) -> None:
    async with hand_of(tenant, definition("close", after_execution="terminate")) as hand:
        turn = await hand.suspended(calling("close"))
        await hand.report(call_of(turn))
        await hand.ended(turn)
    assert [status for status, _ in await states(tenant, turn)] == ["dispatched", "running", "suspended", "idle"]


async def test_a_step_tells_each_of_its_phases_in_order(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
    steps = [event.payload for event in await tenant.events("agent.*.step")]
    first, second = (step.step_id for step in ended.steps)
    phases = [(s["step_id"], s["phase"]) for s in steps]
    assert phases == [
        *((first, phase) for phase in ("started", "planning", "executing", "completed")),
        *((second, phase) for phase in ("started", "planning", "completed")),
    ]
    assert steps[1]["metadata"] == {"model": "scripted/player"}
    assert steps[2]["metadata"] == {"activity": "executing_tool", "tools": ["search"]}
    assert [step.metadata.get("activity") for step in ended.steps] == ["executing_tool", None]


async def test_a_step_that_fails_tells_so(tenant: Tenant) -> None:
    ended = await tenant.run("nosuch")
    steps = [event.payload for event in await tenant.events("agent.*.step")]
    assert [s["phase"] for s in steps] == ["started", "planning", "failed"]
    told = steps[-1]["metadata"]
    assert isinstance(told, dict)
    assert told["error_code"] == ended.steps[0].metadata["error_code"] == "model_unknown"
    assert [step.status for step in ended.steps] == ["failed"]


async def test_a_lease_that_an_end_makes_is_told(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        first = await hand.start(SLOW)
        second = turn_of(await tenant.enqueue(hand.agent, json.dumps({"steps": [SLOW]})))
        await hand.ended(first)
        await hand.ended(second)
    assert [status for status, _ in await states(tenant, first)] == ["dispatched", "running"]
    assert [status for status, _ in await states(tenant, second)] == ["dispatched", "running", "idle"]


async def test_a_lease_that_the_safety_net_makes_is_told(tenant: Tenant) -> None:
    """Bob waits for a box that alice holds; nobody but the net looks after him when she lets it go."""
    async with hand_of(tenant) as hand:
        await tenant.agent("plain", BOB)
        holds = await tenant.enqueue(ALICE, json.dumps({"steps": [calling("search")]}))
        await hand.heard()
        waits = turn_of(await tenant.enqueue(BOB, output_box_id=holds.output_box_id))
        await hand.report(call_of(turn_of(holds)))
        await hand.ended(waits)
    assert [status for status, _ in await states(tenant, waits)] == ["dispatched", "running", "idle"]


@pytest.mark.parametrize("before", ["dispatched", "running", "suspended"])
async def test_whoever_ends_a_turn_tells_that_the_agent_is_idle(tenant: Tenant, before: str) -> None:
    async with hand_of(tenant) as hand:
        if before == "dispatched":
            await tenant.rows("UPDATE resource.project_agents SET worker_target = 'far' WHERE agent_id = $1", ALICE)
            turn = await hand.start(SLOW)
        elif before == "running":
            turn = await hand.start({**SLOW, "chunks": 1000, "text": "x" * 1000})
            await hand.until_head(status="running")
        else:
            turn = await hand.suspended(calling("search"))
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await hand.ended(turn)
    told = [status for status, _ in await states(tenant, turn)]
    assert (
        told
        == {
            "dispatched": ["dispatched", "idle"],
            "running": ["dispatched", "running", "idle"],
            "suspended": ["dispatched", "running", "suspended", "idle"],
        }[before]
    )


# inbox_progress


async def progress(tenant: Tenant, inbox_id: str) -> list[tuple[Any, Any]]:
    """Status and reason of each `inbox_progress` event of a row, in order; waits for the first."""

    async def found() -> list[StoredEvent]:
        events = await tenant.events("agent.*.inbox_progress")
        return [event for event in events if event.payload["inbox_id"] == inbox_id]

    events = await until(found, 25, "the row's end is told")
    return [(event.payload["status"], event.payload["reason"]) for event in events]


async def is_deferred(hand: Hand, call: str, retries: int) -> bool:
    """Whether the report's row was deferred so often."""
    [row] = await hand.inbox(call)
    return (row["status"], row["retry_count"]) == ("deferred", retries)


async def row_of(hand: Hand, correlation: str, message_type: str) -> str:
    """The only inbox row of this type under a correlation."""
    [row] = await hand.inbox(correlation, message_type)
    return row["inbox_id"]


async def test_rows_that_are_consumed_are_told(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        reply = await tenant.enqueue(hand.agent, json.dumps({"steps": [calling("search", "search")]}))
        turn = turn_of(reply)
        await hand.heard(2)
        first, second = call_of(turn), call_of(turn, 1)
        await hand.report(first)
        await hand.until_head(waiting_tool_count=1)
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await hand.ended(turn)
        await hand.report(second)
        await hand.settled(second)
        assert await progress(tenant, str(reply.inbox_id)) == [("consumed", None)]
        assert await progress(tenant, await row_of(hand, first, "tool_result")) == [("consumed", None)]
        assert await progress(tenant, await row_of(hand, turn, "stop")) == [("consumed", None)]
        late = await row_of(hand, second, "tool_result")
        assert await progress(tenant, late) == [("consumed", "already_settled")]


async def test_a_row_whose_card_is_late_is_told_as_deferred_and_as_an_error_in_the_end(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        call = call_of(turn)
        row = await written_report(tenant.pool, await hand.ref(turn), call, "card-of-nobody")
        for retries in (1, 2, 3):
            await until(lambda retries=retries: is_deferred(hand, call, retries), 25, "the row is deferred")
            await tenant.rows("UPDATE state.agent_inbox SET next_retry_at = now() WHERE status = 'deferred'")
        await hand.ended(turn)
        late = ("deferred", "card_not_visible")
        assert await progress(tenant, row) == [late, late, late, ("error", "resume_retry_exhausted")]
    assert [status for status, _ in await states(tenant, turn)] == [
        *("dispatched", "running", "suspended", "running", "idle")
    ]


async def test_rows_that_are_skipped_are_told(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        queued = await tenant.enqueue(hand.agent)
        await tenant.client.request("stop", {"agent_turn_id": turn_of(queued)})
        assert await progress(tenant, str(queued.inbox_id)) == [("skipped", "stopped")]
        stale = await written_report(tenant.pool, await hand.ref(turn), call_of(turn), None, turn_epoch=7)
        assert await progress(tenant, stale) == [("skipped", "stale_turn")]
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await hand.ended(turn)
        await tenant.rows("UPDATE resource.project_agents SET worker_target = 'far' WHERE agent_id = $1", ALICE)
        leased = await tenant.enqueue(hand.agent)
        await tenant.client.request("stop", {"agent_turn_id": turn_of(leased)})
        assert await progress(tenant, str(leased.inbox_id)) == [("skipped", "stopped")]


def test_no_other_status_is_promised() -> None:
    """The tests above and `test_bad_input` have each of these."""
    assert set(get_args(InboxProgress.model_fields["status"].annotation)) == {
        "consumed",
        "deferred",
        "skipped",
        "error",
    }
