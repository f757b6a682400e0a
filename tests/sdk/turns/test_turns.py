"""Agents asked from Python, over NATS and over HTTP: streamed, awaited, stopped and found again."""

import asyncio
import json
from collections.abc import Awaitable
from pathlib import Path

import pytest

import turnstile
from tests.sdk.turns.conftest import Way
from tests.support.conditions import until
from tests.support.delegation import CHIEF, fork, says, steps, task
from tests.support.gateway import token_of
from tests.support.tenants import ALICE, Tenant
from turnstile import BadRequest, Client, Refused, ServerUnavailable
from turnstile.embedded.endpoints import write_endpoints
from turnstile.embedded.ports import free_port
from turnstile.embedded.servers import DataLock
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, uuid7
from turnstile.schema.people.steers import SteerReply
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.sdk.nats_turns import NatsTurn
from turnstile.sdk.turn import Turn

WORDS = "The answer in some pieces, as a model writes it."
ODD = "Lines\u2028of\u2029all\x85kinds\r\nand \x1c\x0b\x0c one: 🙂 \N{COMBINING ACUTE ACCENT}"
BROKEN: JsonObject = {"error": {"code": "auth_failed", "message": "no key"}}
SLOW = json.dumps({"steps": [{"text": WORDS, "chunks": 40, "delay_seconds": 0.03}]})
STREAMED = json.dumps({"steps": [{"text": WORDS, "chunks": 8, "delay_seconds": 0.01}]})
NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)


async def text_of(turn: Turn) -> str:
    return "".join([piece async for piece in turn])


async def code_of(asked: Awaitable[object]) -> str:
    """The code of the refusal."""
    with pytest.raises(Refused) as refused:
        await asked
    return refused.value.code


async def test_a_turn_is_streamed_and_has_its_result(client: Client) -> None:
    turn = client.ask(ALICE, STREAMED)
    pieces = [piece async for piece in turn]
    result = await turn.result(10)
    assert len(pieces) > 2
    assert "".join(pieces) == WORDS == result.value
    assert (result.ok, result.status, result.error_code, result.fields) == (True, TurnStatus.SUCCESS, None, {})
    assert (result.stats["steps"], result.partial) == (1, False)
    assert result.agent_turn_id == await turn.start()
    view = await turn.describe()
    assert (view.status, view.deliverable_card_id) == ("success", result.card_id)
    assert turn.reply is not None
    assert (turn.reply.agent_id, turn.reply.output_box_id, turn.reply.duplicate) == (ALICE, view.output_box_id, False)


async def test_a_turn_is_iterated_where_it_is_asked_for(client: Client) -> None:
    assert await text_of(client.ask(ALICE, STREAMED)) == WORDS


async def test_every_character_comes_as_it_was_written(client: Client) -> None:
    turn = client.ask(ALICE, json.dumps({"steps": [{"text": ODD, "chunks": len(ODD), "delay_seconds": 0}]}))
    assert await text_of(turn) == ODD == (await turn.result(10)).value


async def test_all_that_a_model_writes_comes_by_step_and_attempt(client: Client) -> None:
    call: JsonObject = {"name": "nothing", "arguments": {"a": 1}}
    asked = steps({"text": "first", "tool_calls": [call]}, {"text": "second"})
    async with client.ask(ALICE, asked).chunks() as chunks:
        seen = [chunk async for chunk in chunks]
    assert [chunk.content for chunk in seen if chunk.chunk_type is ChunkType.CONTENT] == ["first", "second"]
    assert json.loads("".join(chunk.content for chunk in seen if chunk.chunk_type is ChunkType.TOOL_CALL)) == {"a": 1}
    assert [chunk.index for chunk in seen if chunk.chunk_type is ChunkType.START] == [0, 0]
    assert len({chunk.step_id for chunk in seen}) == 2


async def test_the_texts_of_two_steps_have_a_blank_line_between(client: Client) -> None:
    call: JsonObject = {"name": "nothing", "arguments": {"a": 1}}
    turn = client.ask(
        ALICE, steps({"text": "first", "tool_calls": [call], "chunks": 3}, {"text": "second", "chunks": 2})
    )
    assert await text_of(turn) == "first\n\nsecond"


async def test_the_fields_that_are_asked_for_are_delivered(client: Client) -> None:
    result = await client.ask("bob", "how much?", result_fields={"answer": "a number", "unit": ""}).result(10)
    assert result.fields == {"answer": 42, "unit": {"si": "kg"}}


async def test_a_stopped_turn_ends_as_canceled_and_keeps_what_it_has(client: Client) -> None:
    turn = client.ask(ALICE, SLOW)
    pieces: list[str] = []
    async for piece in turn:
        pieces.append(piece)
        if len(pieces) == 2:
            assert await turn.stop("enough")
    result = await turn.result(10)
    assert (result.ok, result.status, result.error_code) == (False, TurnStatus.CANCELED, "stopped")
    assert 2 <= len(pieces) < 40
    over = await turn.stop()
    assert (bool(over), over.already_final) == (False, True)


async def test_a_turn_hears_what_is_said_to_it(client: Client) -> None:
    turn, said = client.ask(ALICE, SLOW), list[SteerReply]()
    async for _ in turn:
        if not said:
            said = [await turn.steer("go on", correlation_id="s1") for _ in range(2)]
            said.append(await turn.steer("and on", when_idle=True))
    assert [each.duplicate for each in said] == [False, True, False]
    assert len({each.steer_id for each in said}) == 2
    view = await turn.describe()
    assert [(steer.status.value, steer.step_id) for steer in view.steers or ()] == [
        ("applied", f"{view.agent_turn_id}-s2")
    ] * 2
    with pytest.raises(Refused) as refused:
        await turn.steer("too late")
    assert refused.value.code == "already_final"


async def test_a_turn_is_run_again(client: Client) -> None:
    """One that failed, from the step that failed, with another model; the new one names the old."""
    failed = client.ask(ALICE, steps({"text": "first", "tool_calls": [{"name": "nothing", "arguments": {}}]}, BROKEN))
    assert (await failed.result(10)).error_code == "auth_failed"
    key = uuid7()
    again = await failed.rerun(model="scripted/echo", correlation_id=key)
    assert (await again.result(10)).ok
    view, old = await again.describe(), await failed.describe()
    assert (view.rerun_of, view.from_step, old.reruns) == (old.agent_turn_id, 2, (view.agent_turn_id,))
    repeat = await failed.rerun(model="scripted/echo", correlation_id=key)
    assert repeat.reply is not None
    assert (repeat.reply.duplicate, await repeat.start()) == (True, view.agent_turn_id)
    running = client.ask(ALICE, SLOW)
    await running.start()
    for turn, step, code in ((running, None, "turn_not_over"), (failed, 9, "unknown_step")):
        with pytest.raises(Refused) as refused:
            await turn.rerun(step)
        assert refused.value.code == code
    await running.stop()
    await running.result(10)


async def test_a_stop_reaches_the_tree_below(client: Client) -> None:
    turn = client.ask(CHIEF, steps(fork([task(instruction=NEVER)] * 2)))
    await turn.start()

    async def forked() -> bool:
        return [each.status for each in await turn.tree()].count("running") == 2

    await until(forked, 25, "two children run")
    chief, *children = await turn.tree()
    assert (chief.agent_turn_id, chief.parent_turn_id) == (await turn.start(), None)
    assert {child.parent_turn_id for child in children} == {chief.agent_turn_id}
    stopped = await turn.stop("enough", cascade="all")
    assert (bool(stopped), stopped.marked) == (True, 3)
    assert (await turn.result(20)).status is TurnStatus.CANCELED
    below = await client.turn(children[0].agent_turn_id)
    assert (await below.result(20)).status is TurnStatus.CANCELED
    assert [each.agent_turn_id for each in await below.tree()] == [
        chief.agent_turn_id,
        *(c.agent_turn_id for c in children),
    ]


async def test_leaving_the_stream_leaves_the_turn_running(client: Client) -> None:
    turn = client.ask(ALICE, STREAMED)
    async for _ in turn:
        break
    assert (await turn.result(10)).value == WORDS


async def test_a_result_that_takes_too_long_can_be_awaited_again(client: Client) -> None:
    turn = client.ask(ALICE, SLOW)
    with pytest.raises(TimeoutError):
        await turn.result(0.3)
    assert (await turn.result(10)).ok


async def test_a_conversation_goes_on(client: Client, way: Way) -> None:
    name = f"c-{uuid7()}"
    talk = client.conversation(name, profile_name="chatty")
    first, second = talk.ask("one"), talk.ask("two")
    assert (await first.result(10)).value == "You said: one (before that: nothing)"
    assert (await second.result(10)).value == "You said: two (before that: one)"
    assert first.reply is not None
    assert first.reply.conversation_id == name
    same = client.ask(first.reply.agent_id, "three", conversation=name)
    assert await text_of(same) == "You said: three (before that: one; two)"


async def test_the_same_correlation_is_the_same_turn(client: Client, way: Way) -> None:
    name = f' "order {uuid7()}" '
    first, again = (client.ask(ALICE, STREAMED, correlation_id=name, metadata={"a": [1]}) for _ in range(2))
    assert await first.start() == await again.start() != await client.ask(ALICE, STREAMED).start()
    assert again.reply is not None
    assert again.reply.duplicate
    assert (await again.result(10)).value == WORDS
    assert (await first.describe()).correlation_id == name
    changed = client.ask(ALICE, "something else", correlation_id=name)
    assert await code_of(changed.start()) == "correlation_conflict"
    if way.over_http:
        with pytest.raises(BadRequest, match="ASCII"):
            await client.ask(ALICE, STREAMED, correlation_id="größe").start()


async def test_the_same_request_is_the_same_turn_either_way(tenant: Tenant, gateway_url: str, token: str) -> None:
    ways = Way(tenant.stack.endpoints.nats_url, tenant.project), Way(gateway_url, None, token)
    name, made = f"both-{uuid7()}", set[str]()
    for way in ways:
        async with way.client() as client:
            asked = client.ask("bob", "x", result_fields=["answer"], model="scripted/submits", correlation_id=name)
            made.add(await asked.start())
    assert len(made) == 1


async def test_a_turn_is_found_again_by_its_id(client: Client, way: Way) -> None:
    asked = client.ask(ALICE, SLOW)
    if not way.over_http:  # a token is of the whole project here; over NATS a channel finds its own
        async with way.client(channel="elsewhere") as stranger:
            assert await code_of(stranger.turn(await asked.start())) == "unknown_turn"
    async with way.client() as another:
        found = await another.turn(await asked.start())
        text = await text_of(found)
        result = await found.result(10)
    assert found.reply is None
    assert text[-5:] == WORDS[-5:]
    assert result == await asked.result(10)
    for name in ("nothing", "no/where", "..", "a?b#c"):
        assert await code_of(client.turn(name)) == "unknown_turn"


async def test_what_is_wrong_is_said_before_or_by_the_bridge(client: Client, way: Way) -> None:
    with pytest.raises(BadRequest, match="instruction"):
        client.ask(ALICE, "")
    with pytest.raises(BadRequest, match="box id must be a uuid"):
        client.ask(ALICE, context_box_id="no box")
    turn = client.ask("nobody", "hello")
    for waiting in (turn.start(), turn.result(), anext(aiter(turn)), turn.stop(), turn.tree(), turn.describe()):
        assert await code_of(waiting) == "unknown_agent"
    assert await code_of(client.ask(ALICE, "x", profile_name="none").start()) == "unknown_profile"
    assert await code_of(client.ask(None, "x", profile_name="submits").start()) == "unknown_profile"
    with pytest.raises(BadRequest, match="channel"):
        async with way.client(channel="a.b"):
            pass
    with pytest.raises(BadRequest, match="not connected"):
        way.client().ask(ALICE, "x")


async def test_what_belongs_to_others_is_not_there(client: Client, way: Way, tenant: Tenant) -> None:
    other = tenant.named(f"p-{uuid7()}")
    await other.agent("player", AgentId("carol"))
    theirs = await other.enqueue(AgentId("carol"), STREAMED)
    assert await code_of(client.turn(str(theirs.agent_turn_id))) == "unknown_turn"
    assert await code_of(client.ask("carol", "x").start()) == "unknown_agent"
    if way.over_http:
        alien = Way(way.address, None, await token_of(tenant.stack, other.project))
    else:
        alien = Way(way.address, other.project)
    mine = await client.ask(ALICE, STREAMED).start()
    async with alien.client() as stranger:
        assert await code_of(stranger.turn(mine)) == "unknown_turn"
        assert await code_of(stranger.ask(ALICE, "x").start()) == "unknown_agent"


async def test_a_closed_client_says_so(way: Way) -> None:
    async with way.client() as client:
        turn = client.ask(ALICE, SLOW)
        await turn.start()
        waiting = [asyncio.create_task(turn.result()), asyncio.create_task(text_of(turn))]
        await asyncio.sleep(0.3)
        await client.close()
        for closed in (*waiting, turn.describe(), turn.result(), text_of(turn), turn.stop()):
            with pytest.raises(ServerUnavailable, match="closed"):
                await closed


async def test_an_address_where_nobody_answers_is_named(way: Way) -> None:
    port = free_port()
    if way.over_http:
        async with way.client(address=f"http://127.0.0.1:{port}") as client:
            turn = client.ask(ALICE, "x")
            for asked in (turn.start(), turn.result(5), anext(aiter(turn)), client.turn("x")):
                with pytest.raises(ServerUnavailable, match=f"127.0.0.1:{port} does not answer"):
                    await asked
    else:  # it waits for NATS, and the log says for which
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), way.client(address=f"nats://127.0.0.1:{port}"):
                pass


async def test_a_lost_task_event_is_made_up_for(tenant: Tenant) -> None:
    async with Client(tenant.stack.endpoints.nats_url, project=tenant.project) as client:
        asked = client.ask(ALICE, STREAMED)
        await asked.result(10)
        deaf = NatsTurn(client.bridge, ALICE, await asked.start())  # the event went by before it listens
        async with asyncio.timeout(25):
            assert [piece async for piece in deaf] == []
        assert (await deaf.result(10)).value == WORDS


async def test_a_client_finds_the_running_up_of_its_directory(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / ".turnstile"
    data.mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("NATS_URL", raising=False)
    lock = DataLock(data)
    await lock.acquire()
    try:
        write_endpoints(data, tenant.stack.endpoints)
        async with turnstile.connect(project=tenant.project) as client:
            assert (await client.ask(ALICE, STREAMED).result(10)).value == WORDS
    finally:
        lock.release()
