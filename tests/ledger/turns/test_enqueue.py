"""What enqueue answers and writes, and the stop of a turn that still waits (protocol §6)."""

import json
from typing import Any

import pytest
from pydantic import JsonValue

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
    box,
    claim,
    command,
    commit,
    finish,
    head,
    lease,
    play,
    profile,
    rows,
    send,
    start,
    stop,
    value,
)
from turnstile.ledger.access.past import get_turn_request
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import LOCAL, add_agent, put_profile, set_status_on
from turnstile.ledger.turns.cards import box_cards, make_box
from turnstile.ledger.turns.intake import enqueue
from turnstile.ledger.turns.lease import release_claims
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, FieldsSchemaContent, Role, TextContent, content_of, make_card
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, ProjectId, new_box_id, uuid7
from turnstile.schema.profiles import RuntimeConfig
from turnstile.schema.states import DeferReason, InboxStatus, ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.descriptions import TurnView
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES, EnqueueRequest


async def texts(pool: Pool, box_id: BoxId | None) -> list[JsonValue]:
    assert box_id is not None
    cards = await pool.run(lambda conn: box_cards(conn, PROJECT, box_id))
    assert cards is not None
    return [content.text if isinstance(content := content_of(card), TextContent) else card.type for card in cards]


async def packed(pool: Pool, *words: str, project: ProjectId = PROJECT) -> BoxId:
    """A box of the caller's own."""
    made = new_box_id()
    cards = [
        make_card(CardId(uuid7()), CardType.INSTRUCTION, Role.USER, TextContent(text=word), author="user.test")
        for word in words
    ]
    await pool.run(lambda conn: make_box(conn, project, made, cards))
    return made


async def test_an_idle_agent_is_leased(agents: Pool) -> None:
    asked = await ask(agents)
    reply = asked.reply
    assert (reply.status, reply.inbox_status, reply.turn_epoch) == (ReplyStatus.ACCEPTED, InboxStatus.PENDING, 1)
    assert not reply.duplicate
    assert asked.lease is not None
    assert (asked.lease.agent_turn_id, asked.lease.turn_epoch) == (reply.agent_turn_id, 1)
    assert await texts(agents, reply.context_box_id) == ["hello"]
    assert await texts(agents, reply.output_box_id) == []
    leased = await head(agents)
    assert (leased["status"], leased["active_agent_turn_id"]) == ("dispatched", reply.agent_turn_id)
    assert (str(leased["output_box_id"]), leased["trace_id"]) == (reply.output_box_id, reply.trace_id)
    [edge] = await rows(agents, "SELECT * FROM state.execution_edges")
    assert (edge["primitive"], edge["edge_phase"], edge["target_agent_id"]) == ("enqueue", "request", ALICE)
    assert (edge["trace_id"], edge["recursion_depth"]) == (reply.trace_id, 0)


async def test_a_turn_is_claimed_by_its_enqueue_where_its_target_is_served(agents: Pool) -> None:
    sent = command()
    asked = await agents.run(lambda conn: send(conn, sent, TARGET))
    assert (asked.reply.inbox_status, asked.reply.turn_epoch) == (InboxStatus.PROCESSING, 1)
    assert asked.claim is not None
    assert asked.lease is not None
    [row] = await rows(agents, "SELECT * FROM state.agent_inbox")
    assert (row["status"], row["processed_at"] is not None, row["turn_epoch"]) == ("processing", True, 1)
    assert await claim(agents, ALICE) == []

    await agents.run(
        lambda conn: release_claims(conn, [sent.inbox_id], DeferReason.ENGINE_UNREACHABLE, delay_seconds=0)
    )
    [again] = await claim(agents, ALICE)
    assert again == asked.claim
    turn = asked.claim.turn()
    assert (turn.inbox_id, turn.context_box_id, turn.output_box_id) == (
        *(sent.inbox_id, asked.reply.context_box_id, asked.reply.output_box_id),
    )
    await begin(agents, turn)


async def test_a_repeat_of_a_claimed_enqueue_claims_nothing(agents: Pool) -> None:
    sent = command(correlation_id="c")
    twin = command(correlation_id="c")
    await agents.run(lambda conn: send(conn, sent, TARGET))
    for each in (twin, sent):
        asked = await agents.run(lambda conn, each=each: send(conn, each, TARGET))
        assert (asked.claim, asked.lease, asked.reply.agent_turn_id) == (None, None, sent.agent_turn_id)


async def test_what_is_queued_or_served_elsewhere_is_not_claimed_by_its_enqueue(agents: Pool) -> None:
    sent = command()
    asked = await agents.run(lambda conn: send(conn, sent, "elsewhere"))
    assert (asked.claim, asked.lease is None) == (None, False)
    later = command()
    asked = await agents.run(lambda conn: send(conn, later, TARGET))
    assert (asked.claim, asked.lease, asked.reply.inbox_status) == (None, None, InboxStatus.QUEUED)


async def test_a_reply_says_of_a_new_turn_what_describe_says(agents: Pool) -> None:
    held, dave = await ask(agents, CAROL), AgentId("dave")
    requests: list[dict[str, Any]] = [
        {"correlation_id": "c", "budget": {"max_tokens": 9}},
        {"conversation_id": "talk"},
        {"agent": BOB, "output_box_id": held.reply.output_box_id},
        {"agent": BOB, "conversation_id": "talk"},
        {"agent": dave},
    ]
    await add_agents(agents, dave)
    await agents.run(lambda conn: set_status_on(conn, PROJECT, dave, "pause", LOCAL, uuid7()))
    reasons: list[str | None] = []
    for arguments in requests:
        asked = await ask(agents, **arguments)
        turn = AgentTurnId(str(asked.reply.agent_turn_id))
        view = await agents.run(lambda conn, turn=turn: describe_turn(conn, PROJECT, turn))
        assert view is not None
        assert TurnView.new(asked.reply, PROJECT, CHANNEL) == view.model_copy(update={"unserved_target": None})
        reasons.append(asked.reply.queued_because)
    assert reasons == [None, "agent_busy", "output_box_busy", None, "agent_paused"]


async def test_a_busy_agents_turn_waits(agents: Pool) -> None:
    await ask(agents)
    asked = await ask(agents)
    assert (asked.reply.inbox_status, asked.reply.turn_epoch, asked.lease) == (InboxStatus.QUEUED, 0, None)


async def test_an_enqueue_costs_one_round_trip(agents: Pool) -> None:
    before = agents.round_trips
    await ask(agents)
    assert agents.round_trips == before + 1


REFUSALS: list[tuple[str, dict[str, Any]]] = [
    ("unknown_agent", {"agent": AgentId("nobody")}),
    ("unknown_profile", {"profile_name": "nobody"}),
    ("recursion_depth_exceeded", {"incoming": {headers.DEPTH: "3"}, "depth_limit": 3}),
    ("unknown_context_box", {"context_box_id": new_box_id()}),
    ("unknown_output_box", {"output_box_id": new_box_id()}),
    ("unknown_project", {"project": ProjectId("p2")}),
    ("text_too_large", {"instruction": "x" * TEXT_LIMIT_BYTES, "result_fields": [{"name": "y"}]}),
]


@pytest.mark.parametrize(("code", "arguments"), REFUSALS)
async def test_a_refusal_writes_nothing(agents: Pool, code: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        await ask(agents, **arguments)
    assert refused.value.code == code
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox") == 0
    assert await value(agents, "SELECT count(*) FROM boxes") == 1
    assert (await head(agents))["status"] == "idle"


async def test_a_box_of_another_project_is_unknown(agents: Pool) -> None:
    await put_profile(agents, ProjectId("p2"), profile())
    theirs = await packed(agents, "secret", project=ProjectId("p2"))
    named: list[dict[str, Any]] = [{"context_box_id": theirs}, {"output_box_id": theirs}]
    for arguments in named:
        with pytest.raises(Refused, match="names no box"):
            await ask(agents, **arguments)


async def test_an_inactive_agent_is_refused(agents: Pool) -> None:
    await rows(agents, "UPDATE resource.project_agents SET status = 'inactive' WHERE agent_id = 'alice'")
    with pytest.raises(Refused) as refused:
        await ask(agents)
    assert refused.value.code == "agent_inactive"


@pytest.mark.parametrize("text", ["a\0b", "\0"])
async def test_nul_characters_are_a_bad_request(agents: Pool, text: str) -> None:
    places: list[dict[str, Any]] = [{"instruction": text}, {"correlation_id": text}, {"metadata": {"k": text}}]
    for arguments in places:
        with pytest.raises(BadRequest):
            await ask(agents, **arguments)


async def test_a_request_without_anything_to_read_is_a_bad_request(agents: Pool) -> None:
    with pytest.raises(BadRequest):
        await ask(agents, instruction=None)


async def test_a_turn_may_not_read_the_box_it_writes(agents: Pool) -> None:
    mine = await packed(agents, "one")
    with pytest.raises(BadRequest):
        await ask(agents, instruction=None, context_box_id=mine, output_box_id=mine)


async def test_a_repeat_is_answered_with_the_first_turn(agents: Pool) -> None:
    first = await ask(agents, correlation_id="c", metadata={"a": 1, "b": [2]})
    repeat = await ask(agents, correlation_id="c", metadata={"a": 1, "b": [2]})
    assert repeat.reply == first.reply.model_copy(update={"duplicate": True})
    assert repeat.lease is None
    await play(agents)
    later = await ask(agents, correlation_id="c", metadata={"a": 1, "b": [2]})
    assert (later.reply.agent_turn_id, later.reply.inbox_status) == (first.reply.agent_turn_id, InboxStatus.CONSUMED)
    assert await value(agents, "SELECT count(*) FROM cards WHERE metadata ->> 'type' = 'task.instruction'") == 1


async def test_a_try_that_repeats_its_own_ids_is_no_duplicate(agents: Pool) -> None:
    sent = command(correlation_id="c")
    first = await agents.run(lambda conn: send(conn, sent))
    again = await agents.run(lambda conn: send(conn, sent))
    assert again.reply == first.reply
    assert (await head(agents))["turn_epoch"] == 1


@pytest.mark.parametrize("other", [{"instruction": "other"}, {"agent": BOB}, {"metadata": {"a": 1}}])
async def test_a_correlation_with_other_content_is_a_conflict(agents: Pool, other: dict[str, Any]) -> None:
    await ask(agents, correlation_id="c")
    with pytest.raises(Refused) as refused:
        await ask(agents, correlation_id="c", **other)
    assert refused.value.code == "correlation_conflict"
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox") == 1


async def test_a_repeat_is_answered_even_if_it_would_be_refused_now(agents: Pool) -> None:
    first = await ask(agents, correlation_id="c")
    await rows(agents, "UPDATE resource.project_agents SET status = 'inactive'")
    assert (await ask(agents, correlation_id="c")).reply.agent_turn_id == first.reply.agent_turn_id


async def test_a_given_context_box_is_read_as_it_is(agents: Pool) -> None:
    mine = await packed(agents, "one", "two")
    asked = await ask(agents, instruction=None, context_box_id=mine)
    assert asked.reply.context_box_id == mine
    turn = await start(agents)
    assert [card.content for card in (await begin(agents, turn)).context] == [
        {"__type__": "TextContent", "text": "one"},
        {"__type__": "TextContent", "text": "two"},
    ]


async def test_a_context_box_and_an_instruction_make_a_new_box(agents: Pool) -> None:
    mine = await packed(agents, "one", "two")
    asked = await ask(agents, instruction="three", context_box_id=mine)
    assert asked.reply.context_box_id != mine
    assert await texts(agents, asked.reply.context_box_id) == ["one", "two", "three"]
    assert await texts(agents, mine) == ["one", "two"]
    parents = await value(
        agents, "SELECT parent_ids::text FROM boxes WHERE box_id = $1::text::uuid", asked.reply.context_box_id
    )
    assert parents == f"{{{mine}}}"


async def test_result_fields_are_a_card_after_the_instruction(agents: Pool) -> None:
    asked = await ask(agents, result_fields=[{"name": "answer", "description": "short"}])
    assert await texts(agents, asked.reply.context_box_id) == ["hello", "task.result_fields"]
    turn = await start(agents)
    fields = content_of((await begin(agents, turn)).context[1])
    assert isinstance(fields, FieldsSchemaContent)
    assert [(field.name, field.description) for field in fields.fields] == [("answer", "short")]


TOLD: JsonObject = {"instructions": "Be brief.", "choices": [{"name": "think", "description": "Think on."}]}


async def test_the_text_of_settings_is_a_card_and_the_row_names_it(agents: Pool) -> None:
    fields: dict[str, Any] = {"result_fields": [{"name": "answer"}], "runtime_config": {**TOLD, "max_steps": 3}}
    asked = await ask(agents, **fields, correlation_id="c")
    turn = asked.reply.agent_turn_id
    assert await texts(agents, asked.reply.context_box_id) == ["hello", "task.result_fields", "task.runtime_config"]
    stored = "SELECT payload ->> 'runtime_config' FROM state.agent_inbox"
    assert json.loads(await value(agents, stored)) == {"max_steps": 3, "card_id": f"{turn}-config"}
    before = await rows(agents, "SELECT * FROM cards ORDER BY card_id")
    repeated = await ask(agents, **fields, correlation_id="c")
    assert (repeated.reply.duplicate, repeated.reply.agent_turn_id) == (True, turn)
    with pytest.raises(Refused, check=lambda error: error.code == "correlation_conflict"):
        await ask(agents, runtime_config={**TOLD, "max_steps": 3, "instructions": "Be long."}, correlation_id="c")
    assert await rows(agents, "SELECT * FROM cards ORDER BY card_id") == before
    begun = await begin(agents, await start(agents))
    assert begun.head.runtime_config.card_id == begun.context[2].card_id
    past = await agents.run(lambda conn: get_turn_request(conn, PROJECT, AgentTurnId(str(turn))))
    assert past is not None
    assert past.runtime_config == {"max_steps": 3, **RuntimeConfig.model_validate(TOLD).split()[1]}


async def test_settings_without_text_need_no_card(agents: Pool) -> None:
    source = await packed(agents, "in a box")
    asked = await ask(agents, instruction=None, context_box_id=source, runtime_config={"max_steps": 3, "choices": []})
    assert asked.reply.context_box_id == source
    assert json.loads(await value(agents, "SELECT payload ->> 'runtime_config' FROM state.agent_inbox")) == {
        "max_steps": 3
    }
    assert await value(agents, "SELECT count(*) FROM cards WHERE metadata ->> 'type' = 'task.runtime_config'") == 0


async def test_their_text_goes_behind_the_cards_of_a_box(agents: Pool) -> None:
    """The box that is named is not written."""
    source = await packed(agents, "in a box")
    asked = await ask(agents, instruction=None, context_box_id=source, runtime_config=TOLD)
    assert await texts(agents, asked.reply.context_box_id) == ["in a box", "task.runtime_config"]
    assert await texts(agents, source) == ["in a box"]


async def test_without_box_and_instruction_the_agents_memory_is_read(agents: Pool) -> None:
    memory = await packed(agents, "remember")
    columns = "(project_id, agent_id, memory_context_box_id)"
    await rows(
        agents,
        f"INSERT INTO state.agent_state_pointers {columns} VALUES ('p1', 'alice', $1::text::uuid)",  # noqa: S608
        memory,
    )
    assert (await ask(agents, instruction=None)).reply.context_box_id == memory
    with_words = await ask(agents)
    assert await texts(agents, with_words.reply.context_box_id) == ["hello"]
    await play(agents)
    await play(agents)


async def test_a_profile_by_name_holds_for_one_turn(agents: Pool) -> None:
    other, _, _ = await put_profile(agents, PROJECT, profile("Other"))
    turn = await lease(agents, profile_name="oTHER")
    assert turn.profile_box_id == other
    assert (await begin(agents, turn)).profile[0].type == "sys.profile"
    await finish(agents, turn)
    assert (await lease(agents)).profile_box_id != other


async def test_a_child_is_deeper_than_its_parents_row(agents: Pool) -> None:
    parent = await lease(agents, incoming={headers.DEPTH: "4"})
    lineage = {headers.PARENT_TURN_ID: parent.agent_turn_id, headers.PARENT_AGENT_ID: ALICE, headers.DEPTH: "0"}
    await ask(agents, BOB, incoming=lineage)
    assert (await head(agents, BOB))["active_recursion_depth"] == 5
    [edge] = await rows(agents, "SELECT * FROM state.execution_edges WHERE target_agent_id = 'bob'")
    assert (edge["recursion_depth"], edge["source_agent_id"]) == (5, ALICE)
    assert edge["source_agent_turn_id"] == parent.agent_turn_id
    with pytest.raises(Refused, match="too deep"):
        await ask(agents, BOB, incoming=lineage, depth_limit=5)
    await ask(agents, BOB, incoming={**lineage, headers.DEPTH: "9"})
    assert await value(agents, "SELECT max(recursion_depth) FROM state.execution_edges") == 9


async def test_the_trace_goes_from_the_headers_to_row_edge_head_and_cards(agents: Pool) -> None:
    parent = headers.new_traceparent()
    step = {headers.PARENT_STEP_ID: "step-1", headers.TRACEPARENT: parent, headers.TRACESTATE: "a=b"}
    asked = await ask(agents, incoming=step)
    assert asked.reply.trace_id == headers.trace_id(parent)
    assert asked.lease is not None
    assert headers.trace_id(asked.lease.context_headers[headers.TRACEPARENT]) == headers.trace_id(parent)
    leased = await head(agents)
    assert (leased["trace_id"], leased["parent_step_id"]) == (asked.reply.trace_id, "step-1")
    kept = await value(
        agents, "SELECT metadata ->> 'trace_id' FROM cards WHERE metadata ->> 'type' = 'task.instruction'"
    )
    assert kept == asked.reply.trace_id


async def test_an_agent_without_a_head_gets_one(agents: Pool) -> None:
    await rows(agents, "DELETE FROM state.agent_state_head WHERE agent_id = 'alice'")
    assert (await ask(agents)).lease is not None
    await play(agents)


async def test_a_reused_output_box_goes_on_where_it_ended(agents: Pool) -> None:
    first = await lease(agents)
    await begin(agents, first)
    await commit(agents, first)
    await finish(agents, first, 2)
    second = await lease(agents, output_box_id=first.output_box_id)
    begun = await begin(agents, second)
    assert [card.type for card in begun.output] == ["agent.thought", "agent.thought", "task.deliverable"]
    assert begun.head.output_position == 3
    await finish(agents, second)
    assert [place.position for place in await box(agents, first.output_box_id)] == [1, 2, 3, 4, 5]


async def test_a_box_that_two_agents_want_makes_one_wait(agents: Pool) -> None:
    first = await lease(agents)
    waiting = await ask(agents, BOB, output_box_id=first.output_box_id)
    assert (waiting.reply.inbox_status, waiting.lease) == (InboxStatus.QUEUED, None)
    assert (await head(agents, BOB))["status"] == "idle"
    mine = await ask(agents, BOB)
    assert mine.lease is not None
    await begin(agents, first)
    await finish(agents, first)
    ended = await play_to(agents, BOB)
    assert ended == [mine.reply.agent_turn_id, waiting.reply.agent_turn_id]
    assert [place.type for place in await box(agents, first.output_box_id)] == ["agent.thought", "task.deliverable"] * 2


async def play_to(pool: Pool, agent: AgentId) -> list[AgentTurnId]:
    """Play the agent's turns until none is leased; gives them in order."""
    played: list[AgentTurnId] = []
    while (await head(pool, agent))["status"] == "dispatched":
        played.append((await play(pool, agent)).agent_turn_id)
    return played


async def test_an_idle_agent_is_leased_to_the_older_turn_whose_box_became_free(agents: Pool) -> None:
    holder = await lease(agents, BOB)
    older = await ask(agents, output_box_id=holder.output_box_id)
    await begin(agents, holder)
    await finish(agents, holder)
    asked = await ask(agents)
    assert asked.reply.inbox_status == InboxStatus.QUEUED
    assert asked.lease is not None
    assert asked.lease.agent_turn_id == older.reply.agent_turn_id
    assert await play_to(agents, ALICE) == [older.reply.agent_turn_id, asked.reply.agent_turn_id]


async def test_ids_of_agents_are_a_projects_own(agents: Pool) -> None:
    other = ProjectId("p2")
    await put_profile(agents, other, profile())
    await add_agent(agents, other, ALICE, "helper")
    await ask(agents, correlation_id="c")
    request = EnqueueRequest(agent_id=ALICE, instruction="hi", correlation_id="c")
    asked = await enqueue(agents, other, ChannelId("c1"), request, {}, depth_limit=20, sender="user.test")
    assert asked.lease is not None
    assert (asked.reply.duplicate, asked.lease.channel_id) == (False, "c1")


async def test_a_queued_turn_is_stopped_in_its_own_box(agents: Pool) -> None:
    await lease(agents)
    queued = await ask(agents)
    stopped = await stop(agents, ALICE, queued)
    assert stopped is not None
    assert (stopped.status, stopped.output_box_id) == ("canceled", queued.reply.output_box_id)
    assert headers.trace_id(stopped.context_headers[headers.TRACEPARENT]) == queued.reply.trace_id
    [outcome] = await rows(agents, "SELECT * FROM state.turn_outcomes")
    assert (outcome["turn_epoch"], outcome["error_code"], outcome["announced_at"]) == (0, "stopped", None)
    assert (
        await value(agents, "SELECT status FROM state.agent_inbox WHERE inbox_id = $1", queued.reply.inbox_id)
        == "skipped"
    )
    assert await stop(agents, ALICE, queued) is None


@pytest.mark.parametrize("steps", [-1, 0, 1])
async def test_a_queued_turn_is_stopped_in_the_box_its_own_agent_writes(agents: Pool, steps: int) -> None:
    first = await lease(agents)
    await begin(agents, first)
    await finish(agents, first)
    turn = await lease(agents, output_box_id=first.output_box_id)
    queued = await ask(agents, output_box_id=first.output_box_id)
    if steps >= 0:
        await begin(agents, turn)
    if steps == 1:
        await commit(agents, turn)
    stopped = await stop(agents, ALICE, queued)
    assert stopped is not None
    assert stopped.output_box_id == first.output_box_id
    if steps < 0:
        await begin(agents, turn)
    await finish(agents, turn, 2 if steps == 1 else 1)
    types = [place.type for place in await box(agents, first.output_box_id)]
    assert types.count("task.deliverable") == 3
    assert types[-1] == "task.deliverable"


async def test_a_queued_turn_is_stopped_in_a_fresh_box_if_another_agent_holds_its_own(agents: Pool) -> None:
    holder = await lease(agents)
    queued = await ask(agents, BOB, output_box_id=holder.output_box_id)
    stopped = await stop(agents, BOB, queued)
    assert stopped is not None
    assert stopped.output_box_id != holder.output_box_id
    assert [place.type for place in await box(agents, stopped.output_box_id)] == ["task.deliverable"]
    assert await box(agents, holder.output_box_id) == []


async def test_a_queued_turn_is_stopped_in_a_box_that_became_free(agents: Pool) -> None:
    holder = await lease(agents)
    queued = await ask(agents, BOB, output_box_id=holder.output_box_id)
    await begin(agents, holder)
    await finish(agents, holder)
    stopped = await stop(agents, BOB, queued)
    assert stopped is not None
    assert stopped.output_box_id == holder.output_box_id


async def test_only_a_queued_turn_of_that_agent_is_stopped_so(agents: Pool) -> None:
    leased = await ask(agents)
    queued = await ask(agents)
    assert await stop(agents, ALICE, leased) is None
    assert await stop(agents, BOB, queued) is None
    turn = await start(agents)
    await begin(agents, turn)
    await finish(agents, turn)
    assert await stop(agents, ALICE, leased) is None
