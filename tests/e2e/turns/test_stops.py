"""Stopping a turn wherever it stands: what it has is kept, and it ends once, as canceled (protocol §6, stop)."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.tenants import Ended, Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.bridge.publishing import stop as verb
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.ledger.trees.marks import MarkedTree
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.inbox import StopReply, StopRequest
from turnstile.workflows.options import turn_workflow_id

WORDS = "All of this was said before the stop. " * 20
STREAM: JsonObject = {"text": WORDS, "chunks": 200, "delay_seconds": 0.02}
MUTE: JsonObject = {"text": "never said", "delay_seconds": 60}


async def stop(hand: Hand, turn: str, **fields: Any) -> StopReply:
    """The reply to a stop, whatever it is."""
    return StopReply.model_validate(await hand.tenant.client.request("stop", {"agent_turn_id": turn, **fields}))


async def cancel(hand: Hand, turn: AgentTurnId) -> None:
    """What the Web UI's "Request Cancellation" does."""
    await hand.tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn)).cancel()


async def streaming(hand: Hand, *steps: Any) -> AgentTurnId:
    """A turn whose model is in the middle of its words."""
    async with hand.tenant.client.watching(hand.agent, include_chunks=True) as events:
        turn = await hand.start(*(steps or (STREAM,)))
        async with asyncio.timeout(25):
            async for event in events:
                if event.suffix == "chunk" and event.payload["chunk_type"] == "content":
                    return turn
    raise AssertionError("no words came")


def fallback(ended: Ended) -> dict[str, Any]:
    """The deliverable of a turn that was stopped."""
    assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
    made = ended.deliverable()
    assert isinstance(made, dict)
    assert made["terminal_status"] == "canceled"
    assert ended.cards[-1].type == "task.deliverable"
    assert ended.cards[-1].metadata.partial
    return made


async def stop_row(hand: Hand, turn: str) -> tuple[str, dict[str, Any]]:
    """The inbox row of the stop: its status and payload."""
    [row] = await hand.inbox(turn, "stop")
    return row["status"], json.loads(row["payload"])


@pytest.mark.parametrize("by", ["verb", "web ui"])
async def test_a_running_turn_in_mid_stream_keeps_its_words(tenant: Tenant, by: str) -> None:
    async with hand_of(tenant) as hand:
        turn = await streaming(hand)
        if by == "verb":
            assert (await stop(hand, turn, reason="enough")).status is ReplyStatus.ACCEPTED
        else:
            await cancel(hand, turn)
        ended = await hand.ended(turn)
        history = await tenant.stack.history(turn)
    thought, deliverable = ended.cards
    assert (thought.type, thought.metadata.partial, deliverable.type) == ("agent.thought", True, "task.deliverable")
    assert isinstance(thought.content, dict)
    said = str(thought.content["text"])
    assert WORDS.startswith(said)
    assert 0 < len(said) < len(WORDS)
    assert fallback(ended)["last_thought"] == said
    [step] = ended.steps
    assert (step.status, step.error) == ("canceled", "stopped")
    attempts = step.metadata["attempts"]
    assert isinstance(attempts, list)
    assert [attempt["error_code"] for attempt in attempts if isinstance(attempt, dict)] == ["canceled"]
    if by == "verb":
        assert await stop_row(hand, turn) == ("consumed", {"reason": "enough"})
    assert history.events[-1].HasField("workflow_execution_completed_event_attributes")
    assert await tenant.task_events() == {turn: 1}


async def test_a_running_turn_that_has_said_nothing_makes_no_thought(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.start(MUTE)
        await hand.until_head(status="running")
        await stop(hand, turn)
        ended = await hand.ended(turn)
    assert ended.types() == ["task.deliverable"]
    assert fallback(ended)["last_thought"] is None


async def test_a_later_step_s_words_follow_what_the_turn_has(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await streaming(hand, calling("nosuch"), STREAM)
        await stop(hand, turn)
        ended = await hand.ended(turn)
    assert ended.types() == ["agent.thought", "tool.result", "agent.thought", "task.deliverable"]
    [result] = [card for card in ended.cards if card.type == "tool.result"]
    assert fallback(ended)["tool_results"] == [{"tool_call_id": result.tool_call_id, "card_id": result.card_id}]
    assert [step.status for step in ended.steps] == ["completed", "canceled"]


async def test_a_turn_between_two_attempts_of_its_model_is_stopped(tenant: Tenant) -> None:
    line: JsonObject = {"error": {"code": "model_server_error", "retry_after_seconds": 60}}
    async with hand_of(tenant) as hand:
        turn = await hand.start(line)
        await hand.until_head(model_failures=1)
        await stop(hand, turn)
        ended = await hand.ended(turn)
    assert fallback(ended)["last_thought"] is None
    assert ended.steps[0].status == "canceled"


@pytest.mark.parametrize("by", ["verb", "web ui"])
async def test_a_suspended_turn_s_unanswered_calls_are_canceled(tenant: Tenant, by: str) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search", "search", text="Three."))
        calls = [call_of(turn, index) for index in range(3)]
        await hand.report(calls[1])
        await hand.until_head(waiting_tool_count=2)
        await (stop(hand, turn) if by == "verb" else cancel(hand, turn))
        ended = await hand.ended(turn)
    assert [result[:2] for result in ended.results()] == [("success", None)] + [("canceled", "canceled")] * 2
    assert await hand.waits(turn) == {calls[0]: "dropped", calls[1]: "applied", calls[2]: "dropped"}
    assert fallback(ended)["last_thought"] == "Three."
    assert len(ended.steps) == 1
    assert await tenant.task_events() == {turn: 1}


async def test_a_queued_turn_ends_at_once_in_its_own_box(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        running = await hand.suspended(calling("search"))
        queued = await tenant.enqueue(hand.agent)
        turn = turn_of(queued)
        assert (await stop(hand, turn)).status is ReplyStatus.ACCEPTED
        ended = await hand.ended(turn)
        assert (ended.view.turn_epoch, ended.view.inbox_status) == (0, "skipped")
        assert ended.view.output_box_id == queued.output_box_id
        fallback(ended)
        assert (await hand.head())["active_agent_turn_id"] == running
        await hand.report(call_of(running))
        assert (await hand.ended(running)).view.status == "success"
    assert await tenant.task_events() == {turn: 1, running: 1}


async def test_a_queued_turn_whose_box_another_agent_holds_ends_in_a_fresh_one(tenant: Tenant) -> None:
    bob = await tenant.agent("plain", AgentId("bob"))
    async with hand_of(tenant) as hand:
        running = await hand.suspended(calling("search"))
        box = (await hand.ref(running)).output_box_id
        reply = await tenant.enqueue(bob, output_box_id=box)
        assert reply.inbox_status == "queued"
        await stop(hand, turn_of(reply))
        [outcome] = await tenant.rows(
            "SELECT o.*, (SELECT count(*) FROM box_cards b WHERE b.box_id = o.output_box_id) AS cards"
            " FROM state.turn_outcomes o WHERE agent_turn_id = $1",
            turn_of(reply),
        )
        assert (outcome["status"], outcome["error_code"], outcome["cards"]) == ("canceled", "stopped", 1)
        assert str(outcome["output_box_id"]) != box
        await hand.report(call_of(running))
        assert "task.deliverable" in (await hand.ended(running)).types()
    assert await tenant.task_events() == {turn_of(reply): 1, running: 1}


async def test_a_finished_turn_is_already_final(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        ended = await hand.ended(await hand.start())
        turn = ended.view.agent_turn_id
        reply = await stop(hand, turn)
    assert (reply.status, reply.already_final, reply.agent_turn_id) == (ReplyStatus.ACCEPTED, True, turn)
    assert await hand.inbox(turn, "stop") == []
    assert (await hand.ended(turn)).view == ended.view


async def test_an_unknown_turn_is_refused(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        for project, wrong in ((tenant, "no-such-turn"), (tenant.named("p-other"), turn)):
            reply = await stop(Hand(project, hand.agent), wrong)
            assert (reply.status, reply.error_code) == (ReplyStatus.REJECTED, "unknown_turn")
        assert (await hand.head())["status"] == "suspended"
        await stop(hand, turn)
        await hand.ended(turn)


async def test_stops_at_once_end_the_turn_once(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await streaming(hand)
        replies = await asyncio.gather(*(stop(hand, turn) for _ in range(8)))
        ended = await hand.ended(turn)
        later = await stop(hand, turn)
    assert all(reply.status is ReplyStatus.ACCEPTED for reply in replies)
    first = [reply for reply in replies if not (reply.duplicate or reply.already_final)]
    assert len(first) == 1
    assert later.already_final
    assert await stop_row(hand, turn) == ("consumed", {"reason": ""})
    assert fallback(ended)
    assert await tenant.count("state.execution_edges", "metadata ->> 'kind' = 'stop'") == 1
    assert await tenant.task_events() == {turn: 1}


async def test_a_durable_stop_is_answered_by_its_ack(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        assert await tenant.client.command("stop", {"agent_turn_id": turn}, "request-1")
        assert fallback(await hand.ended(turn))

        async def answered() -> bool:
            return len(await tenant.events("sys.bridge.stop_ack")) == 1

        await until(answered, 25, "the stop is answered")
        [ack] = await tenant.events("sys.bridge.stop_ack")
    assert (ack.payload["request_id"], ack.payload["status"]) == ("request-1", "accepted")


async def test_the_web_ui_cancels_a_turn_that_is_just_resumed(tenant: Tenant) -> None:
    """Cancellations while reports are applied one by one: wherever they find it, the workflow ends its turn."""
    async with hand_of(tenant):
        agents = await tenant.agents("player", 10, allowed_tools=["search"])

        async def race(number: int) -> Ended:
            own = Hand(tenant, agents[number])
            turn = await own.start(calling("search", "search"))
            await own.until_head(status="suspended")
            await own.report(call_of(turn))
            await asyncio.sleep(number * 0.004)  # the moment is the subject
            await cancel(own, turn)
            return await own.ended(turn)

        raced = await asyncio.gather(*(race(number) for number in range(len(agents))))
    assert all(fallback(ended) for ended in raced)
    assert await tenant.task_events() == {ended.view.agent_turn_id: 1 for ended in raced}


async def test_a_turn_that_ends_between_its_mark_and_its_stop_is_not_counted(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last step had passed its gate before the mark, so it may end as it would have."""
    async with hand_of(tenant) as hand:
        turn = await streaming(hand, {"text": WORDS, "chunks": 20, "delay_seconds": 0.02})
        mark = verb.mark_tree

        async def mark_and_wait(*given: Any, **named: Any) -> MarkedTree:
            tree = await mark(*given, **named)
            assert (await hand.ended(turn)).view.status == "success"
            return tree

        monkeypatch.setattr(verb, "mark_tree", mark_and_wait)
        asked = StopRequest(agent_turn_id=turn)
        reply = await verb.stop_turn(tenant.pool, NatsPublisher(tenant.stack.conn), tenant.project, asked)
    assert (reply.status, reply.already_final, reply.marked, reply.on_their_way) == ("accepted", True, 0, 1)
