"""Servers that go and come back in the middle of a turn's text."""

import asyncio
import json
import os
import signal
from urllib.parse import urlsplit

import pytest

from lab.support.nats_server import NatsServer
from tests.sdk.turns.conftest import Way
from tests.sdk.turns.test_turns import WORDS
from tests.support.conditions import until
from tests.support.gateway import gateway_process, serving
from tests.support.tenants import ALICE, Tenant
from turnstile import Client

SLOW = json.dumps({"steps": [{"text": WORDS, "chunks": 40, "delay_seconds": 0.05}]})


async def is_free(port: int | None) -> bool:
    """Whether nobody serves there."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest.mark.long
async def test_a_gateway_that_is_killed_is_followed_by_another_and_no_text_is_lost(
    tenant: Tenant, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    pieces: list[str] = []
    async with gateway_process(tenant.stack) as (pid, url), Client(url, token=token) as client:
        turn = client.ask(ALICE, SLOW)
        waiting = asyncio.create_task(turn.result(20))
        text = aiter(turn)
        pieces += [await anext(text) for _ in range(5)]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: is_free(urlsplit(url).port), 25, "the gateway is gone")
        async with serving(tenant.stack, port=urlsplit(url).port):
            pieces += [piece async for piece in text]
            assert (await waiting).value == WORDS == "".join(pieces)
        assert f"waiting: the gateway at {url} does not answer" in caplog.text
        assert f"the gateway at {url} answers again" in caplog.text


async def test_a_nats_that_is_killed_loses_no_result(client: Client, way: Way, nats: NatsServer) -> None:
    """Text may be lost with it, but not over HTTP: there it comes from the card."""
    turn = client.ask(ALICE, SLOW)
    text = aiter(turn)
    pieces = [await anext(text) for _ in range(5)]
    nats.kill()
    try:
        await asyncio.sleep(0.3)
    finally:
        nats.start()
    pieces += [piece async for piece in text]
    assert (await turn.result(20)).value == WORDS
    assert "".join(pieces) == WORDS if way.over_http else WORDS.startswith("".join(pieces[:5]))
    assert (await client.ask(ALICE, SLOW).result(20)).ok
