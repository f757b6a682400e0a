"""Profiles and the roster (protocol §4)."""

import json

import pytest

from ledger.cards import box_cards
from ledger.pool import Pool
from ledger.roster import add_agent, list_agents, list_profiles, put_profile
from schema.cards import CardType, JsonContent, content_of
from schema.errors import BadRequest, Refused
from schema.ids import AgentId, ProjectId
from schema.profiles import Profile
from tests.support.agents import ALICE, BOB, CAROL, PROJECT, add_agents, ask, begin, finish, lease, play, profile, rows


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
