"""What the console reads of agents, calls, dead letters and profiles: each to whom it belongs, a page at a time."""

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    TARGET,
    add_agents,
    ask,
    begin,
    lease,
    profile,
    rows,
    value,
)
from tests.support.ledger.calls import (
    pass_deadline,
    result_card,
    settle,
    sleeper,
    told,
    write_card,
    written_report,
)
from tests.support.ledger.people import asking
from turnstile.ledger.access.calls_out import CallFile, ListedCall, WaitsFor, get_call_out, list_calls_out
from turnstile.ledger.access.dead_letters import list_dead_letters, list_rejections
from turnstile.ledger.access.fleet import (
    AgentFile,
    AgentFilter,
    list_processes,
    list_queue,
    list_target_needs,
    page_agents,
)
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.access.profile_versions import get_profile_version, list_profile_versions, list_tool_users
from turnstile.ledger.operations.sweep import touch_bridge, touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import LOCAL, put_profile, set_agent_status
from turnstile.schema.ids import BoxId, ChannelId, ProjectId, ToolCallId, interrupt_id, new_box_id
from turnstile.schema.message_types import PROTOCOL_LEVEL

OTHER, ELSEWHERE = ProjectId("p2"), ChannelId("elsewhere")


async def calls(
    pool: Pool,
    *,
    project: ProjectId = PROJECT,
    channel: ChannelId | None = None,
    waits_for: WaitsFor | None = None,
    after: PageCursor | None = None,
    row_limit: int = 10,
) -> list[ListedCall]:
    """list_calls_out."""
    return await pool.run(
        lambda conn: list_calls_out(
            conn, project, channel=channel, waits_for=waits_for, after=after, row_limit=row_limit
        )
    )


async def file(pool: Pool, call: str, channel: ChannelId | None = None) -> CallFile:
    """get_call_out of a call that there is."""
    found = await pool.run(lambda conn: get_call_out(conn, PROJECT, ToolCallId(call), channel=channel))
    assert found is not None
    return found


async def test_calls_that_wait_are_listed_by_age_with_what_they_wait_for(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    await sleeper(pool, "a", "b", agent=ALICE)
    await asking(pool, "held", free=("c",), agent=BOB)
    await told(pool, "b")
    found = await calls(pool)
    assert [(each.tool_call_id, each.wait_status, each.held) for each in found] == [
        ("a", "waiting", False),
        ("b", "received", False),
        ("c", "waiting", False),
        ("held", "waiting", True),
    ]
    assert {each.found for each in found} == {4}
    assert found[3].interrupt_id == interrupt_id(ToolCallId("held"))
    assert found[3].deadline is None
    [second] = await calls(pool, after=PageCursor(found[0].created_at, "a"), row_limit=1)
    assert second.tool_call_id == "b"
    assert [call.tool_call_id for call in await calls(pool, waits_for="held")] == ["held"]
    await pass_deadline(pool)
    assert {call.tool_call_id for call in await calls(pool, waits_for="overdue")} >= {"a", "b", "c"}
    assert await calls(pool, waits_for="tool") == []


async def test_calls_are_those_of_their_project_and_channel(agents: Pool) -> None:
    await sleeper(agents, "a", agent=ALICE)
    assert len(await calls(agents, channel=CHANNEL)) == 1
    assert await calls(agents, channel=ELSEWHERE) == []
    assert await calls(agents, project=OTHER) == []
    for project, channel in ((OTHER, None), (PROJECT, ELSEWHERE)):
        assert (
            await agents.run(lambda conn, p=project, c=channel: get_call_out(conn, p, ToolCallId("a"), channel=c))
            is None
        )


async def test_a_call_says_what_it_asks_and_who_answered(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    asked = await file(agents, "a", CHANNEL)
    assert asked.answerable
    assert isinstance(asked.call, dict)
    assert asked.call["arguments"] == {"q": "a"}
    reported = await told(agents, "a", incoming={"CG-Sender": "token.t1"})
    answered = await file(agents, "a")
    assert (answered.answerable, answered.reported_by, answered.report_status) == (False, "token.t1", "pending")
    assert isinstance(answered.result, dict)
    assert answered.result["result"] == "found by a"
    await settle(agents, turn, reported)
    assert (await file(agents, "a")).wait_status == "applied"
    assert (await file(agents, "b")).answerable


async def test_a_call_that_a_person_holds_is_not_answered_by_hand(agents: Pool) -> None:
    await asking(agents, "held")
    held = await file(agents, "held")
    assert (held.held, held.held_because, held.answerable) == (True, "tool_call", False)


async def test_dead_letters_say_why_and_what_has_become_of_their_call(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    turn = await sleeper(pool, "a")
    wrong = result_card(turn, "a", type="agent.thought")
    row = await written_report(pool, turn, "a", await write_card(pool, wrong))
    await settle(pool, turn, row)
    [letter] = await pool.run(lambda conn: list_dead_letters(conn, PROJECT, channel=CHANNEL, before=None, row_limit=5))
    assert (letter.inbox_id, letter.reason, letter.tool_call_id) == (row, "protocol_violation", "a")
    assert (letter.wait_status, letter.has_turn, letter.repeatable, letter.outcome) == ("waiting", True, True, None)
    place = PageCursor(letter.created_at, letter.inbox_id)
    for project, channel, before in ((PROJECT, None, place), (PROJECT, ELSEWHERE, None), (OTHER, None, None)):
        assert not await pool.run(
            lambda conn, p=project, c=channel, b=before: list_dead_letters(conn, p, channel=c, before=b, row_limit=5)
        )
    [rejection] = await pool.run(lambda conn: list_rejections(conn, PROJECT, before=None, row_limit=5))
    assert rejection.error_code == "not_its_card"
    assert rejection.ids["tool_call_id"] == "a"
    assert not await pool.run(lambda conn: list_rejections(conn, PROJECT, before=rejection.rejection_id, row_limit=5))
    assert not await pool.run(lambda conn: list_rejections(conn, OTHER, before=None, row_limit=5))


async def fleet(pool: Pool, shown: AgentFilter | None = None, channel: ChannelId | None = None) -> dict[str, AgentFile]:
    """page_agents, by id."""
    found = await pool.run(lambda conn: page_agents(conn, PROJECT, channel=channel, shown=shown, row_limit=10))
    return {each.agent_id: each for each in found}


async def test_agents_are_shown_with_their_lease_and_queue(agents: Pool) -> None:
    turn = await lease(agents, ALICE)
    await begin(agents, turn)
    await ask(agents, ALICE, "the second")
    await ask(agents, ALICE, "the third")
    await set_agent_status(agents, PROJECT, BOB, "pause", LOCAL)
    found = await fleet(agents)
    assert list(found) == [ALICE, BOB, CAROL]
    alice = found[ALICE]
    assert (alice.head_status, alice.agent_turn_id, alice.queued) == ("running", turn.agent_turn_id, 2)
    assert (alice.profile_name, alice.served, alice.oldest_at is not None) == ("helper", False, True)
    assert (found[BOB].status, found[BOB].head_status) == ("paused", "idle")
    assert list(await fleet(agents, "busy")) == list(await fleet(agents, "queued")) == [ALICE]
    assert list(await fleet(agents, "paused")) == [BOB]
    queue = await agents.run(lambda conn: list_queue(conn, PROJECT, ALICE, channel=None, row_limit=5))
    assert [each.asked for each in queue] == ["the second", "the third"]
    [rest] = await agents.run(lambda conn: page_agents(conn, PROJECT, channel=None, after=BOB, row_limit=5))
    assert rest.agent_id == CAROL


async def test_a_channel_sees_nothing_of_what_an_agent_does_for_another(agents: Pool) -> None:
    await lease(agents, ALICE)
    await ask(agents, ALICE, "the second")
    hidden = (await fleet(agents, channel=ELSEWHERE))[ALICE]
    assert (hidden.head_status, hidden.agent_turn_id, hidden.turn_epoch, hidden.updated_at) == (None, None, None, None)
    assert (hidden.queued, hidden.oldest_at) == (0, None)
    assert not await fleet(agents, "busy", ELSEWHERE)
    assert not await agents.run(lambda conn: list_queue(conn, PROJECT, ALICE, channel=ELSEWHERE, row_limit=5))


async def test_processes_are_those_that_the_project_needs(agents: Pool) -> None:
    await agents.run(lambda conn: touch_worker(conn, "w1", [TARGET, "strangers"]))
    await agents.run(lambda conn: touch_worker(conn, "w2", ["strangers"]))
    await agents.run(lambda conn: touch_bridge(conn, "b1"))
    found = await agents.run(lambda conn: list_processes(conn, PROJECT, row_limit=10))
    assert {each.instance: (each.is_bridge, each.targets, each.here) for each in found} == {
        "w1": (False, [TARGET], True),
        "b1": (True, ["_bridge"], True),
    }
    [need] = await agents.run(lambda conn: list_target_needs(conn, PROJECT))
    assert (need.worker_target, need.agents, need.profiles, need.workers) == (TARGET, 3, 1, 1)
    assert (await fleet(agents))[ALICE].served


async def test_the_versions_of_a_profile_are_listed_with_the_turns_that_had_them(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    await lease(pool, ALICE)
    changed = profile(system_prompt_template="Be brief.", allowed_tools=["search"])
    box, _, _ = await put_profile(pool, PROJECT, changed)
    await put_profile(pool, PROJECT, profile("other"))
    await put_profile(pool, OTHER, profile())
    new, old = await pool.run(lambda conn: list_profile_versions(conn, PROJECT, "HELPER", row_limit=5))
    assert (new.profile_box_id, new.is_current, new.turns) == (box, True, 0)
    assert (old.is_current, old.turns) == (False, 1)
    text = await pool.run(lambda conn: get_profile_version(conn, PROJECT, box))
    assert text is not None
    assert isinstance(text.data, dict)
    assert text.data["system_prompt_template"] == "Be brief."
    for project, wanted in ((OTHER, box), (PROJECT, new_box_id()), (PROJECT, BoxId("no box"))):
        assert await pool.run(lambda conn, p=project, b=wanted: get_profile_version(conn, p, b)) is None
    users = await pool.run(lambda conn: list_tool_users(conn, PROJECT, ["search", "none"], row_limit=3))
    assert [(user.tool_name, user.profile_name) for user in users] == [("search", "helper")]


async def test_a_profile_that_another_writer_stored_has_its_present_version(pool: Pool) -> None:
    """Its card may call it otherwise, or nothing."""
    await add_agents(pool, ALICE)
    await rows(pool, "UPDATE resource.profiles SET name = 'another' WHERE project_id = $1", PROJECT)
    [only] = await pool.run(lambda conn: list_profile_versions(conn, PROJECT, "another", row_limit=5))
    assert only.is_current


async def test_a_card_with_an_endless_name_of_a_profile_is_stored(pool: Pool) -> None:
    """A v1r4 writer bounds no name, and an index bounds its rows."""
    await add_agents(pool, ALICE)
    turn = await sleeper(pool, "a")
    endless = {"content": {"data": {"name": "n" * 100_000}}}
    assert await write_card(pool, result_card(turn, "a", type="sys.profile").model_copy(update=endless))
    assert len(await pool.run(lambda conn: list_profile_versions(conn, PROJECT, "n" * 128, row_limit=5))) == 0


async def test_the_level_of_the_protocol_is_what_every_live_process_speaks(pool: Pool) -> None:
    level = "SELECT state.protocol_level(30)"
    assert await value(pool, level) == 0
    await pool.run(lambda conn: touch_worker(conn, "w", [TARGET]))
    assert await value(pool, level) == 0, "no bridge has signed on"
    await pool.run(lambda conn: touch_bridge(conn, "b"))
    assert await value(pool, level) == PROTOCOL_LEVEL
    await rows(pool, "UPDATE state.workers SET protocol_level = NULL WHERE instance = 'w'")
    assert await value(pool, level) == 0, "a worker says nothing"
    await rows(pool, "UPDATE state.workers SET last_seen_at = now() - interval '1 minute' WHERE instance = 'w'")
    assert await value(pool, level) == PROTOCOL_LEVEL
