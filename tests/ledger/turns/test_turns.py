"""The life of a leased turn, from begin to finish or fence (protocol §3, §7)."""

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    STARTED,
    Position,
    ask,
    begin,
    box,
    card,
    commit,
    finish,
    head,
    lease,
    play,
    rows,
    start,
    value,
)
from tests.support.ledger.calls import suspend
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache, box_cards, get_card
from turnstile.ledger.turns.ends import fence, finish_turn, recall_step
from turnstile.ledger.turns.steps import retry_step
from turnstile.ledger.turns.views import describe_turn, list_inbox, list_steps, list_turns, locate_turn
from turnstile.rules.turn_ends import LIVE, Ending
from turnstile.schema.cards import CardType, JsonContent, content_of
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import CardId, ProjectId, turn_card_id
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers


def types(places: list[Position]) -> list[str]:
    return [place.type for place in places]


def older(turn: TurnRef) -> TurnRef:
    return turn.model_copy(update={"turn_epoch": turn.turn_epoch - 1})


async def test_a_first_begin_opens_the_turn_and_reads_its_boxes(agents: Pool) -> None:
    turn = await lease(agents, runtime_config={"max_steps": 3})
    begun = await begin(agents, turn)
    assert begun.head.status == HeadStatus.RUNNING
    assert (begun.head.step_count, begun.head.step_attempt, begun.head.model_failures) == (0, 1, 0)
    assert begun.head.runtime_config.max_steps == 3
    assert begun.head.turn_config is None
    assert (begun.head.output_box_id, begun.head.trace_id) == (turn.output_box_id, turn.trace_id)
    assert [len(cards) for cards in (begun.profile, begun.context, begun.output)] == [1, 1, 0]
    [row] = await rows(agents, "SELECT * FROM state.agent_inbox")
    assert row["status"] == "consumed"


async def test_a_begin_is_one_round_trip_and_asks_for_what_is_new_only(agents: Pool) -> None:
    turn, cache = await lease(agents), BoxCache(1_000_000)
    first = await begin(agents, turn, cache=cache)
    await commit(agents, turn)
    before = agents.round_trips
    second = await begin(agents, turn, 2, cache)
    assert agents.round_trips == before + 1
    assert (second.profile, second.context) == (first.profile, first.context)
    assert types(await box(agents, turn.output_box_id)) == [each.type for each in second.output] == ["agent.thought"]
    assert second.output == (await begin(agents, turn, 2)).output


async def test_a_restarted_turn_begins_again_where_it_stands(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    again = await begin(agents, turn)
    assert (again.head.step_attempt, again.head.step_count) == (2, 0)
    await commit(agents, turn)
    assert (await begin(agents, turn, 0)).head.step_count == 1
    assert (await begin(agents, turn, 2)).head.step_attempt == 2


async def test_a_begin_of_another_turn_epoch_agent_or_step_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    other = await lease(agents, BOB)
    for wrong in (
        older(turn),
        turn.model_copy(update={"turn_epoch": 2}),
        turn.model_copy(update={"agent_id": BOB}),
        turn.model_copy(update={"agent_turn_id": other.agent_turn_id}),
        turn.model_copy(update={"project_id": ProjectId("p2")}),
    ):
        with pytest.raises(StaleTurn):
            await begin(agents, wrong)
    with pytest.raises(StaleTurn):
        await begin(agents, turn, 2)
    assert (await head(agents))["status"] == "dispatched"


async def test_a_begin_needs_the_inbox_row_of_its_lease(agents: Pool) -> None:
    turn = await lease(agents)
    await rows(agents, "UPDATE state.agent_inbox SET turn_epoch = 5")
    with pytest.raises(StaleTurn):
        await begin(agents, turn)
    await rows(agents, "UPDATE state.agent_inbox SET turn_epoch = 1")
    await begin(agents, turn)


async def test_a_suspended_turn_is_recalled_not_begun(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await commit(agents, turn)
    await suspend(agents, turn, "call-1", "call-2", step=2)
    with pytest.raises(StaleTurn):
        await begin(agents, turn, 3)
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 1))
    assert recalled.gate
    assert recalled.head_status == HeadStatus.SUSPENDED
    assert recalled.step_metadata == ContinueMetadata()
    assert (recalled.waiting, recalled.status) == (["call-1", "call-2"], None)
    assert recalled.resume_deadline is not None


async def test_retries_are_counted_on_the_head_until_the_step_commits(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    assert await agents.run(lambda conn: retry_step(conn, turn, 1)) == (2, 1)
    assert await agents.run(lambda conn: retry_step(conn, turn, 1)) == (3, 2)
    for wrong, step in ((turn, 2), (older(turn), 1)):
        with pytest.raises(StaleTurn):
            await agents.run(lambda conn, wrong=wrong, step=step: retry_step(conn, wrong, step))
    assert (await begin(agents, turn)).head.model_failures == 2
    await commit(agents, turn)
    assert await agents.run(lambda conn: retry_step(conn, turn, 2)) == (1, 1)


async def test_a_commit_writes_step_and_cards_once(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    assert (await commit(agents, turn)).result == "done"
    twin = await commit(agents, turn)
    assert (twin.result, twin.step_metadata, twin.status) == ("already", ContinueMetadata(), HeadStatus.RUNNING)
    assert types(await box(agents, turn.output_box_id)) == ["agent.thought"]
    [step] = await agents.run(lambda conn: list_steps(conn, PROJECT, turn.agent_turn_id))
    assert (step.step_id, step.status, step.started_at) == (f"{turn.agent_turn_id}-s1", "completed", STARTED)
    assert (await head(agents))["step_count"] == 1


async def test_a_commit_out_of_order_or_without_the_gate_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    with pytest.raises(StaleTurn):
        await commit(agents, turn)
    await begin(agents, turn)
    for wrong, step in ((turn, 2), (older(turn), 1)):
        with pytest.raises(StaleTurn):
            await commit(agents, wrong, step)
    assert await box(agents, turn.output_box_id) == []


async def test_a_commit_of_an_ended_turn_is_stale_though_its_step_is_recorded(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await commit(agents, turn)
    await fence(agents, turn, TurnStatus.FAILED, "timeout_reaped_by_watchdog", "no sign of life")
    with pytest.raises(StaleTurn):
        await commit(agents, turn)
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 1))
    assert (recalled.gate, recalled.status, recalled.step_metadata) == (False, TurnStatus.FAILED, ContinueMetadata())


async def test_a_finish_records_the_outcome_and_frees_the_agent(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await commit(agents, turn)
    ended = await finish(agents, turn, 2)
    assert (ended.result, ended.status, ended.head_status, ended.head_epoch) == ("done", "success", "idle", 1)
    assert ended.outcome(turn.agent_turn_id).deliverable_card_id == f"{turn.agent_turn_id}-s2-deliverable"
    assert types(await box(agents, turn.output_box_id)) == ["agent.thought", "agent.thought", "task.deliverable"]
    idle = await head(agents)
    assert [idle[name] for name in ("active_agent_turn_id", "output_box_id", "context_box_id")] == [None, None, None]
    assert (await agents.run(lambda conn: describe_turn(conn, PROJECT, turn.agent_turn_id))) is not None
    pointer = await value(agents, "SELECT last_output_box_id::text FROM state.agent_state_pointers")
    assert pointer == turn.output_box_id


async def test_a_finish_leases_the_next_turn_first_come_first_served(agents: Pool) -> None:
    turn = await lease(agents)
    traceparent = headers.new_traceparent()
    asked = [await ask(agents, incoming={headers.TRACEPARENT: traceparent, headers.DEPTH: "3"}) for _ in range(3)]
    queued = [each.reply.agent_turn_id for each in asked]
    await begin(agents, turn)
    ended = await finish(agents, turn)
    assert (ended.next_turn_id, ended.head_status, ended.head_epoch) == (queued[0], HeadStatus.DISPATCHED, 2)
    assert headers.trace_id(ended.context_headers[headers.TRACEPARENT]) == turn.trace_id
    leased = ended.next_lease(turn)
    assert leased is not None
    assert (leased.turn_epoch, leased.agent_turn_id) == (2, queued[0])
    bell = leased.doorbell("test", "dispatch")  # of the next turn's own trace and depth
    assert headers.trace_id(bell.headers[headers.TRACEPARENT]) == headers.trace_id(traceparent) != turn.trace_id
    assert bell.headers[headers.DEPTH] == "3"
    assert [(await play(agents)).agent_turn_id for _ in queued] == queued
    assert (await head(agents))["turn_epoch"] == 4


async def test_a_turn_may_write_on_in_the_box_of_the_one_it_follows(agents: Pool) -> None:
    turn = await lease(agents)
    await ask(agents, output_box_id=turn.output_box_id)
    await begin(agents, turn)
    assert (await finish(agents, turn)).head_status == HeadStatus.DISPATCHED
    await play(agents)
    assert types(await box(agents, turn.output_box_id)) == ["agent.thought", "task.deliverable"] * 2


async def test_a_finish_leases_past_a_turn_whose_box_is_held(agents: Pool) -> None:
    turn, holder = await lease(agents), await lease(agents, BOB)
    held = await ask(agents, output_box_id=holder.output_box_id)
    free = await ask(agents)
    await begin(agents, turn)
    assert (await finish(agents, turn)).next_turn_id == free.reply.agent_turn_id
    await begin(agents, holder)
    await finish(agents, holder)
    nexts = await start(agents)
    await begin(agents, nexts)
    assert (await finish(agents, nexts)).next_turn_id == held.reply.agent_turn_id
    await play(agents)


async def test_a_repeated_finish_is_answered_what_is_recorded(agents: Pool) -> None:
    turn = await lease(agents)
    waiting = await ask(agents)
    await begin(agents, turn)
    first = await finish(agents, turn)
    again = await finish(agents, turn)
    assert again.result == "already"
    assert (again.step_metadata, again.next_turn_id) == (EndMetadata(), waiting.reply.agent_turn_id)
    assert again.outcome(turn.agent_turn_id) == first.outcome(turn.agent_turn_id)
    assert again.ended_at == first.ended_at
    await play(agents)
    assert (await finish(agents, turn)).next_turn_id is None


async def test_a_finish_without_the_gate_or_out_of_order_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    with pytest.raises(StaleTurn):
        await finish(agents, turn)
    await begin(agents, turn)
    for wrong, step in ((turn, 2), (older(turn), 1), (turn.model_copy(update={"agent_id": BOB}), 1)):
        with pytest.raises(StaleTurn):
            await finish(agents, wrong, step)
    assert await box(agents, turn.output_box_id) == []


async def test_a_finish_of_a_step_that_went_on_otherwise_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await commit(agents, turn)
    with pytest.raises(StaleTurn):
        await finish(agents, turn, 1)
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 1))
    assert (recalled.gate, recalled.step_metadata) == (True, ContinueMetadata())


@pytest.mark.parametrize("at", ["dispatched", "running", "suspended"])
@pytest.mark.parametrize("queue", [0, 1])
async def test_a_fence_ends_a_turn_wherever_it_is(agents: Pool, at: str, queue: int) -> None:
    turn = await lease(agents)
    for _ in range(queue):
        await ask(agents)
    if at != "dispatched":
        await begin(agents, turn)
        await commit(agents, turn)
    if at == "suspended":
        await suspend(agents, turn, "call-1", "call-2", step=2)
    assert (await head(agents))["status"] == at
    ended = await fence(agents, turn, TurnStatus.CANCELED, "stopped", "the user stopped it")
    assert (ended.result, ended.status, ended.error_code) == ("done", TurnStatus.CANCELED, "stopped")
    assert (ended.head_epoch, ended.head_status) == (2, "dispatched" if queue else "idle")
    made = await agents.run(lambda conn: box_cards(conn, PROJECT, turn.output_box_id))
    assert made is not None
    thoughts = [] if at == "dispatched" else ["agent.thought"]
    called = ["agent.thought", *["tool.call"] * 2, *["tool.result"] * 2] if at == "suspended" else []
    assert [each.type for each in made] == [*thoughts, *called, "task.deliverable"]
    fallback = content_of(made[-1])
    assert isinstance(fallback, JsonContent)
    assert fallback.data == {
        "reason": "the user stopped it",
        "last_thought": None if at == "dispatched" else "so be it",
        "tool_results": [],
        "terminal_status": "canceled",
    }
    assert made[-1].metadata.partial
    for _ in range(queue):
        await play(agents)


async def test_a_fence_drops_the_calls_that_nobody_answered(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await suspend(agents, turn, "call-1", "call-2")
    await rows(agents, "UPDATE state.turn_waiting_tools SET wait_status = 'received' WHERE tool_call_id = 'call-2'")
    await fence(agents, turn, TurnStatus.CANCELED, "stopped", "stopped")
    waits = await rows(agents, "SELECT wait_status FROM state.turn_waiting_tools")
    assert waits == [{"wait_status": "dropped"}] * 2
    result = await agents.run(lambda conn: get_card(conn, PROJECT, CardId("call-1-canceled")))
    assert result is not None
    assert (result.type, result.tool_call_id, result.metadata.function_name) == ("tool.result", "call-1", "search")
    assert result.metadata.agent_turn_id == turn.agent_turn_id
    content = content_of(result)
    assert content.model_dump(include={"status", "error"}) == {
        "status": "canceled",
        "error": {"code": "canceled", "message": "the turn ended before this call was answered"},
    }


async def test_a_late_worker_of_a_fenced_turn_has_no_effect(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await fence(agents, turn, TurnStatus.FAILED, "timeout_reaped_by_watchdog", "no sign of life")
    before = await box(agents, turn.output_box_id)
    for late in (begin, commit, finish):
        with pytest.raises(StaleTurn):
            await late(agents, turn, 1)
    with pytest.raises(StaleTurn):
        await agents.run(lambda conn: retry_step(conn, turn, 1))
    assert await box(agents, turn.output_box_id) == before
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 1))
    assert (recalled.gate, recalled.error_code) == (False, "timeout_reaped_by_watchdog")


async def test_a_fence_of_an_ended_turn_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await finish(agents, turn)
    with pytest.raises(StaleTurn):
        await fence(agents, turn, TurnStatus.FAILED, "timeout_reaped_by_watchdog", "no sign of life")
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 1))
    assert (recalled.status, recalled.error_code, recalled.head_epoch) == ("success", None, 1)


async def test_a_fence_of_another_epoch_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    with pytest.raises(StaleTurn):
        await fence(agents, older(turn), TurnStatus.FAILED, "x", "x")
    assert (await head(agents))["status"] == "dispatched"


async def test_a_forced_end_may_name_the_states_it_ends(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    deliverable = card(turn, 1, "deliverable", CardType.DELIVERABLE)
    ending = Ending(TurnStatus.FAILED, deliverable.card_id, "x")

    async def end(*states: HeadStatus) -> object:
        return await agents.run(lambda conn: finish_turn(conn, turn, ending, cards=[deliverable], from_statuses=states))

    with pytest.raises(StaleTurn):
        await end(HeadStatus.DISPATCHED, HeadStatus.SUSPENDED)
    await end(*LIVE)
    assert (await head(agents))["turn_epoch"] == 1


async def test_views_say_where_a_turn_stands(agents: Pool) -> None:
    turn = await lease(agents, correlation_id="c")
    queued = (await ask(agents)).reply.agent_turn_id
    found = await agents.run(lambda conn: locate_turn(conn, PROJECT, turn.agent_turn_id))
    assert found is not None
    assert TurnRef.model_validate(found.model_dump()) == turn
    await begin(agents, turn)
    await commit(agents, turn)

    async def statuses() -> list[str]:
        lines = await agents.run(lambda conn: list_turns(conn, PROJECT, ALICE, row_limit=9))
        return [line.status for line in lines]

    assert await statuses() == ["queued", "running"]
    await finish(agents, turn, 2)
    assert await statuses() == ["dispatched", "success"]
    view = await agents.run(lambda conn: describe_turn(conn, PROJECT, turn.agent_turn_id))
    assert view is not None
    assert (view.status, view.steps, view.correlation_id, view.turn_epoch) == ("success", 2, "c", 1)
    assert view.deliverable_card_id == f"{turn.agent_turn_id}-s2-deliverable"
    assert await agents.run(lambda conn: locate_turn(conn, PROJECT, turn.agent_turn_id)) is None
    located = await agents.run(lambda conn: locate_turn(conn, PROJECT, queued)) if queued else None
    assert located is not None
    assert located.turn_epoch == 2
    inbox = await agents.run(lambda conn: list_inbox(conn, PROJECT, None, "consumed", row_limit=9))
    assert [line.agent_turn_id for line in inbox] == [turn.agent_turn_id]
    assert await agents.run(lambda conn: describe_turn(conn, ProjectId("p2"), turn.agent_turn_id)) is None


async def test_the_fallback_card_has_the_turns_id(agents: Pool) -> None:
    turn = await lease(agents)
    ended = await fence(agents, turn, TurnStatus.TIMEOUT, "dispatch_timeout", "nobody came")
    assert ended.deliverable_card_id == turn_card_id(turn.agent_turn_id, "deliverable")
    assert await agents.run(lambda conn: get_card(conn, ProjectId("p2"), ended.deliverable_card_id)) is None
