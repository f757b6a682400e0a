"""Steps in the workflow's own task (`run_quick_step`): which are, and what a slow answer makes of them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.faults.points import DONE
from tests.support.quick import learned, shape
from tests.support.tenants import Ended, Tenant
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.activities.turn.fast_answers import LEARNED_AFTER
from turnstile.activities.turn.prompt_reports import WAIT_SECONDS
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.inbox import StopReply

SLOW: JsonObject = {"text": "At last.", "delay_seconds": 0.5}


def attempts(ended: Ended, step: int = 0) -> list[str | None]:
    """The error codes of a step's attempts at its model."""
    made: Any = ended.steps[step].metadata["attempts"]
    return [each.get("error_code") for each in made]


async def test_a_model_that_was_fast_is_asked_in_the_workflows_task(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        first = await hand.start(DONE)
        await hand.ended(first)
        await learned(hand)
        turn = await hand.start(DONE)
        ended = await hand.ended(turn)
        assert await shape(tenant, first) == ["run_quick_step", "run_step"], "tried, and nothing was known"
        assert await shape(tenant, turn) == ["run_quick_step"]
    assert (ended.view.status, ended.deliverable(), attempts(ended)) == ("success", "All is done.", [None])
    assert (await tenant.task_events())[turn] == 1


async def test_a_turn_with_a_tool_takes_two_of_them(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        await learned(hand)
        turn = await hand.suspended(calling("search"), DONE)
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step", "run_quick_step"]
    assert [status for status, _, _ in ended.results()] == ["success"]


async def known_fast(hand: Hand, *tools: str) -> None:
    """Run turns whose calls are answered at once until the worker knows model and tools to be fast."""
    await learned(hand)
    for _ in range(LEARNED_AFTER):
        turn = await hand.suspended(calling(*tools), DONE)
        for index in range(len(tools)):
            await hand.report(call_of(turn, index))
        await hand.ended(turn)


async def test_a_step_goes_on_with_tools_that_are_fast(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        await known_fast(hand, "search")
        turn = await hand.suspended(calling("search"), calling("search"), DONE)
        await hand.report(call_of(turn))
        await hand.called(call_of(turn, step=2))
        await hand.report(call_of(turn, step=2))
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step"]
    assert ended.deliverable() == "All is done."
    assert [status for status, _, _ in ended.results()] == ["success", "success"]
    assert [each.metadata["next"] for each in ended.steps] == ["suspend", "suspend", "end"]
    assert (await tenant.task_events())[turn] == 1


async def test_a_tool_that_becomes_slow_is_waited_for_by_the_workflow(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        await known_fast(hand, "search")
        turn = await hand.suspended(calling("search"), DONE)
        await asyncio.sleep(WAIT_SECONDS + 0.2)
        await hand.report(call_of(turn))
        await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step", "run_quick_step"]
        later = await hand.suspended(calling("search"), DONE)
        await hand.report(call_of(later))
        await hand.ended(later)
        assert await shape(tenant, later) == ["run_quick_step", "run_quick_step"], "it has to be fast for a while again"


async def test_of_two_calls_one_may_come_too_late(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        await known_fast(hand, "search", "search")
        turn = await hand.suspended(calling("search", "search"), DONE)
        await hand.report(call_of(turn, 1), "second")
        await asyncio.sleep(WAIT_SECONDS + 0.2)
        await hand.report(call_of(turn, 0), "first")
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step", "apply_reports", "run_quick_step"]
    assert [status for status, _, _ in ended.results()] == ["success", "success"]


async def test_a_stop_ends_the_wait_for_a_fast_tool(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        await known_fast(hand, "search")
        turn = await hand.suspended(calling("search"), DONE)
        began = time.monotonic()
        await tenant.client.request("stop", {"agent_turn_id": turn})
        ended = await hand.ended(turn)
        took = time.monotonic() - began
        assert await shape(tenant, turn) == ["run_quick_step", "stop_turn"]
    assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
    assert took < WAIT_SECONDS


async def test_a_next_step_that_fails_after_a_fast_tool_is_done_by_an_activity(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with hand_of(tenant) as hand:
        await known_fast(hand, "search")
        turn = await hand.suspended(calling("search"), DONE)
        monkeypatch.setenv("TURNSTILE_FAULTS", f"{Fault.MODEL_ANSWERED}=throw")
        monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step", "run_step"]
    assert (ended.view.status, attempts(ended, 1)) == ("success", [None, None])
    assert [status for status, _, _ in ended.results()] == ["success"]


async def test_a_model_that_becomes_slow_is_left_to_an_activity(tenant: Tenant) -> None:
    """Its answer comes once, both questions are on record, and nobody tries again until it is fast for long enough."""
    async with hand_of(tenant) as hand:
        await learned(hand)
        turn = await hand.start(SLOW)
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step", "run_step"]
        later = await hand.start(DONE)
        assert (await hand.ended(later)).deliverable() == "All is done."
        assert await shape(tenant, later) == ["run_quick_step", "run_step"]
    assert (ended.view.status, ended.deliverable(), attempts(ended)) == ("success", "At last.", ["canceled", None])
    assert set((await tenant.task_events()).values()) == {1}


async def test_a_stop_waits_no_longer_than_a_quick_step(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        await learned(hand)
        turn = await hand.start({"text": "never said", "delay_seconds": 60})
        await hand.until_head(status="running")
        began = time.monotonic()
        reply = await tenant.client.request("stop", {"agent_turn_id": turn})
        assert StopReply.model_validate(reply).status is ReplyStatus.ACCEPTED
        ended = await hand.ended(turn)
        took = time.monotonic() - began
    assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
    assert took < 2, "the workflow heartbeats its task after 2.4 s: nothing had waited for that"


async def test_a_quick_step_that_fails_is_done_by_an_activity(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with hand_of(tenant) as hand:
        await learned(hand)
        monkeypatch.setenv("TURNSTILE_FAULTS", f"{Fault.MODEL_ANSWERED}=throw")
        monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
        turn = await hand.start(DONE)
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step", "run_step"]
    assert (ended.view.status, attempts(ended)) == ("success", [None, None])


async def test_a_ledger_that_reserves_slowly_makes_no_model_slow(tenant: Tenant) -> None:
    """What a budget has to wait for is the ledger's time: the step stays a quick one, and the model is asked once."""
    pool = tenant.stack.pool
    async with hand_of(tenant) as hand:
        await learned(hand)
        async with pool.connection() as conn, conn.transaction():
            await conn.execute("LOCK TABLE state.model_prices IN ACCESS EXCLUSIVE MODE")
            turn = await hand.start(DONE, budget={"max_tokens": 100_000})

            async def waits() -> bool:
                return bool(
                    await tenant.rows(
                        "SELECT FROM pg_locks WHERE relation = 'state.model_prices'::regclass AND NOT granted"
                    )
                )

            await until(waits, 10, "the reservation waits")
            await asyncio.sleep(0.2)  # longer than a quick step waits for a model
        ended = await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_quick_step"]
        later = await hand.start(DONE)
        await hand.ended(later)
        assert await shape(tenant, later) == ["run_quick_step"]
    assert (ended.view.status, attempts(ended)) == ("success", [None])
