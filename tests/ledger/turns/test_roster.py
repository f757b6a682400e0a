"""Profiles, the roster and tools (protocol §4)."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    TARGET,
    act,
    add_agents,
    ask,
    begin,
    commit,
    dispatch,
    finish,
    head,
    lease,
    play,
    profile,
    rows,
    send,
    start,
)
from tests.support.ledger.agents import command as enqueue_command
from tests.support.waiting import overtaken
from turnstile.ledger.operations.sweep import list_stranded
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.roster import (
    LOCAL,
    Origin,
    StatusAction,
    add_agent,
    list_agents,
    list_profiles,
    list_tools,
    put_agent,
    put_profile,
    put_tool,
    remove_agent,
    remove_tool,
    set_agent_status,
    set_status_on,
)
from turnstile.ledger.turns.cards import box_cards
from turnstile.ledger.turns.intake import Enqueued
from turnstile.ledger.turns.views import describe_turn
from turnstile.rules.turn_ends import NewLease
from turnstile.schema.cards import CardType, JsonContent, content_of
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, ProjectId, uuid7
from turnstile.schema.profiles import Profile
from turnstile.schema.states import AfterExecution
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire.roster_requests import AgentPutRequest


async def test_a_profile_is_a_card_in_a_box(pool: Pool) -> None:
    put = profile(system_prompt_template="Be kind.", tags=["a", "b"])
    box_id, created, agents = await put_profile(pool, PROJECT, put)
    assert (created, agents) == (True, 0)
    cards = await pool.run(lambda conn: box_cards(conn, PROJECT, box_id))
    assert cards is not None
    content = content_of(cards[0])
    assert isinstance(content, JsonContent)
    assert Profile.model_validate_json(json.dumps(content.data)) == put
    assert [card.type for card in cards] == [CardType.PROFILE]
    [row] = await list_profiles(pool, PROJECT)
    assert (row.name, row.profile_box_id, row.tags, row.agents) == ("helper", box_id, ["a", "b"], 0)


async def _remove(pool: Pool) -> None:
    await pool.transact(lambda conn: remove_agent(conn, PROJECT, ALICE))


async def test_an_agent_is_removed_once_it_has_no_work(agents: Pool) -> None:
    """Its epochs go on from where they were, so that events of before are never the newer ones."""
    turn = await lease(agents)
    await ask(agents)
    await begin(agents, turn)
    with pytest.raises(Refused, match="1 active and 1 queued turns"):
        await _remove(agents)
    await finish(agents, turn)
    with pytest.raises(Refused, match="1 active and 0 queued turns"):
        await _remove(agents)
    await play(agents)
    await _remove(agents)
    assert ALICE not in {agent.agent_id for agent in await list_agents(agents, PROJECT)}
    with pytest.raises(Refused, match="no agent"):
        await _remove(agents)
    await add_agent(agents, PROJECT, ALICE, "helper")
    assert (await lease(agents)).turn_epoch == 3


async def test_an_enqueue_that_meets_a_removal_finds_no_agent(agents: Pool) -> None:
    with pytest.raises(Refused) as refused:
        await overtaken(agents, lambda conn: remove_agent(conn, PROJECT, ALICE), ask(agents))
    assert refused.value.code == "unknown_agent"


async def test_an_enqueue_that_meets_a_retirement_is_refused(agents: Pool) -> None:
    with pytest.raises(Refused) as refused:
        await overtaken(agents, lambda conn: set_on(conn, "retire"), ask(agents))
    assert refused.value.code == "agent_inactive"


async def test_a_new_version_of_a_profile_repoints_its_agents_but_no_turn_in_hand(agents: Pool) -> None:
    turn = await lease(agents)
    queued = await ask(agents)
    box_id, created, count = await put_profile(agents, PROJECT, profile("HELPER", worker_target="sandbox"))
    assert (created, count) == (False, 3)
    assert (await begin(agents, turn)).head.profile_box_id == turn.profile_box_id
    await finish(agents, turn)
    assert (await play(agents)).agent_turn_id == queued.reply.agent_turn_id
    assert (await lease(agents)).profile_box_id == box_id
    [row] = await list_profiles(agents, PROJECT)
    assert (row.name, row.agents, row.worker_target) == ("HELPER", 3, "sandbox")
    assert {agent.worker_target for agent in await list_agents(agents, PROJECT)} == {"worker_generic"}


async def test_an_agent_takes_its_target_from_the_profile_unless_told(pool: Pool) -> None:
    await put_profile(pool, PROJECT, profile(worker_target="sandbox"))
    assert await add_agent(pool, PROJECT, ALICE, "Helper") == "sandbox"
    assert await add_agent(pool, PROJECT, BOB, "helper", worker_target="ui_worker", display_name="Bob") == "ui_worker"
    first, second = await list_agents(pool, PROJECT)
    assert (first.agent_id, first.profile_name, first.head_status, first.queued) == (ALICE, "helper", "idle", 0)
    assert (second.display_name, second.worker_target) == ("Bob", "ui_worker")
    [edge, _] = await rows(pool, "SELECT * FROM state.identity_edges ORDER BY target_agent_id")
    assert (edge["action"], edge["target_agent_id"]) == ("add", ALICE)


async def test_the_roster_shows_where_heads_stand(agents: Pool) -> None:
    turn = await lease(agents)
    await ask(agents)
    await ask(agents)
    found = {row.agent_id: row for row in await list_agents(agents, PROJECT)}
    assert (found[ALICE].head_status, found[ALICE].queued, found[ALICE].turn_epoch) == ("dispatched", 2, 1)
    assert found[ALICE].active_agent_turn_id == turn.agent_turn_id
    assert found[CAROL].head_status == "idle"
    assert await list_agents(agents, ProjectId("p2")) == []


@pytest.mark.parametrize(("name", "code"), [("helper", "agent_exists"), ("nobody", "unknown_profile")])
async def test_an_agent_that_cannot_be_added(pool: Pool, name: str, code: str) -> None:
    await add_agents(pool, ALICE)
    with pytest.raises(Refused) as refused:
        await add_agent(pool, PROJECT, ALICE, name)
    assert refused.value.code == code
    assert len(await list_agents(pool, PROJECT)) == 1
    assert len(await rows(pool, "SELECT FROM state.identity_edges")) == 1


async def test_ids_that_cannot_be_tokens_are_refused(pool: Pool) -> None:
    with pytest.raises(BadRequest, match="project_id"):
        await put_profile(pool, ProjectId("a.b"), profile())
    await put_profile(pool, PROJECT, profile())
    with pytest.raises(BadRequest, match="agent_id"):
        await add_agent(pool, PROJECT, AgentId("a b"), "helper")
    with pytest.raises(BadRequest, match="worker_target"):
        await add_agent(pool, PROJECT, ALICE, "helper", worker_target="a.*")


def tool(name: str = "search", **fields: object) -> ToolDefinition:
    """A tool with one argument."""
    given = {
        "tool_name": name,
        "description": "Search the web.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        "target_subject": "cg.v1r4.{project_id}.{channel_id}.cmd.tool.search.run",
    }
    return ToolDefinition.model_validate(given | fields)


async def test_a_tool_is_put_replaced_listed_and_removed(agents: Pool) -> None:
    assert await put_tool(agents, PROJECT, tool(options={"suspend_timeout_seconds": 5, "args": {"fixed": {"q": "x"}}}))
    assert await put_tool(agents, PROJECT, tool("fetch", after_execution="terminate"))
    assert await put_tool(agents, ProjectId("p2"), tool())
    fetch, search = await list_tools(agents, PROJECT)
    assert (fetch.tool_name, fetch.after_execution, fetch.options) == ("fetch", AfterExecution.TERMINATE, {})
    assert (search.tool_name, search.description) == ("search", "Search the web.")
    assert search.options == {"suspend_timeout_seconds": 5, "args": {"fixed": {"q": "x"}}}
    assert search.target_subject == tool().target_subject
    assert not await put_tool(agents, PROJECT, tool(description="Search nothing."))
    _, search = await list_tools(agents, PROJECT)
    assert (search.description, search.options) == ("Search nothing.", {})
    await remove_tool(agents, PROJECT, "search")
    assert [row.tool_name for row in await list_tools(agents, PROJECT)] == ["fetch"]
    assert [row.tool_name for row in await list_tools(agents, ProjectId("p2"))] == ["search"]
    with pytest.raises(Refused) as refused:
        await remove_tool(agents, PROJECT, "search")
    assert refused.value.code == "unknown_tool"


async def test_a_first_step_reads_the_tools_of_its_project(agents: Pool) -> None:
    await put_tool(agents, PROJECT, tool())
    await put_tool(agents, ProjectId("p2"), tool("theirs"))
    turn = await lease(agents)
    [row] = (await begin(agents, turn)).head.tools
    assert (row["tool_name"], row["parameters"]) == ("search", tool().parameters)
    assert "project_id" not in row
    await commit(agents, turn)
    assert (await begin(agents, turn, 2)).head.tools == []


@pytest.mark.parametrize("change", ["after_execution = 'explode'", "parameters = '[]'", "options = '3'"])
async def test_a_tool_row_that_does_not_parse_is_named(agents: Pool, change: str) -> None:
    await put_tool(agents, PROJECT, tool())
    await rows(agents, f"UPDATE resource.tools SET {change}")  # noqa: S608 -- a constant of this test
    with pytest.raises(BadRequest, match="search"):
        await list_tools(agents, PROJECT)


async def test_a_tool_needs_a_project_that_can_be_a_token(pool: Pool) -> None:
    with pytest.raises(BadRequest, match="project_id"):
        await put_tool(pool, ProjectId("a.b"), tool())


async def set_status(pool: Pool, action: StatusAction, agent: AgentId = ALICE) -> tuple[bool, list[NewLease]]:
    return await set_agent_status(pool, PROJECT, agent, action, LOCAL)


async def set_on(conn: Connection, action: StatusAction) -> bool:
    return await set_status_on(conn, PROJECT, ALICE, action, LOCAL, uuid7())


async def because(pool: Pool, asked: Enqueued) -> str | None:
    turn = asked.reply.agent_turn_id
    assert turn is not None
    view = await pool.run(lambda conn: describe_turn(conn, PROJECT, turn))
    assert view is not None
    return view.queued_because


async def test_a_paused_agent_takes_no_lease_until_it_is_resumed(agents: Pool) -> None:
    """Neither by an enqueue, nor by the end of its turn in hand, nor by the safety net; `describe` says why."""
    turn = await lease(agents)
    before = await ask(agents)
    assert (await because(agents, before)) == "agent_busy"
    assert await set_status(agents, "pause") == (True, [])
    assert await set_status(agents, "pause") == (False, [])
    await begin(agents, turn)
    assert (await finish(agents, turn)).next_inbox_id is None
    after = await ask(agents)
    assert (after.reply.status, after.reply.inbox_status, after.lease) == ("accepted", "queued", None)
    assert await dispatch(agents, [(PROJECT, ALICE)]) == []
    assert await agents.run(lambda conn: list_stranded(conn, [TARGET], row_limit=9)) == []
    assert (await act(agents)).reply.error_code == "agent_busy"
    assert [await because(agents, each) for each in (before, after)] == ["agent_paused"] * 2
    assert (await head(agents))["status"] == "idle"
    [row] = [row for row in await list_agents(agents, PROJECT) if row.agent_id == ALICE]
    assert (row.status, row.queued) == ("paused", 2)
    changed, [leased] = await set_status(agents, "resume")
    assert (changed, leased.agent_turn_id) == (True, before.reply.agent_turn_id)
    assert await set_status(agents, "resume") == (False, [])
    assert await because(agents, after) == "agent_busy"
    assert (await play(agents)).agent_turn_id == before.reply.agent_turn_id
    assert (await play(agents)).agent_turn_id == after.reply.agent_turn_id


async def test_what_waits_for_a_box_says_so(agents: Pool) -> None:
    turn = await lease(agents, BOB)
    waits = await ask(agents, output_box_id=turn.output_box_id)
    assert await because(agents, waits) == "output_box_busy"
    await begin(agents, turn)
    await finish(agents, turn)
    assert await because(agents, waits) is None
    assert len(await dispatch(agents, [(PROJECT, ALICE)])) == 1
    assert await because(agents, waits) is None


async def test_a_retired_agent_takes_no_enqueue_and_ends_what_waits(agents: Pool) -> None:
    await set_status(agents, "pause")
    waits = await ask(agents)
    changed, [leased] = await set_status(agents, "retire")
    assert (changed, leased.agent_turn_id) == (True, waits.reply.agent_turn_id)
    with pytest.raises(Refused) as refused:
        await ask(agents)
    assert refused.value.code == "agent_inactive"
    await play(agents)
    assert (await set_status(agents, "resume"))[0]
    await ask(agents)
    assert (await play(agents)).turn_epoch == 2


async def test_each_change_leaves_an_identity_edge(agents: Pool) -> None:
    origin = Origin("ops", CHANNEL, "f" * 32, "step-1")
    for action in ("pause", "resume", "resume", "retire"):
        await set_agent_status(agents, PROJECT, ALICE, action, origin)
    edges = await rows(agents, "SELECT * FROM state.identity_edges WHERE target_agent_id = $1 ORDER BY edge_id", ALICE)
    assert [edge["action"] for edge in edges] == ["add", "pause", "resume", "retire"]
    last = edges[-1]
    assert (last["channel_id"], last["trace_id"], last["parent_step_id"]) == (CHANNEL, "f" * 32, "step-1")
    assert json.loads(last["metadata"]) == {"sender": "ops"}


async def test_a_change_whose_answer_was_lost_is_told_as_done(agents: Pool) -> None:
    edge = uuid7()
    again = [await agents.run(lambda conn: set_status_on(conn, PROJECT, ALICE, "pause", LOCAL, edge)) for _ in range(2)]
    assert again == [True, True]
    assert len(await rows(agents, "SELECT FROM state.identity_edges WHERE action = 'pause'")) == 1


@pytest.mark.parametrize("action", ["pause", "resume", "retire"])
async def test_an_agent_that_has_no_status_to_change(agents: Pool, action: StatusAction) -> None:
    with pytest.raises(Refused, match="no agent 'nobody'"):
        await set_status(agents, action, AgentId("nobody"))
    await rows(agents, "UPDATE resource.project_agents SET status = 'inactive' WHERE agent_id = $1", ALICE)
    with pytest.raises(Refused, match="being removed"):
        await set_status(agents, action)
    await rows(agents, "DELETE FROM state.agent_state_head WHERE agent_id = $1", BOB)
    assert (await set_status(agents, "pause", BOB))[0]  # of an agent that v1r4 added, which has no head yet
    assert (await head(agents, BOB))["paused_at_epoch"] == 0


async def test_an_enqueue_that_waited_for_a_pause_is_queued(agents: Pool) -> None:
    asked = await overtaken(agents, lambda conn: set_on(conn, "pause"), ask(agents))
    assert (asked.reply.inbox_status, asked.lease) == ("queued", None)


async def test_a_lease_that_waited_for_a_pause_is_not_made(agents: Pool) -> None:
    await set_status(agents, "pause")
    await ask(agents)
    await rows(agents, "UPDATE state.agent_state_head SET paused_at_epoch = NULL WHERE agent_id = $1", ALICE)
    await rows(agents, "UPDATE resource.project_agents SET status = 'active' WHERE agent_id = $1", ALICE)
    assert await overtaken(agents, lambda conn: set_on(conn, "pause"), dispatch(agents, [(PROJECT, ALICE)])) == []


async def test_an_end_that_waited_for_a_pause_leases_nothing(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await ask(agents)
    ended = await overtaken(agents, lambda conn: set_on(conn, "pause"), finish(agents, turn))
    assert (ended.result, ended.head_status, ended.next_inbox_id) == ("done", "idle", None)


async def test_an_end_that_waited_for_a_resume_leases_the_next(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await set_status(agents, "pause")
    waits = await ask(agents)
    ended = await overtaken(agents, lambda conn: set_on(conn, "resume"), finish(agents, turn))
    assert (ended.head_status, ended.next_turn_id) == ("dispatched", waits.reply.agent_turn_id)


async def test_a_pause_that_waited_for_a_lease_lets_that_turn_run(agents: Pool) -> None:
    """The lease was first: its turn is in hand, and the next one waits."""
    sent = enqueue_command()
    assert await overtaken(agents, lambda conn: send(conn, sent), set_status(agents, "pause")) == (True, [])
    turn = await start(agents)
    assert (turn.agent_turn_id, (await head(agents))["paused_at_epoch"]) == (sent.agent_turn_id, turn.turn_epoch)
    waits = await ask(agents)
    await begin(agents, turn)
    await finish(agents, turn)
    changed = await overtaken(agents, finish_nothing, set_status(agents, "resume"))
    assert changed[1][0].agent_turn_id == waits.reply.agent_turn_id


async def finish_nothing(conn: Connection) -> None:
    """Hold the head, and change nothing."""
    await conn.fetch("SELECT FROM state.agent_state_head WHERE agent_id = $1 FOR NO KEY UPDATE", ALICE)


async def put(pool: Pool, agent: AgentId = ALICE, profile_name: str = "helper", **fields: Any) -> tuple[str, str]:
    wanted = AgentPutRequest.model_validate({"agent_id": agent, "profile_name": profile_name, **fields})
    return await put_agent(pool, PROJECT, wanted, LOCAL)


async def test_a_put_changes_what_it_names(agents: Pool) -> None:
    other, _, _ = await put_profile(agents, PROJECT, profile("other", worker_target="sandbox"))
    assert await put(agents) == ("same", TARGET)
    assert await put(agents, profile_name="OTHER", tags=["a"], metadata={"a": 1}) == ("changed", TARGET)
    assert await put(agents, profile_name="other", metadata={"b": 2}) == ("changed", TARGET)
    assert await put(agents, profile_name="other", metadata={"a": 1}) == ("same", TARGET)
    [row] = await rows(agents, "SELECT * FROM resource.project_agents WHERE agent_id = $1", ALICE)
    assert (str(row["profile_box_id"]), json.loads(row["tags"])) == (other, ["a"])
    assert json.loads(row["metadata"]) == {"a": 1, "b": 2}
    assert await put(agents, AgentId("new"), "other") == ("added", "sandbox")
    edges = await rows(agents, "SELECT action FROM state.identity_edges ORDER BY created_at DESC, edge_id DESC LIMIT 3")
    assert [edge["action"] for edge in edges] == ["add", "change", "change"]
    assert (await lease(agents)).profile_box_id == other


async def test_an_agent_with_turns_keeps_its_target(agents: Pool) -> None:
    assert await put(agents, worker_target="elsewhere") == ("changed", "elsewhere")
    assert await put(agents, worker_target=TARGET) == ("changed", TARGET)
    turn = await lease(agents)
    with pytest.raises(Refused, match="keeps its worker target"):
        await put(agents, worker_target="elsewhere")
    assert await put(agents, worker_target=TARGET, tags=["a"]) == ("changed", TARGET)
    await begin(agents, turn)
    await finish(agents, turn)
    await set_status(agents, "pause")
    await ask(agents)
    with pytest.raises(Refused, match="keeps its worker target"):
        await put(agents, worker_target="elsewhere")


async def test_a_put_that_waited_for_an_enqueue_leaves_the_target(agents: Pool) -> None:
    sent = enqueue_command()
    with pytest.raises(Refused, match="keeps its worker target"):
        await overtaken(agents, lambda conn: send(conn, sent), put(agents, worker_target="elsewhere"))


async def test_two_puts_of_one_agent_make_one(agents: Pool) -> None:
    """The later waits for the profile's row, and finds the agent there."""
    new = AgentId("new")

    async def first(conn: Connection) -> None:
        await conn.fetch("UPDATE resource.profiles SET name = name WHERE name = 'helper'")
        await conn.fetch(
            "INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id)"
            " SELECT $1, $2, profile_box_id::uuid FROM resource.profiles WHERE name = 'helper'",
            PROJECT,
            new,
        )

    assert await overtaken(agents, first, put(agents, new)) == ("same", TARGET)
    assert len(await rows(agents, "SELECT FROM resource.project_agents WHERE agent_id = $1", new)) == 1
    await rows(agents, "DELETE FROM resource.project_agents WHERE agent_id = $1", new)


@pytest.mark.parametrize("target", ["svc1_", "svc1_x", "svc1__main", "svc1_tally_", "a.b", ""])
async def test_a_target_that_has_no_such_name(pool: Pool, target: str) -> None:
    with pytest.raises((BadRequest, ValidationError)):
        await put_profile(pool, PROJECT, profile(worker_target=target))
    await put_profile(pool, PROJECT, profile(worker_target="svc1_tally_p1-main_2"))
    if target:
        with pytest.raises(BadRequest, match="worker_target must be"):
            await add_agent(pool, PROJECT, ALICE, "helper", worker_target=target)
