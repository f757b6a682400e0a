"""Agents asked from a program without an event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from tests.sdk.turns.test_turns import SLOW, STREAMED, WORDS
from tests.support.tenants import ALICE, Tenant
from turnstile import BadRequest, Refused, SyncClient
from turnstile.schema.states import TurnStatus

Result = TypeVar("Result")


async def in_thread(tenant: Tenant, work: Callable[[SyncClient], Result]) -> Result:
    """What `work` returns, in a thread without an event loop."""

    def run() -> Result:
        with SyncClient(tenant.stack.endpoints.nats_url, project=tenant.project) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_a_turn_is_streamed_and_has_its_result(tenant: Tenant) -> None:
    def work(client: SyncClient) -> None:
        turn = client.ask(ALICE, STREAMED)
        assert "".join(turn) == WORDS
        result = turn.result(10)
        assert (result.value, result.agent_turn_id) == (WORDS, turn.start())
        assert client.turn(turn.start()).result(10) == result
        assert [each.agent_turn_id for each in turn.tree()] == [turn.start()]

    await in_thread(tenant, work)


async def test_a_turn_is_left_awaited_and_stopped(tenant: Tenant) -> None:
    def work(client: SyncClient) -> None:
        turn = client.ask(ALICE, SLOW)
        for _ in turn:
            break
        with pytest.raises(TimeoutError):
            turn.result(0.2)
        assert turn.stop("enough", cascade="all")
        assert turn.result(10).status is TurnStatus.CANCELED
        assert not turn.stop()

    await in_thread(tenant, work)


async def test_errors_are_those_of_the_client(tenant: Tenant) -> None:
    def work(client: SyncClient) -> None:
        with pytest.raises(Refused) as refused:
            client.ask("nobody", "hi").start()
        assert refused.value.code == "unknown_agent"
        with pytest.raises(BadRequest):
            client.ask("al ice", "hi")

    await in_thread(tenant, work)
    with pytest.raises(BadRequest, match="inside `with`"):
        SyncClient().ask(ALICE, "hi")
