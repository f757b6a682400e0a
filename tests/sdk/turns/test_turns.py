"""Agents asked from Python: streamed, awaited, stopped and found again, on a stack of this module alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import turnstile
from tests.support.tenants import ALICE, Tenant
from turnstile import BadRequest, Client, Refused
from turnstile.embedded.endpoints import write_endpoints
from turnstile.embedded.lock import DataLock
from turnstile.schema.ids import ChannelId
from turnstile.schema.states import TurnStatus
from turnstile.sdk.nats_turns import NatsTurn

WORDS = "The answer in some pieces, as a model writes it."
SLOW = json.dumps({"steps": [{"text": WORDS, "chunks": 40, "delay_seconds": 0.05}]})
STREAMED = json.dumps({"steps": [{"text": WORDS, "chunks": 8, "delay_seconds": 0.01}]})


@pytest.fixture
async def client(tenant: Tenant) -> AsyncIterator[Client]:
    async with turnstile.connect(tenant.stack.endpoints.nats_url, project=tenant.project) as client:
        yield client


async def test_a_turn_is_streamed_and_has_its_result(client: Client) -> None:
    turn = client.ask(ALICE, STREAMED)
    pieces = [piece async for piece in turn]
    result = await turn.result(10)
    assert len(pieces) > 2
    assert "".join(pieces) == WORDS == result.value
    assert (result.ok, result.status, result.error_code, result.fields) == (True, TurnStatus.SUCCESS, None, {})
    assert result.stats["steps"] == 1
    assert result.agent_turn_id == await turn.start()


async def test_a_turn_is_iterated_where_it_is_asked_for(client: Client) -> None:
    assert "".join([piece async for piece in client.ask(ALICE, STREAMED)]) == WORDS


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
    assert not await turn.stop()


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


async def test_a_lost_task_event_is_made_up_for(client: Client) -> None:
    turn = await client.ask(ALICE, STREAMED).start()
    deaf = NatsTurn(client.bridge.in_channel(ChannelId("elsewhere")), ALICE, turn)
    async with asyncio.timeout(10):
        assert [piece async for piece in deaf] == []
    assert (await deaf.result(10)).value == WORDS


async def test_the_same_correlation_is_the_same_turn(client: Client) -> None:
    first, again = (client.ask(ALICE, STREAMED, correlation_id="order-17") for _ in range(2))
    assert await first.start() == await again.start() != await client.ask(ALICE, STREAMED).start()
    assert (await again.result(10)).value == WORDS
    with pytest.raises(Refused) as refused:
        await client.ask(ALICE, "something else", correlation_id="order-17").start()
    assert refused.value.code == "correlation_conflict"


async def test_a_turn_is_found_again_by_its_id(client: Client, tenant: Tenant) -> None:
    asked = client.ask(ALICE, SLOW)
    async with turnstile.connect(
        tenant.stack.endpoints.nats_url, project=tenant.project, channel="elsewhere"
    ) as another:
        found = await another.turn(await asked.start())
        pieces = [piece async for piece in found]
        result = await found.result(10)
    assert "".join(pieces)[-5:] == WORDS[-5:]
    assert result == await asked.result(10)
    with pytest.raises(Refused) as refused:
        await client.turn("nothing")
    assert refused.value.code == "unknown_turn"


async def test_what_is_wrong_is_said_before_or_by_the_bridge(client: Client) -> None:
    with pytest.raises(BadRequest, match="instruction"):
        client.ask(ALICE, "")
    with pytest.raises(BadRequest, match="box id must be a uuid"):
        client.ask(ALICE, context_box_id="no box")
    turn = client.ask("nobody", "hello")
    for waiting in (turn.start(), turn.result(), anext(aiter(turn)), turn.stop()):
        with pytest.raises(Refused) as refused:
            await waiting
        assert refused.value.code == "unknown_agent"
    with pytest.raises(BadRequest, match="project"):
        async with turnstile.connect(project="a.b"):
            pass


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
