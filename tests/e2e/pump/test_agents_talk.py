"""Agents of the roster as listeners: they ask handlers and each other, remember, and hear what was in the way (§9)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.pump.pump import ORGANISM, Caller, Heard, assert_threads, calling_in, pump_config
from tests.support.pump.threads import message, sent_by
from tests.support.pump.troupe import (
    ACTORS,
    TROUPE,
    Brief,
    Memo,
    Note,
    Wisp,
    asked,
    hire,
    play,
    respond,
    send,
    text_in,
    think,
    verdict,
)
from tests.support.tenants import CHANNEL, Ended
from tests.support.tools import call_of, calling, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.peers import RESPONSE_WARNING
from turnstile.schema.pump.primitives import Huh, SystemErrorMessage
from turnstile.schema.pump.threads import ThreadRef, new_thread_id
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES, SendReply

OUTSIDE = "external:client"
CONFIG: Config = {**QUICK, "protocol": {"max_recursion_depth": 3}}
"""A conversation of two agents is never deeper than two, however long it is."""
pytestmark = pytest.mark.stack(pump_config(CONFIG, listeners=[ORGANISM, TROUPE], max_hops=25), ACTORS)
TIMEOUT, ROUTING, VALIDATION = (
    each.to_xml().decode()
    for each in (SystemErrorMessage.timeout(), SystemErrorMessage.routing(), SystemErrorMessage.validation())
)


@pytest.fixture
async def caller(here: Stack) -> AsyncIterator[Caller]:
    """A client in a project of its own with its agents; when the test ends, what protocol §2 and §9 say holds."""
    async with calling_in(here) as caller:
        await hire(caller.tenant, "alice", "bob", "carol", max_steps=3)
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)
            await assert_invariants(conn)
        stored = await caller.stored()
        assert sorted(stored) == sorted(set(stored)) == sorted(caller.events)


async def turns_of(caller: Caller, sent: SendReply) -> list[Ended]:
    """The turns of a thread, in the order of its messages."""
    lines = await caller.messages(sent)
    return [await caller.tenant.ended(line.agent_turn_id) for line in lines if line.agent_turn_id is not None]


async def shape(caller: Caller, sent: SendReply) -> list[str]:
    """From whom each message went to whom, and what came of it."""
    lines = await caller.messages(sent)
    return [f"{line.from_id} > {line.chain.removeprefix(f'{OUTSIDE}.')} {line.effect or line.status}" for line in lines]


def answered(heard: Heard) -> tuple[str, str, str | None]:
    """Reason, sender and payload."""
    assert heard.sender is not None
    return heard.reason, heard.sender, heard.payload


def from_(sender: str, payload: Payload | str) -> tuple[str, str]:
    """A message as its agent's model is asked with it."""
    return "user", f"Message from {sender}:\n{payload if isinstance(payload, str) else payload.to_xml().decode()}"


ACCEPTED = ("tool", '{"status":"success","result":{"accepted":true}}')


# Conversations.


async def test_an_agent_asks_a_handler_thinks_and_responds(caller: Caller) -> None:
    """It remembers all of it; its caller hears its response alone."""
    brief = Brief(play=play(send("clerk", do="say", what="42"), think("42 what?")))
    sent = await caller.send("alice", brief)
    heard = await caller.heard(sent)
    assert asked(heard) == [
        from_(OUTSIDE, brief),
        ("assistant", ""),
        ACCEPTED,
        from_("clerk", "<done><said>42</said></done>"),
        ("assistant", ""),
        ACCEPTED,
        from_("alice", "<thought><reasoning>42 what?</reasoning></thought>"),
    ]
    assert await shape(caller, sent) == [
        f"{OUTSIDE} > alice forward",
        "alice > alice.clerk respond",
        "clerk > alice self",
        "alice > alice respond",
    ]
    assert len({m.segment_id for m in await caller.messages(sent)}) == 2
    turns = await turns_of(caller, sent)
    assert len({turn.view.output_box_id for turn in turns}) == 1
    assert [len(turn.steps) for turn in turns] == [1, 1, 1]


async def test_an_agent_is_offered_its_peers_and_told_how_to_ask_them(caller: Caller) -> None:
    heard = await caller.ask("alice", Brief(play=play()))
    shown = json.loads(text_in(heard))
    assert [each["name"] for each in shown["tools"]] == [
        *("send_bob", "send_carol", "send_clerk", "send_broker", "send_ghost", "respond", "think", "submit_result")
    ]  # and no `send_alice`: to think is how it calls itself
    [errand] = [each for each in shown["tools"] if each["name"] == "send_clerk"]
    assert errand["parameters"]["required"] == ["do"]
    [[_, system]] = [each for each in shown["messages"] if each[0] == "system"]
    assert "# clerk" in system
    assert "send_clerk" in system
    assert "<errand>" not in system
    assert RESPONSE_WARNING in system


async def test_two_agents_talk_and_each_segment_begins_with_nothing(caller: Caller) -> None:
    first, second = play(verdict("so so", 2)), play()
    sent = await caller.send("alice", Brief(play=play(send("bob", play=first), send("bob", play=second))))
    heard = await caller.heard(sent)
    told = asked(heard)
    assert told[3] == from_("bob", "<verdict><said>so so</said><score>2</score></verdict>")
    mirrored = json.loads(text_in_message(told[6][1]))
    assert mirrored["messages"][1:] == [list(from_("alice", Note(play=second)))]
    assert await shape(caller, sent) == [
        f"{OUTSIDE} > alice forward",
        "alice > alice.bob respond",
        "bob > alice forward",
        "alice > alice.bob respond",
        "bob > alice respond",
    ]
    segments = [m.segment_id for m in await caller.messages(sent)]
    assert segments[1] != segments[3]


def text_in_message(message: str) -> str:
    """What `said` says in a message."""
    return text_in(Heard("", "", None, message, {}, {}), "said")


async def test_a_handler_delegates_between_agents(caller: Caller) -> None:
    sent = await caller.send("alice", Brief(play=play(send("broker", to="bob", play=play(verdict("fine"))))))
    told = asked(await caller.heard(sent))
    assert told[-1] == from_("broker", "<brokered><said>bob said fine (1)</said></brokered>")
    assert await shape(caller, sent) == [
        f"{OUTSIDE} > alice forward",
        "alice > alice.broker forward",
        "broker > alice.broker.bob respond",
        "bob > alice.broker respond",
        "broker > alice respond",
    ]
    above, below, _ = await turns_of(caller, sent)
    edges = await edges_of(caller)
    assert [(edge["depth"], edge["parent"]) for edge in edges] == [(0, None), (1, above.view.agent_turn_id), (0, None)]
    assert edges[1]["turn"] == below.view.agent_turn_id


async def edges_of(caller: Caller) -> list[dict[str, Any]]:
    """Who asked which turn, how deep and in which trace, in order."""
    return await caller.tenant.rows(
        "SELECT e.recursion_depth AS depth, e.source_agent_turn_id AS parent, e.source_agent_id AS asker,"
        " e.target_agent_turn_id AS turn, e.trace_id AS trace FROM state.execution_edges e"
        " WHERE e.project_id = $1 AND e.primitive = 'enqueue' ORDER BY e.created_at, e.edge_id",
        caller.tenant.project,
    )


@pytest.mark.long
async def test_a_long_conversation_of_two_agents_is_not_deep(caller: Caller) -> None:
    """Twenty turns, as deep as segments are nested; who asks is the parent of who answers; all in one trace."""
    asks = [send("bob", play=play(verdict(f"answer {number}", number))) for number in range(1, 10)]
    sent = await caller.send("alice", Brief(play=play(*asks, think("all heard"), respond("ten"))))
    assert text_in(await caller.heard(sent, 30)) == "ten"
    turns = [each.view.agent_turn_id for each in await turns_of(caller, sent)]
    edges = await edges_of(caller)
    assert [edge["turn"] for edge in edges] == turns
    assert len(turns) == 20
    assert [edge["depth"] for edge in edges] == [*[0, 1] * 9, 0, 0]
    assert [edge["parent"] for edge in edges] == [*(x for n in range(0, 18, 2) for x in (None, turns[n])), None, None]
    assert {edge["asker"] for edge in edges} == {None, "alice"}
    assert len({edge["trace"] for edge in edges}) == 1


async def test_agents_nested_too_deep_are_a_system_error(caller: Caller) -> None:
    """The fourth of them is not asked: the third hears, and the answer comes up all the way."""
    fourth = play(verdict("never said"))
    third = play(send("bob", play=fourth))
    second = play(send("alice", play=third), verdict("second"))
    sent = await caller.send("alice", Brief(play=play(send("bob", play=second))))
    await caller.heard(sent)
    assert await shape(caller, sent) == [
        f"{OUTSIDE} > alice forward",
        "alice > alice.bob forward",
        "bob > alice.bob.alice forward",
        "alice > alice.bob.alice.bob respond",
        "bob > alice.bob.alice respond",
        "alice > alice.bob respond",
        "bob > alice respond",
    ]
    assert [each["depth"] for each in await edges_of(caller)] == [0, 1, 2, 2, 1, 0]
    [refused] = [each for each in await turns_of(caller, sent) if asked_in(each) == from_("bob", ROUTING)[1]]
    assert refused.view.agent_id == "alice"


def asked_in(ended: Ended) -> str:
    """The turn's instruction, which its box holds."""
    [card] = [card for card in ended.cards if card.type == "task.instruction"]
    assert isinstance(card.content, dict)
    return str(card.content["text"])


# What a turn's deliverable comes to.


async def test_plain_text_responds_where_the_response_is_text(caller: Caller) -> None:
    heard = await caller.ask("alice", Brief(play=play({"text": "Hello & <good> bye."})))
    assert answered(heard) == ("responded", "alice", "<text><text>Hello &amp; &lt;good&gt; bye.</text></text>")


async def test_text_that_is_no_response_is_huh_to_the_agent_which_then_does_it_right(caller: Caller) -> None:
    sent = await caller.send("bob", Note(play=play({"text": "I say yes."}, verdict("yes", 3))))
    assert answered(await caller.heard(sent)) == (
        *("responded", "bob"),
        "<verdict><said>yes</said><score>3</score></verdict>",
    )
    assert await shape(caller, sent) == [f"{OUTSIDE} > bob self", "system > bob respond"]
    again = (await turns_of(caller, sent))[1]
    assert asked_in(again) == from_("system", Huh.of(b"I say yes."))[1]


@pytest.mark.long
async def test_an_agent_that_only_talks_meets_the_limit(caller: Caller) -> None:
    await hire(caller.tenant, "bob", model="stubborn")
    sent = await caller.send("bob", Note(play=play({"text": "I say yes."})))
    heard = await caller.heard(sent, 30)
    assert (heard.kind, heard.reason, heard.payload) == ("ended", "limit", None)
    assert [m.effect for m in await caller.messages(sent)] == [*["self"] * 25, "limit"]


async def test_a_submission_counts_as_a_response(caller: Caller) -> None:
    fields = [{"name": "said", "value": "yes"}, {"name": "score", "value": 7}]
    heard = await caller.ask("bob", Note(play=play(calling(("submit_result", {"fields": fields})))))
    assert heard.payload == "<verdict><said>yes</said><score>7</score></verdict>"
    wrong = await caller.ask("bob", Note(play=play(calling(("submit_result", {"fields": fields[:1]})))))
    assert asked(wrong, "said")[-1] == from_("system", Huh.of(b'{"said": "yes"}'))


async def test_wrong_arguments_are_told_to_the_model_which_corrects_them(caller: Caller) -> None:
    wrong: list[JsonObject] = [calling(("send_clerk", {"what": "x"})), calling(("send_clerk", {"do": 7}))]
    sent = await caller.send("alice", Brief(play=play([*wrong, send("clerk", do="say", what="x")])))
    told = asked(await caller.heard(sent))
    results = [json.loads(content) for role, content in told if role == "tool"]
    assert [result.get("error", {}).get("code") for result in results] == ["invalid_choice", "invalid_choice", None]
    assert "'do' is a required property" in results[0]["error"]["message"]
    assert told[-1] == from_("clerk", "<done><said>x</said></done>")
    assert [len(each.steps) for each in await turns_of(caller, sent)] == [3, 1]


async def test_an_agent_out_of_steps_is_huh_to_its_caller(caller: Caller) -> None:
    await hire(caller.tenant, "bob", model="stubborn", max_steps=2)
    note = Note(play=play(calling(("respond", {"said": "no score"}))))
    heard = await caller.ask("bob", note)
    assert answered(heard) == ("undelivered", "bob", Huh.of(note.to_xml()).to_xml().decode())
    told = asked(await caller.ask("alice", Brief(play=play(send("bob", play=note.play)))))
    assert told[-1] == from_("bob", Huh.of(note.to_xml()))


async def test_an_agent_out_of_steps_after_its_own_huh_is_huh_to_its_caller(caller: Caller) -> None:
    """With what the caller said, not what the agent heard last."""
    await hire(caller.tenant, "bob", max_steps=2)
    bad = calling(("respond", {"said": "no score"}))
    note = Note(play=play({"text": "no verdict"}, [bad, bad]))
    sent = await caller.send("bob", note)
    assert answered(await caller.heard(sent)) == ("undelivered", "bob", Huh.of(note.to_xml()).to_xml().decode())
    assert [m.kind for m in await caller.messages(sent)] == ["request", "system"]


async def test_blank_text_is_no_answer(caller: Caller) -> None:
    """The agent hears `huh`; nobody hears words that it has not said."""
    told = asked(await caller.ask("alice", Brief(play=play({"text": " "}))))
    assert told[-1] == from_("system", Huh.of(b""))


async def test_an_agent_that_thinks_stays_in_its_place(caller: Caller) -> None:
    sent = await caller.send("alice", Brief(play=play(think("one"), think("two"), respond("three"))))
    assert text_in(await caller.heard(sent)) == "three"
    lines = await caller.messages(sent)
    assert [line.kind for line in lines] == ["request", "self", "self"]
    assert len({line.segment_id for line in lines}) == 1


@pytest.mark.parametrize("name", ["send_shouter", "send_alice", "send_nobody", "send_"])
async def test_an_invented_tool_is_unknown_whether_there_is_such_a_listener_or_not(caller: Caller, name: str) -> None:
    sent = await caller.send("alice", Brief(play=play([calling((name, {"text": "hi"})), respond("without")])))
    assert text_in(await caller.heard(sent)) == "without"
    [turn] = await turns_of(caller, sent)
    [(status, code, message), _] = turn.results()
    assert (status, code) == ("failed", "unknown_tool")
    assert message.startswith(f"There is no tool '{name}' here. Available: ")
    assert "shouter" not in message.partition("Available")[2]
    assert await shape(caller, sent) == [f"{OUTSIDE} > alice respond"]


# What is in the way.


async def test_a_peer_that_fails_is_a_timeout_and_its_caller_goes_on(caller: Caller) -> None:
    broken: JsonObject = {"error": {"code": "model_auth", "retryable": False}}
    sent = await caller.send("alice", Brief(play=play(send("bob", play=play(broken)))))
    told = asked(await caller.heard(sent))
    assert told[-1] == from_("bob", TIMEOUT)
    assert [each.view.status for each in await turns_of(caller, sent)] == ["success", "failed", "success"]


async def test_a_peer_that_hangs_is_a_timeout_and_is_stopped(caller: Caller) -> None:
    slow: JsonObject = {"text": "at last", "delay_seconds": 60}
    sent = await caller.send("alice", Brief(play=play(send("carol", play=play(slow)))))
    told = asked(await caller.heard(sent))
    assert told[-1] == from_("carol", TIMEOUT)
    [late] = [each for each in await turns_of(caller, sent) if each.view.agent_id == "carol"]
    assert (late.view.status, late.view.error_code) == ("canceled", "stopped")
    assert (await shape(caller, sent))[1] == "alice > alice.carol timeout"
    await free(caller, "carol")
    assert text_in(await caller.ask("carol", Memo(play=play(respond("here again"))))) == "here again"


async def free(caller: Caller, *agents: str) -> None:
    """These agents are idle and hold no box."""
    heads = await caller.tenant.rows(
        "SELECT status, output_box_id FROM state.agent_state_head WHERE project_id = $1 AND agent_id = ANY ($2)",
        *(caller.tenant.project, list(agents)),
    )
    assert heads == [{"status": "idle", "output_box_id": None}] * len(agents)


async def test_a_peer_whose_tool_is_silent_is_a_timeout_and_a_late_answer_changes_nothing(caller: Caller) -> None:
    async with hand_of(caller.tenant, agent=AgentId("hand")) as hand:
        await hire(caller.tenant, "carol", allowed_tools=["search"])
        sent = await caller.send("alice", Brief(play=play(send("carol", play=play(calling("search"))))))
        assert asked(await caller.heard(sent))[-1] == from_("carol", TIMEOUT)
        [late] = [each for each in await turns_of(caller, sent) if each.view.agent_id == "carol"]
        call = call_of(AgentTurnId(late.view.agent_turn_id))
        assert [command.call for command in hand.commands] == [call]
        before = await shape(caller, sent)
        reply = await hand.answer(call)
        assert reply.status == "accepted"
        assert await hand.settled(call) == ("consumed", "already_settled")
    assert [result[:2] for result in late.results()] == [("canceled", "canceled")]
    assert await shape(caller, sent) == before
    await free(caller, "carol")


@pytest.mark.parametrize("how", ["nobody", "inactive", "project"])
async def test_an_agent_that_cannot_be_asked_is_a_system_error(caller: Caller, how: str) -> None:
    if how == "project":
        stranger = await calling_elsewhere(caller)
        assert stranger == ("undelivered", "alice", ROUTING)
        return
    peer = "ghost"
    if how == "inactive":
        peer = "bob"
        await caller.tenant.rows(
            "UPDATE resource.project_agents SET status = 'inactive' WHERE project_id = $1 AND agent_id = 'bob'",
            caller.tenant.project,
        )
    told = asked(await caller.ask("alice", Brief(play=play(send(peer, play=play())))))
    assert told[-1] == from_(peer, ROUTING)
    payload = (Wisp if peer == "ghost" else Note)(play=play())
    assert answered(await caller.ask(peer, payload)) == ("undelivered", peer, ROUTING)


async def calling_elsewhere(caller: Caller) -> tuple[str, str, str | None]:
    """What a project without any agent hears."""
    async with calling_in(caller.tenant.stack) as other:
        return answered(await other.ask("alice", Brief(play=play())))


async def test_what_is_too_long_for_an_agent_is_huh(caller: Caller) -> None:
    """The text of an enqueue is bounded: a message, and with it how the peers are to be asked."""
    brief = Brief(play="x" * (TEXT_LIMIT_BYTES - 1000))
    heard = await caller.ask("alice", brief)
    assert answered(heard) == ("undelivered", "alice", Huh.of(brief.to_xml()).to_xml().decode())


async def test_an_agent_hears_of_an_answer_that_is_too_long_for_it(caller: Caller) -> None:
    told = asked(await caller.ask("alice", Brief(play=play(send("clerk", do="flood", what="900000")))))
    assert told[-1] == from_("system", VALIDATION)


async def test_a_turn_that_was_asked_otherwise_before_is_ended(caller: Caller) -> None:
    """A worker asked and died, and its successor has other listeners: the sender hears, the turn works for nobody."""
    tenant = caller.tenant
    hangs = play({"text": "too late", "delay_seconds": 60})
    thread = ThreadRef(
        project_id=tenant.project,
        channel_id=CHANNEL,
        thread_id=new_thread_id(),
        worker_target=tenant.stack.settings.pump.worker_target,
    )
    text = Note(play=hangs).to_xml().decode()
    sent = await sent_by(tenant.pool, message("bob", thread, joins=False, payload=text))
    await tenant.enqueue(AgentId("bob"), text, correlation_id=sent.message_id)
    assert answered(await caller.heard(sent.message_id)) == ("undelivered", "bob", ROUTING)

    async def is_free() -> bool:
        rows = await tenant.rows(
            "SELECT status FROM state.agent_state_head WHERE project_id = $1 AND agent_id = 'bob'", tenant.project
        )
        return rows == [{"status": "idle"}]

    await until(is_free, 25, "the turn is stopped")


# Tools.


async def test_an_agent_uses_tools_beside_its_choices(caller: Caller) -> None:
    async with hand_of(caller.tenant, agent=AgentId("hand")) as hand:
        await hire(caller.tenant, "bob", allowed_tools=["search"])
        both: JsonObject = calling("search", ("respond", {"said": "too soon", "score": 0}))
        sent = await caller.send(
            "alice", Brief(play=play(send("bob", play=play([both, calling("search"), verdict("found", 9)]))))
        )
        [command] = await hand.heard()
        assert command.headers["CG-Thread-Id"] == sent.thread_id
        await hand.report(command.call, {"answer": 9})
        told = asked(await caller.heard(sent))
        assert told[-1] == from_("bob", "<verdict><said>found</said><score>9</score></verdict>")
        assert len(hand.commands) == 1
    bob = (await turns_of(caller, sent))[1]
    assert [result[:2] for result in bob.results()] == [
        *[("failed", "invalid_choice")] * 2,
        *[("success", None)] * 2,
    ]
    assert len(bob.steps) == 3
