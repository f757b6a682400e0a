"""What goes on in a project: live turns with what they wait for, and the parts of one turn."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    STARTED,
    TARGET,
    ask,
    begin,
    drain,
    finish,
    lease,
    middle_record,
    profile,
    rows,
)
from tests.support.ledger.calls import call_record, settle, sleeper, told
from tests.support.ledger.people import asking
from tests.support.ledger.steers import say
from tests.support.ledger.trees import forks, in_hand, succeed
from turnstile.ledger.access import now
from turnstile.ledger.access.now import LiveTurns, TurnNow
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.operations.sweep import touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.ends import end_by_fallback
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ChannelId, ProjectId, step_id
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, StepTiming
from turnstile.schema.turns import TurnRef

OTHER = ProjectId("p2")
DAVE = AgentId("dave")


async def looked(pool: Pool, project: ProjectId = PROJECT, **filters: Any) -> LiveTurns:
    """look_at_live_turns."""
    given: dict[str, Any] = {"channel": None, "row_limit": 50, **filters}
    return await pool.run(lambda conn: now.look_at_live_turns(conn, project, **given))


async def one(pool: Pool, turn: AgentTurnId) -> TurnNow:
    [found] = (await looked(pool, turn=turn)).turns
    return found


def attempt(number: int, **more: Any) -> dict[str, Any]:
    usage = {"total_tokens": 100 * number}
    return {"attempt": number, "model": f"scripted/m{number}", "duration_ms": 20, "usage": usage, **more}


async def commit_with(pool: Pool, turn: TurnRef, step: int, *attempts: dict[str, Any]) -> None:
    """Commit a middle step with these attempts."""
    metadata = ContinueMetadata(attempts=attempts, timing=StepTiming(step_ms=1500))
    record = replace(middle_record(turn, step), metadata=metadata, started_at=STARTED + timedelta(seconds=step))
    await pool.run(lambda conn: commit_step(conn, turn, record))


async def ago(pool: Pool, agent: AgentId, seconds: float) -> None:
    """Let the agent's head have changed so long ago."""
    await rows(
        pool,
        "UPDATE state.agent_state_head SET updated_at = now() - make_interval(secs => $2) WHERE agent_id = $1",
        agent,
        seconds,
    )


async def test_live_turns_are_counted_by_state_and_say_what_they_wait_for(agents: Pool) -> None:
    running = await lease(agents, ALICE)
    await begin(agents, running)
    queued = await ask(agents, ALICE)
    asleep = await sleeper(agents, "c1", "c2", agent=BOB)
    dispatched = await lease(agents, CAROL)
    live = await looked(agents)
    counts = (live.total, live.queued, live.dispatched, live.running, live.suspended, live.asking, live.stalled)
    assert counts == (4, 1, 1, 1, 1, 0, 0)
    turns = {turn.agent_turn_id: turn for turn in live.turns}
    assert turns[running.agent_turn_id].status == "running"
    assert (turns[running.agent_turn_id].model, turns[running.agent_turn_id].profile_name) == (
        "scripted/echo",
        "helper",
    )
    assert turns[running.agent_turn_id].step_attempt == 1
    assert turns[AgentTurnId(str(queued.reply.agent_turn_id))].queued_because == "agent_busy"
    assert turns[dispatched.agent_turn_id].status == "dispatched"
    calls = turns[asleep.agent_turn_id].calls
    assert calls is not None
    assert [(call.tool_name, call.wait_status, call.question_id, call.tasks) for call in calls] == [
        ("search", "waiting", None, None)
    ] * 2
    assert turns[asleep.agent_turn_id].open_calls == 2


async def test_cost_tokens_and_model_are_those_of_committed_steps(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    failed = attempt(1, error_code="rate_limited", response_cost=None)
    await commit_with(agents, turn, 1, failed, attempt(2, response_cost=0.25))
    await begin(agents, turn, 2)
    await commit_with(agents, turn, 2, attempt(3, response_cost=0.5))
    found = await one(agents, turn.agent_turn_id)
    assert (found.steps, found.tokens, found.cost, found.model) == (2, 600, 0.75, "scripted/m3")
    await begin(agents, turn, 3)
    await finish(agents, turn, 3)
    [told_] = await agents.run(
        lambda conn: now.page_turns_with_use(conn, PROJECT, channel=None, status="ended", row_limit=9)
    )
    assert (told_.agent_turn_id, told_.status, told_.steps, told_.tokens, told_.cost) == (
        turn.agent_turn_id,
        "success",
        3,
        600,
        0.75,
    )


async def test_a_turn_that_asks_people_names_the_question_and_comes_before_the_others(agents: Pool) -> None:
    asked = await asking(agents, "c1", agent=ALICE)
    await lease(agents, BOB)
    live = await looked(agents)
    assert live.asking == 1
    assert [turn.agent_turn_id == asked.agent_turn_id for turn in live.turns] == [True, False]
    [call] = live.turns[0].calls or []
    assert call.question_id is not None
    assert [turn.agent_turn_id for turn in (await looked(agents, state="people")).turns] == [asked.agent_turn_id]


async def test_a_turn_that_asked_turns_says_how_many_are_over(agents: Pool) -> None:
    turn = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3)
    await succeed(agents, made.tasks[0].agent_turn_id)
    [call] = (await one(agents, turn.agent_turn_id)).calls or []
    assert (call.tasks, call.tasks_done, call.only_turn_id) == (3, 1, None)
    child = await one(agents, made.tasks[1].agent_turn_id or AgentTurnId(""))
    assert child.parent_turn_id == turn.agent_turn_id
    other = await sleeper(agents, "c2", agent=BOB)
    alone = await forks(agents, "c2", 1)
    [call] = (await one(agents, other.agent_turn_id)).calls or []
    assert (call.tasks, call.only_turn_id) == (1, alone.tasks[0].agent_turn_id)


@pytest.mark.parametrize(("begun", "seconds", "stalled"), [(False, 31, "not_begun"), (True, 61, "slow_step")])
async def test_a_turn_that_nobody_carries_on_stands_still_and_comes_first(
    agents: Pool, begun: bool, seconds: float, stalled: str
) -> None:
    turn = await lease(agents)
    if begun:
        await begin(agents, turn)
    await lease(agents, BOB)
    assert (await looked(agents)).stalled == 0
    await ago(agents, ALICE, seconds)
    live = await looked(agents)
    assert (live.stalled, live.turns[0].agent_turn_id) == (1, turn.agent_turn_id)
    assert (live.turns[0].stalled, live.turns[0].unserved) == (stalled, True)
    assert [t.agent_turn_id for t in (await looked(agents, state="stalled")).turns] == [turn.agent_turn_id]
    await agents.run(lambda conn: touch_worker(conn, "w1", [TARGET]))
    assert not (await one(agents, turn.agent_turn_id)).unserved


async def test_a_step_has_ten_times_what_is_usual(agents: Pool) -> None:
    past = await lease(agents, BOB)
    await begin(agents, past)
    await commit_with(agents, past, 1, attempt(1))
    await rows(agents, "UPDATE state.agent_steps SET metadata = jsonb_set(metadata, '{timing,step_ms}', '20000')")
    await begin(agents, past, 2)
    await finish(agents, past, 2)
    turn = await lease(agents)
    await begin(agents, turn)
    await ago(agents, ALICE, 100)
    live = await looked(agents)
    assert (live.usual_seconds, live.stalled) == (20.0, 0)
    await ago(agents, ALICE, 210)
    assert (await looked(agents)).stalled == 1


async def test_a_deadline_that_passed_and_a_turn_that_nothing_leases_stand_still(agents: Pool) -> None:
    turn = await sleeper(agents, "c1", agent=ALICE)
    first = await lease(agents, BOB)
    queued = await ask(agents, CAROL, output_box_id=first.output_box_id)
    await rows(
        agents, "UPDATE state.agent_state_head SET resume_deadline = now() - interval '31 s' WHERE agent_id = 'alice'"
    )
    await rows(agents, "UPDATE state.agent_inbox SET created_at = now() - interval '31 s' WHERE agent_id = 'carol'")
    live = await looked(agents)
    stalls = {t.agent_turn_id: t.stalled for t in live.turns}
    assert stalls[turn.agent_turn_id] == "overdue"
    named = queued.reply.agent_turn_id
    assert named is not None
    assert (stalls[named], (await one(agents, named)).queued_because) == (None, "output_box_busy")
    await begin(agents, first)
    await finish(agents, first)
    assert (await one(agents, named)).stalled == "not_leased"
    await drain(agents)


async def test_filters_narrow_the_page_and_not_the_counts(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile("other"))
    await add_agent(agents, PROJECT, DAVE, "other")
    for agent in (ALICE, BOB, DAVE):
        await lease(agents, agent)
    found = {
        "agent": await looked(agents, agent=BOB),
        "profile": await looked(agents, profile="OTHER"),
        "state": await looked(agents, state="running"),
        "page": await looked(agents, offset=2),
    }
    shown = {name: [turn.agent_id for turn in live.turns] for name, live in found.items()}
    assert shown == {"agent": [BOB], "profile": [DAVE], "state": [], "page": [ALICE]}
    assert {live.total for live in found.values()} == {3}


async def test_another_channel_and_another_project_see_nothing(agents: Pool) -> None:
    turn = await sleeper(agents, "c1")
    elsewhere = ChannelId("elsewhere")
    assert (await looked(agents, channel=CHANNEL)).total == 1
    assert (await looked(agents, channel=elsewhere)).total == 0
    assert (await looked(agents, OTHER)).total == 0
    nothing: dict[str, Any] = {"row_limit": 9}

    async def searched(project: ProjectId, channel: ChannelId | None, text: str) -> int:
        return len(await agents.run(lambda conn: now.search_turns(conn, project, text, channel=channel, **nothing)))

    assert await searched(PROJECT, CHANNEL, turn.agent_turn_id[:12]) == 1
    assert await searched(PROJECT, elsewhere, turn.agent_turn_id) == 0
    assert await searched(OTHER, None, turn.agent_turn_id) == 0
    assert await agents.run(lambda conn: now.page_turns_with_use(conn, OTHER, channel=None, **nothing)) == []
    assert await agents.run(lambda conn: now.page_turns_with_use(conn, PROJECT, channel=elsewhere, **nothing)) == []
    assert await agents.run(lambda conn: now.list_turn_calls(conn, OTHER, turn.agent_turn_id)) == []
    with pytest.raises(LookupError):
        await agents.run(lambda conn: now.describe_place(conn, OTHER, turn.agent_turn_id))
    view = await agents.run(lambda conn: describe_turn(conn, PROJECT, turn.agent_turn_id))
    assert view is not None
    box, steps = view.context_box_id, [step_id(turn.agent_turn_id, 1)]
    assert box is not None
    for project, some in ((PROJECT, True), (OTHER, False)):
        inputs = await agents.run(lambda conn, project=project: now.list_turn_inputs(conn, project, box, **nothing))
        cards = await agents.run(
            lambda conn, project=project: now.list_cards_of_steps(
                conn, project, turn.agent_turn_id, steps, [CardId(f"{turn.agent_turn_id}-instruction")]
            )
        )
        assert (bool(inputs), bool(cards)) == (some, some)


async def test_turns_are_found_by_the_begin_of_their_id_and_by_their_callers_name(agents: Pool) -> None:
    made = await ask(agents, ALICE, correlation_id="order 7")
    await ask(agents, BOB, correlation_id="public/order 8")
    turn = made.reply.agent_turn_id
    assert turn is not None

    async def names(text: str, channel: ChannelId | None = None) -> list[str | None]:
        found = await agents.run(lambda conn: now.search_turns(conn, PROJECT, text, channel=channel, row_limit=9))
        return [each.correlation_id for each in found]

    assert await names(turn) == await names("order 7") == ["order 7"]
    assert sorted(map(str, await names(turn[:4]))) == ["order 7", "public/order 8"]
    assert await names("order 8") == []
    assert await names("order 8", CHANNEL) == ["public/order 8"]
    assert await names("%") == []


async def test_pages_of_turns_neither_skip_nor_repeat(agents: Pool) -> None:
    made = [(await ask(agents, agent)).reply.agent_turn_id for agent in (ALICE, BOB, CAROL, ALICE, BOB)]
    seen: list[str | None] = []
    place: PageCursor | None = None
    while page := await agents.run(
        lambda conn, place=place: now.page_turns_with_use(conn, PROJECT, channel=None, before=place, row_limit=2)
    ):
        seen += [turn.agent_turn_id for turn in page]
        place = PageCursor(page[-1].created_at, page[-1].agent_turn_id)
    assert seen == made[::-1]


async def test_a_turns_calls_have_their_results_and_the_turns_that_they_asked(agents: Pool) -> None:
    turn = await sleeper(agents, "c1", "c2")
    made = await forks(agents, "c1", 2)
    await settle(agents, turn, await told(agents, "c2"))
    for task in made.tasks:
        ref = await in_hand(agents, task.agent_turn_id)
        await end_by_fallback(agents, ref, TurnStatus.FAILED, "broken", "it broke")
    calls = {
        call.tool_call_id: call
        for call in await agents.run(lambda conn: now.list_turn_calls(conn, PROJECT, turn.agent_turn_id))
    }
    assert {
        call: (each.wait_status, each.result_status, each.tasks, each.tasks_done) for call, each in calls.items()
    } == {
        "c1": ("received", None, 2, 2),
        "c2": ("applied", "success", None, None),
    }
    place = await agents.run(lambda conn: now.describe_place(conn, PROJECT, turn.agent_turn_id))
    assert (place.children, place.parent_turn_id, place.root_turn_id) == (2, None, turn.agent_turn_id)
    assert (place.profile_name, place.model) == ("helper", "scripted/echo")


async def test_cards_of_steps_are_those_of_the_window_with_results_and_what_was_said(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    record = call_record(turn, 1, "c1")
    named = record.metadata.model_copy(update={"new_card_ids": tuple(card.card_id for card in record.cards)})
    await agents.run(lambda conn: commit_step(conn, turn, replace(record, metadata=named)))
    await say(agents, turn, "be quick")
    await settle(agents, turn, await told(agents, "c1"))
    own = turn.agent_turn_id
    first = await agents.run(lambda conn: now.list_cards_of_steps(conn, PROJECT, own, [step_id(own, 1)], []))
    assert sorted(card.type for card in first) == ["agent.thought", "task.steer", "tool.call", "tool.result"]
    none = await agents.run(lambda conn: now.list_cards_of_steps(conn, PROJECT, own, [step_id(own, 2)], []))
    assert [card.type for card in none] == ["task.steer"]
