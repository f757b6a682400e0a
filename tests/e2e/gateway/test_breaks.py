"""What breaks while clients read: a client that takes nothing, a NATS that forgets."""

import asyncio
import socket
from urllib.parse import urlsplit

import httpx

from tests.e2e.gateway.test_streams import LONG, WORDS, begun, follow
from tests.support.gateway import Folded, client, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.schema.wire import subjects
from turnstile.transport.streams import call_api


async def test_a_client_that_takes_nothing_is_cut_and_can_go_on(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    big = "x" * 200_000
    async with serving(here, slow_reader_seconds=0.5) as url:
        place = urlsplit(url)
        async with client(url, token) as web:
            turn = await begun(web, f'{{"steps": [{{"text": "{big}"}}]}}')
            await tenant.ended(turn)
            with socket.socket() as stuck:
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                stuck.connect((place.hostname, place.port))
                stuck.sendall(
                    f"GET /v1/turns/{turn}/events HTTP/1.1\r\nhost: {place.netloc}\r\n"
                    f"authorization: Bearer {token}\r\n\r\n".encode()
                )
                stuck.setblocking(False)
                await asyncio.sleep(2)
                got = await asyncio.to_thread(_drained, stuck)
            assert b"event: outcome" not in got
            folded = Folded()
            assert await follow(web, f"/v1/turns/{turn}/events", folded)
            assert folded.outcome is not None
            assert folded.outcome["output"]["text"] == big


def _drained(stuck: socket.socket) -> bytes:
    """What comes until the connection is over."""
    got = b""
    stuck.settimeout(5)
    try:
        while part := stuck.recv(65_536):
            got += part
    except ConnectionError:
        pass
    return got


async def test_where_the_stream_of_text_is_gone_the_card_has_it(
    here: Stack, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    """As after a restart of NATS, whose memory it was in."""
    await tenant.agent("player")
    turn = await begun(web, LONG)
    path, folded = f"/v1/turns/{turn}/events", Folded()
    assert not await follow(web, path, folded, cut_after=8)
    await call_api(here.conn, f"STREAM.PURGE.{subjects.STR_STREAM}", {})
    async with serving(here) as other, client(other, await token_of(here, tenant.project)) as fresh:
        assert await follow(fresh, path, folded)
    assert (folded.lost, folded.doubled, folded.resets) == (0, 0, 1)
    assert {card["content"]["text"] for card in folded.cards.values()} == {WORDS}


async def test_the_callers_trace_goes_on(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    trace = "0af7651916cd43dd8448eb211c80319c"
    for given, kept in ((f"00-{trace}-b7ad6b7169203331-01", True), ("nonsense", False)):
        body = {"agent_id": "alice", "instruction": '{"steps": [{"text": "x"}]}'}
        made = await web.post("/v1/turns", json=body, headers={"traceparent": given, "prefer": "wait=20"})
        assert (made.json()["trace_id"] == trace) is kept
        card = await web.get(made.headers["location"])
        assert card.status_code == 200
    [row] = await tenant.rows(
        "SELECT DISTINCT metadata ->> 'author_id' AS author FROM public.cards "
        "WHERE tenant_id = $1 AND metadata ->> 'type' = 'task.instruction'",
        tenant.project,
    )
    assert row["author"].startswith("token.")
