"""Profiles, the roster and tools (protocol §4)."""

import json

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    add_agents,
    ask,
    begin,
    commit,
    finish,
    lease,
    play,
    profile,
    rows,
)
from tests.support.waiting import overtaken
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import box_cards
from turnstile.ledger.turns.roster import (
    add_agent,
    list_agents,
    list_profiles,
    list_tools,
    put_profile,
    put_tool,
    remove_agent,
    remove_tool,
)
from turnstile.schema.cards import CardType, JsonContent, content_of
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, ProjectId
from turnstile.schema.profiles import Profile
from turnstile.schema.states import AfterExecution
from turnstile.schema.tools import ToolDefinition


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
