"""Several gateways under load: one is killed, or stopped, and its clients go on at the other."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable

import pytest

from lab.bench.gateway.clients import Answer, Reader, Readers, read_turns
from tests.e2e.gateway.test_streams import begun, follow
from tests.support.gateway import Folded, client, gateway_process, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant

TEXT = "".join(f"word-{number} " for number in range(150))
PLAY = json.dumps({"steps": [{"text": TEXT, "chunks": 150, "delay_seconds": 0.06}]})
CLIENTS, MANY = 20, 300


async def ended_in_the_middle(
    tenant: Tenant, clients: int, first: str, second: str, end: Callable[[], Awaitable[object]]
) -> list[Answer]:
    """What clients got of a turn at two gateways, the first of which is ended once some of the text has come."""
    await tenant.agent("player")
    token = await token_of(tenant.stack, tenant.project)
    async with client(first, token) as web:
        turn = await begun(web, PLAY)
        readers = tuple(Reader(turn=turn) for _ in range(clients))
        shared = Readers(urls=(first, second), token=token, readers=readers, text=TEXT)
        reading = asyncio.create_task(read_turns(shared))
        chunks = random.randint(40, 100)  # noqa: S311 -- when to end it
        await follow(web, f"/v1/turns/{turn}/events", Folded(), cut_after=chunks)
        assert not reading.done()
        await end()
    answers = await reading
    await tenant.ended(turn)
    for answer in answers:
        assert (answer.lost, answer.doubled, answer.exact, answer.broken) == (0, 0, True, 1), answer
    return answers


async def signalled(pid: int, how: signal.Signals) -> None:
    """Send a signal."""
    os.kill(pid, how)


def assert_whole(answers: list[Answer]) -> None:
    """Each client was told to come back, and no event was cut."""
    assert {(answer.reconnects, answer.halved) for answer in answers} == {(1, 0)}


async def test_where_a_gateway_is_killed_all_clients_go_on_at_another(here: Stack, url: str, tenant: Tenant) -> None:
    async with gateway_process(here) as (pid, first):
        answers = await ended_in_the_middle(tenant, CLIENTS, first, url, lambda: signalled(pid, signal.SIGKILL))
    assert not any(answer.reconnects for answer in answers)


@pytest.mark.long
async def test_a_gateway_that_stops_sends_all_clients_away_with_whole_events(
    here: Stack, url: str, tenant: Tenant
) -> None:
    first = serving(here)
    address = await first.__aenter__()
    answers = await ended_in_the_middle(tenant, CLIENTS, address, url, lambda: first.__aexit__(None, None, None))
    assert_whole(answers)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_many_clients_of_a_process_go_on_at_another(here: Stack, tenant: Tenant, how: signal.Signals) -> None:
    async with gateway_process(here) as (pid, first), gateway_process(here) as (_, second):
        answers = await ended_in_the_middle(tenant, MANY, first, second, lambda: signalled(pid, how))
    if how is signal.SIGTERM:
        assert_whole(answers)
