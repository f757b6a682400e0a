"""The strategies of an enqueue from request to prompt, with two principals (protocol §6, enqueue)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.support.conditions import until
from tests.support.tenants import Ended, Tenant, turn_of
from tests.support.tools import Hand, calling, hand_of, shown
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.inbox import EnqueueReply, StopReply

pytestmark = pytest.mark.shared_stack

ME, EVE, BOSS = Caller("me"), Caller("eve"), Caller("boss", operates=True)
MINE = ("enqueue", "interrupt", "steer", "rollback", "reject")
THEIRS = ("enqueue", "reject", "steer")
STREAM: JsonObject = {"text": "All of this was said before. " * 20, "chunks": 200, "delay_seconds": 0.02}


@asynccontextmanager
async def talker_of(tenant: Tenant) -> AsyncGenerator[Hand]:
    """A hand whose agent plays the last instruction of its conversation."""
    async with hand_of(tenant) as hand:
        await tenant.profile(f"{hand.agent}-profile", "talks", allowed_tools=["search"])
        yield hand


async def request(hand: Hand, *steps: JsonObject, caller: Caller | None = ME, **fields: Any) -> EnqueueReply:
    """Enqueue in the conversation `c1`; returns the reply, accepted or not."""
    asked: JsonObject = {"agent_id": hand.agent, "conversation_id": "c1", "instruction": json.dumps({"steps": steps})}
    return EnqueueReply.model_validate(await hand.tenant.client.request("enqueue", {**asked, **fields}, caller=caller))


async def over(hand: Hand, strategy: str, *steps: JsonObject, caller: Caller = ME, **fields: Any) -> EnqueueReply:
    """Enqueue with this strategy, which must be accepted."""
    reply = await request(hand, *steps, caller=caller, multitask_strategy=strategy, **fields)
    assert reply.is_done, reply
    return reply


async def stop(hand: Hand, turn: AgentTurnId, caller: Caller) -> StopReply:
    return StopReply.model_validate(await hand.tenant.client.request("stop", {"agent_turn_id": turn}, caller=caller))


async def running(hand: Hand, *steps: JsonObject, caller: Caller = ME) -> AgentTurnId:
    """A turn whose model is about to speak."""
    turn = turn_of(await request(hand, *steps, caller=caller))
    await hand.until_head(status="running", active_agent_turn_id=turn)
    return turn


def read(ended: Ended) -> str:
    """The messages that the model of a turn without steps received."""
    return json.dumps(cast("list[list[str]]", shown(ended.deliverable())["messages"]))


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_the_turn_in_hand_stops_and_the_next_knows_of_it_or_not(tenant: Tenant, strategy: str) -> None:
    async with talker_of(tenant) as hand:
        first = await hand.ended(turn_of(await request(hand, {"text": "the first answer"})))
        turn = await running(hand, STREAM)
        reply = await over(hand, strategy)
        assert reply.stopped == (turn,)
        stopped, ended = await hand.ended(turn), await hand.ended(turn_of(reply))
        assert (stopped.view.status, stopped.view.error_code) == ("canceled", "stopped")
        assert stopped.view.stats is not None
        assert (stopped.view.stats.get("rolled_back_by") == reply.agent_turn_id) == (strategy == "rollback")
        assert "the first answer" in read(ended)
        assert ("terminal_status" in read(ended)) == (
            strategy == "interrupt"
        )  # of the fallback, however little was said
        assert "delay_seconds" not in read(ended) or strategy == "interrupt"  # the instruction
        assert first.view.status == "success"


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
async def test_a_sleeping_turn_and_those_queued_behind_it_make_way(tenant: Tenant, strategy: str) -> None:
    async with talker_of(tenant) as hand:
        turn = turn_of(await request(hand, calling("search")))
        await hand.heard()
        waits, theirs = turn_of(await request(hand)), turn_of(await request(hand, caller=EVE))
        reply = await over(hand, strategy, {"text": "now"})
        assert set(reply.stopped) == {turn, waits}
        for each in (turn, waits):
            assert (await hand.ended(each)).view.status == "canceled"
        mine, other = await hand.ended(turn_of(reply)), await hand.ended(theirs)
        assert mine.deliverable() == "now"
        assert mine.view.ended_at is not None
        assert other.view.started_at is not None
        assert mine.view.ended_at <= other.view.started_at
        assert ("now" in read(other), "search" in read(other)) == (True, strategy == "interrupt")
        events = await tenant.task_events()
        assert set(events.values()) == {1}
        assert len(events) == 4


async def test_reject_answers_with_the_turn_that_is_in_the_way(tenant: Tenant) -> None:
    async with talker_of(tenant) as hand:
        turn = await running(hand, STREAM)
        reply = await request(hand, multitask_strategy="reject")
        assert (reply.status, reply.error_code) == (ReplyStatus.REJECTED, "turn_in_progress")
        assert reply.error is not None
        assert turn in reply.error
        await stop(hand, turn, ME)
        await hand.ended(turn)
        assert (await hand.ended(turn_of(await over(hand, "reject", {"text": "now"})))).deliverable() == "now"


async def test_steer_tells_the_turn_in_hand_and_is_a_turn_without_one(tenant: Tenant) -> None:
    async with talker_of(tenant) as hand:
        turn = await running(hand, {"text": "soon", "chunks": 4, "delay_seconds": 0.3})
        reply = await over(hand, "steer", correlation_id="k", instruction="also tell the date")
        assert (reply.status, reply.agent_turn_id, reply.steered_turn_id) == (ReplyStatus.STEERED, None, turn)
        assert (reply.inbox_status, reply.duplicate) == ("pending", False)
        row = "inbox_id = $1 AND agent_turn_id = $2 AND message_type = 'steer'"
        assert await tenant.rows(f"SELECT FROM state.agent_inbox WHERE {row}", reply.inbox_id, turn)
        ended = await hand.ended(turn)
        assert "also tell the date" in read(ended)
        again = await over(hand, "steer", correlation_id="k", instruction="also tell the date")
        assert (again.status, again.inbox_id, again.steered_turn_id) == (ReplyStatus.STEERED, reply.inbox_id, turn)
        assert (again.inbox_status, again.duplicate) == ("consumed", True)
        new = await over(hand, "steer", {"text": "now"})
        assert (new.status, (await hand.ended(turn_of(new))).deliverable()) == (ReplyStatus.ACCEPTED, "now")


async def test_without_a_named_caller_or_a_conversation_it_is_refused(tenant: Tenant) -> None:
    async with talker_of(tenant) as hand:
        reply = await request(hand, multitask_strategy="interrupt", caller=None)
        assert (reply.error_code, "req.sys.bridge.enqueue." in str(reply.error)) == ("principal_required", True)
        reply = await request(hand, multitask_strategy="interrupt", conversation_id=None)
        assert reply.error_code == "no_conversation"
        reply = await request(hand, multitask_strategy="kill")
        assert reply.error_code == "bad_request"
        assert await tenant.count("state.agent_inbox") == 0


@pytest.mark.parametrize("state", ["running", "suspended", "queued"])
async def test_a_stop_by_somebody_else_changes_nothing(tenant: Tenant, state: str) -> None:
    async with talker_of(tenant) as hand:
        if state == "queued":
            await running(hand, STREAM)
            turn = turn_of(await request(hand, {"text": "done"}))
        elif state == "suspended":
            turn = turn_of(await request(hand, calling("search")))
            await hand.heard()
        else:
            turn = await running(hand, STREAM)
        before = await tenant.count("state.agent_inbox")
        reply = await stop(hand, turn, EVE)
        assert (reply.status, reply.error_code) == (ReplyStatus.REJECTED, "not_yours")
        assert await tenant.count("state.agent_inbox") == before
        assert await tenant.count("state.turn_nodes") == 0
        assert (await stop(hand, turn, BOSS)).status is ReplyStatus.ACCEPTED
        ended = await hand.ended(turn)
        assert ended.view.status == "canceled"
        if state == "queued":
            assert ended.view.error == "the turn was stopped by boss"


@pytest.mark.long
@pytest.mark.parametrize("rounds", [pytest.param(20, id="often")])
async def test_sixteen_clients_of_two_principals_at_once(tenant: Tenant, rounds: int) -> None:
    """All strategies at once in two conversations: what one principal asks never touches a turn of the other."""
    async with talker_of(tenant) as hand:
        asked: dict[str, list[EnqueueReply]] = {"me": [], "eve": []}

        async def client(number: int) -> None:
            caller = (ME, EVE)[number % 2]
            for strategy in (MINE, THEIRS)[number % 2] * rounds:
                reply = await request(
                    hand,
                    {"text": "done", "delay_seconds": 0.05},
                    caller=caller,
                    conversation_id=f"c{number % 3}",
                    multitask_strategy=strategy,
                )
                assert reply.is_done or reply.error_code == "turn_in_progress", reply
                asked[caller.name].append(reply)

        await asyncio.gather(*(client(number) for number in range(16)))
        accepted = {name: [each for each in replies if each.is_done] for name, replies in asked.items()}
        made = {
            name: {turn_of(each) for each in replies if each.steered_turn_id is None}
            for name, replies in accepted.items()
        }
        for name, replies in accepted.items():
            assert {each.steered_turn_id for each in replies if each.steered_turn_id} <= made[name]

        async def over() -> bool:
            return await tenant.count("state.turn_outcomes", "announced_at IS NOT NULL") == sum(map(len, made.values()))

        await until(over, 60 * rounds, "all turns end")
        stopped = {turn for replies in asked.values() for each in replies for turn in each.stopped}
        assert stopped
        assert stopped <= made["me"]
        canceled = await tenant.rows(
            "SELECT agent_turn_id FROM state.turn_outcomes WHERE project_id = $1 AND status = 'canceled'",
            tenant.project,
        )
        assert {row["agent_turn_id"] for row in canceled} <= stopped
        assert set((await tenant.task_events()).values()) == {1}
