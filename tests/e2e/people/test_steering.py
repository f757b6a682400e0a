"""What is said to a turn while it runs: a step of its model asks with it, in order, or it is skipped (§6, steer)."""

from typing import Any, cast

import pytest

from tests.support.tenants import Ended, Tenant
from tests.support.tools import Hand, call_of, calling, hand_of, shown
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.people.steers import SteerReply
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.descriptions import DescribeReply, TurnView

pytestmark = pytest.mark.shared_stack

SLOW: JsonObject = {"text": "a draft", "delay_seconds": 0.5}
RESULT = ("submit_result", {"fields": [{"name": "answer", "value": 1}]})


async def say(hand: Hand, turn: str, text: str, *, caller: Caller | None = None, **fields: Any) -> SteerReply:
    """The reply to a steer, accepted or not."""
    asked: JsonObject = {"agent_turn_id": turn, "text": text, **fields}
    return SteerReply.model_validate(await hand.tenant.client.request("steer", asked, caller=caller))


async def described(hand: Hand, turn: str) -> TurnView:
    """What `describe` answers."""
    found = DescribeReply.model_validate(await hand.tenant.client.request("describe", {"agent_turn_id": turn})).turn
    assert found is not None
    return found


def asked_last(ended: Ended) -> list[tuple[str, str]]:
    """The messages of the last request, without the instruction; of a tool's the content's error or result."""
    messages = cast("list[tuple[str, str]]", shown(ended.deliverable())["messages"])
    return [(role, text) for role, text in messages if role != "system"][1:]


async def stands(hand: Hand, turn: str) -> list[tuple[str, str | None]]:
    """Status and step of the turn's steers, as `describe` says."""
    return [(steer.status.value, steer.step_id) for steer in (await described(hand, turn)).steers or ()]


async def test_a_turn_that_would_end_goes_on_with_what_is_said(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.start(SLOW)
        await hand.until_head(status="running")
        first, second = await say(hand, turn, "use Python"), await say(hand, turn, "be brief")
        assert (first.status, first.steer_status, first.duplicate) == (ReplyStatus.ACCEPTED, "waiting", False)
        assert await stands(hand, turn) == [("waiting", None)] * 2
        ended = await hand.ended(turn)
        assert await stands(hand, turn) == [("applied", f"{turn}-s2")] * 2
    assert asked_last(ended) == [("assistant", "a draft"), ("user", "use Python\n\nbe brief")]
    assert ended.types() == ["agent.thought", "task.steer", "task.steer", "agent.thought", "task.deliverable"]
    assert [card.card_id for card in ended.cards if card.type == "task.steer"] == [first.steer_id, second.steer_id]
    assert [step.metadata["next"] for step in ended.steps] == ["continue", "end"]
    told = [(event.payload["steer_id"], event.payload["status"]) for event in await tenant.events("agent.*.steer")]
    assert [status for steer, status in told if steer == first.steer_id] == ["waiting", "taken", "applied"]


async def test_a_result_that_was_submitted_meanwhile_is_superseded(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        wanted = [{"name": "answer", "description": ""}]
        turn = await hand.start(calling(RESULT, **SLOW), calling(RESULT), result_fields=wanted)
        await hand.until_head(status="running")
        await say(hand, turn, "one more thing")
        ended = await hand.ended(turn)
    assert (ended.view.status, len(ended.steps)) == ("success", 2)
    assert [(status, code) for status, code, _ in ended.results()] == [("failed", "superseded"), ("success", None)]
    assert ended.types().count("task.deliverable") == 1


async def test_a_sleeping_turn_hears_it_after_its_results(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        await say(hand, turn, "meanwhile")
        assert (await hand.head())["status"] == "suspended"
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
    assert [role for role, _ in asked_last(ended)] == ["assistant", "tool", "user"]
    assert asked_last(ended)[-1] == ("user", "meanwhile")


async def test_when_idle_waits_until_the_turn_would_end(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), {"text": "done"})
        await say(hand, turn, "then say it again", priority="when_idle")
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
    assert len(ended.steps) == 3
    assert asked_last(ended)[-2:] == [("assistant", "done"), ("user", "then say it again")]


async def test_a_queued_turn_hears_it_with_its_first_step(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        before = await hand.suspended(calling("search"), {"text": "done"})
        queued = await hand.start()
        assert (await say(hand, queued, "in rhyme")).status is ReplyStatus.ACCEPTED
        await hand.report(call_of(before))
        ended = await hand.ended(queued)
    [(_, text)] = [each for each in shown(ended.deliverable())["messages"] if each[0] == "user"]
    assert text == '{"steps": []}\n\nin rhyme'


@pytest.mark.parametrize("how", ["step limit", "stop", "failure"])
async def test_a_turn_that_ends_regardless_tells_what_it_skipped(tenant: Tenant, how: str) -> None:
    line: JsonObject = {"error": {"code": "bad", "retryable": False}, "delay_seconds": 0.5}
    async with hand_of(tenant, max_steps=1 if how == "step limit" else 9) as hand:
        turn = await hand.start(line if how == "failure" else SLOW)
        await hand.until_head(status="running")
        said = await say(hand, turn, "too late")
        if how == "stop":
            await tenant.client.request("stop", {"agent_turn_id": turn})
        ended = await hand.ended(turn)
        assert await stands(hand, turn) == [("skipped", None)]
        late = await say(hand, turn, "later still")
    assert ended.view.status == {"step limit": "success", "stop": "canceled", "failure": "failed"}[how]
    assert "task.steer" not in ended.types()
    told = [(event.payload["steer_id"], event.payload["status"]) for event in await tenant.events("agent.*.steer")]
    assert told == [(said.steer_id, "waiting"), (said.steer_id, "skipped")]
    assert (late.status, late.error_code) == (ReplyStatus.REJECTED, "already_final")


async def test_a_tool_that_ends_the_turn_skips_it(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        await say(hand, turn, "wait")
        await hand.report(call_of(turn), after_execution="terminate")
        ended = await hand.ended(turn)
        assert [status for status, _ in await stands(hand, turn)] == ["skipped"]
    assert ended.types().count("task.steer") == 1  # the step that ends the turn took it in its begin


async def test_each_refusal_has_its_code(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        alice = Caller("alice")
        for code, reply in (
            ("unknown_turn", await say(hand, "nobody", "x")),
            ("unknown_turn", await say(Hand(tenant.named("p-other"), hand.agent), turn, "x")),
            ("not_yours", await say(hand, turn, "x", caller=alice)),
            ("bad_request", await say(hand, turn, "")),
            ("bad_request", await say(hand, turn, "x", priority="soon")),
            ("text_too_large", await say(hand, turn, "x" * 600_000)),
        ):
            assert (reply.status, reply.error_code) == (ReplyStatus.REJECTED, code), code
        assert await stands(hand, turn) == []
        twice = [await say(hand, turn, "once", correlation_id="c1") for _ in range(2)]
        assert ([each.duplicate for each in twice], twice[0].steer_id) == ([False, True], twice[1].steer_id)
        other = await say(hand, turn, "twice", correlation_id="c1")
        assert (other.status, other.error_code) == (ReplyStatus.REJECTED, "correlation_conflict")
        await hand.report(call_of(turn))
        await hand.ended(turn)
