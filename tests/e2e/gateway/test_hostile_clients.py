"""Clients that send the wrong thing, too much, too slowly or not at all: told why or cut, and nothing is held."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.gateway.test_access import code
from tests.e2e.gateway.test_streams import LONG, begun
from tests.gateway.test_heads import AMBIGUOUS
from tests.support.gateway import client, serving, token_of
from tests.support.guarded import CONNECTIONS, Guarded, ended
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from tests.support.tools import definition
from turnstile.ledger.roster import put_tool


async def test_a_body_of_a_hundred_megabytes_is_refused_and_its_client_told_why(url: str, tenant: Tenant) -> None:
    size, piece = 100 << 20, b" " * (1 << 20)

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // len(piece)):
            yield piece

    json_type = {"content-type": "application/json"}
    for token in (await token_of(tenant.stack, tenant.project), None):
        async with client(url, token) as web:
            for headers in ({"content-length": str(size)}, {}):
                answer = await web.post("/v1/turns", content=pieces(), headers=json_type | headers)
                assert code(answer) == ((401, "unauthenticated") if token is None else (413, "body_too_large"))


async def test_clients_that_are_slow_are_cut_and_hold_up_nobody(guarded: Guarded) -> None:
    body = ("content-type: application/json", "content-length: 1000")
    beginnings = [
        b"",
        guarded.head("GET /v1/agents HTTP/1.1"),
        guarded.head("POST /v1/turns HTTP/1.1", *body) + b"\r\n{",
        guarded.head("GET /v1/agents HTTP/1.1") + b"\r\nGET /v1/ag",
    ]

    async def trickle(beginning: bytes, letter: bytes) -> float:
        async with guarded.connected() as (reader, writer):
            writer.write(beginning)
            reading = asyncio.create_task(ended(reader))
            while not reading.done():
                if letter:
                    writer.write(letter)
                await asyncio.wait([reading], timeout=0.1)
            return reading.result()[0]

    slow = [asyncio.create_task(trickle(b, letter)) for b in beginnings for letter in (b"", b"x") for _ in "abc"]
    async with client(guarded.url, guarded.token) as web:
        took: list[float] = []
        while not all(task.done() for task in slow):
            began = time.monotonic()
            assert (await web.get("/v1/agents")).status_code == 200
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.05)
    assert statistics.median(took) < 1
    assert max(task.result() for task in slow) < 5


async def test_a_connection_on_which_nothing_is_asked_is_closed(guarded: Guarded) -> None:
    async with guarded.connected() as (reader, writer):
        seconds, answer = await ended(reader)
        assert answer == b""
        assert seconds < 3
    async with guarded.connected() as (reader, writer):
        writer.write(guarded.head("GET /v1/agents HTTP/1.1") + b"\r\n")
        seconds, answer = await ended(reader)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert seconds < 3
    # A second request that came with the first and never ends.
    rest = guarded.head("POST /v1/turns HTTP/1.1", "content-type: application/json", "content-length: 9") + b"\r\n{"
    async with guarded.connected() as (reader, writer):
        writer.write(guarded.head("GET /v1/agents HTTP/1.1") + b"\r\n" + rest)
        seconds, answer = await ended(reader)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert seconds < 4


async def test_whoever_has_no_token_is_not_kept(guarded: Guarded) -> None:
    for path in ("/health", "/v1/openapi.json", "/v1/turns", "/x"):
        taken: list[float] = []
        while len(taken) < 5 and min(taken, default=1.0) > 0.9:  # whoever is idle is cut after a second
            async with guarded.connected() as (reader, writer):
                writer.write(f"GET {path} HTTP/1.1\r\nhost: {urlsplit(guarded.url).netloc}\r\n\r\n".encode())
                seconds, answer = await ended(reader)
                assert b"connection: close" in answer
                taken.append(seconds)
        assert min(taken) < 0.9


async def test_more_connections_than_may_be_are_told_so(guarded: Guarded) -> None:
    async with contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(guarded.connected()) for _ in range(CONNECTIONS + 1)]
        async with client(guarded.url, guarded.token) as web:
            answer = await web.get("/v1/agents")
            assert code(answer) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"
        for _, writer in held:
            writer.close()
        await guarded.quiet()
        async with client(guarded.url, guarded.token) as web:
            assert (await web.get("/v1/agents")).status_code == 200


async def test_clients_that_vanish_leave_nothing(guarded: Guarded, tenant: Tenant) -> None:
    """In the middle of a body, of a wait and of streams, with and without a goodbye."""
    await tenant.agent("player")
    async with client(guarded.url, guarded.token) as web:
        turn = await begun(web, LONG, conversation_id="talk")
        requests = [
            guarded.head("POST /v1/turns HTTP/1.1", "content-type: application/json", "content-length: 99") + b"\r\n{",
            guarded.head(f"GET /v1/turns/{turn} HTTP/1.1", "prefer: wait=300") + b"\r\n",
            guarded.head(f"GET /v1/turns/{turn}/events HTTP/1.1") + b"\r\n",
            guarded.head("GET /v1/conversations/talk/events HTTP/1.1") + b"\r\n",
        ]
        for abrupt in (False, True):
            for request in requests:
                async with guarded.connected() as (reader, writer):
                    writer.write(request)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(2000), 0.3)
                    if abrupt:
                        writer.transport.abort()
        await web.post(f"/v1/turns/{turn}/stop", json={})
    await guarded.quiet()
    assert (await tenant.ended(turn)).view.error_code == "stopped"


async def test_an_answer_that_would_be_too_large_is_refused(web: httpx.AsyncClient, tenant: Tenant) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "x" * 60_000}},
    }  # one may have 64 KiB
    for number in range(300):
        await put_tool(tenant.pool, tenant.project, definition(f"tool_{number:03}", parameters=schema))
    assert code(await web.get("/v1/tools", params={"limit": "500"})) == (413, "result_too_large")
    names: list[str] = []
    query = {"limit": "100"}
    while True:
        page = (await web.get("/v1/tools", params=query)).json()
        names += [tool["tool_name"] for tool in page["tools"]]
        if page["next"] is None:
            break
        query = {"limit": "100", "cursor": page["next"]}
    assert names == [f"tool_{number:03}" for number in range(300)]


async def test_waits_count_as_streams_and_end_when_the_gateway_does(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    first = serving(here, max_streams_per_token=1)
    async with client(await first.__aenter__(), token) as web:
        turn = await begun(web, LONG)
        path, wait = f"/v1/turns/{turn}", {"prefer": "wait=300"}
        waiting = asyncio.create_task(web.get(path, headers=wait))
        await asyncio.sleep(0.3)
        assert (await web.get(path, headers=wait)).json()["status"] == "running"  # has no place to wait
        assert code(await web.get(f"{path}/events")) == (429, "too_many_streams")
        assert not waiting.done()
        await first.__aexit__(None, None, None)
        assert (await waiting).json()["status"] == "running"
    await tenant.ended(turn)


async def test_the_head_of_a_stream_is_no_stream(guarded: Guarded, tenant: Tenant) -> None:
    await tenant.agent("player")
    async with client(guarded.url, guarded.token) as web:
        turn = await begun(web, LONG)
        for path in (f"/v1/turns/{turn}/events?on_disconnect=cancel", f"/v1/turns/{turn}", "/v1/agents"):
            answer = await web.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
        assert (await web.get(f"/v1/turns/{turn}")).json()["ended_at"] is None
        await web.post(f"/v1/turns/{turn}/stop", json={})
    await tenant.ended(turn)


@pytest.mark.parametrize("head", range(len(AMBIGUOUS)))
async def test_a_head_that_can_be_read_two_ways_is_refused(guarded: Guarded, head: int) -> None:
    """Also behind a good request on the same connection."""
    before = guarded.head("GET /v1/agents HTTP/1.1") + b"\r\n"
    for sent, answers in ((AMBIGUOUS[head], [b"400"]), (before + AMBIGUOUS[head], [b"200", b"400"])):
        async with guarded.connected() as (reader, writer):
            writer.write(sent)
            _, said = await ended(reader)
        found = [line.split()[1] for line in said.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        if not answers[1:] or found != [b"200"]:  # the kernel may drop an answer of a connection that is being closed
            assert found == answers, said[:300]


async def test_a_port_that_was_forwarded_is_no_other_host(guarded: Guarded) -> None:
    async with client(guarded.url, guarded.token) as web:
        for host, status in (("localhost:9999", 200), ("127.0.0.1:1", 200), ("[::1]:80", 200), ("evil.example", 421)):
            assert (await web.get("/v1/agents", headers={"host": host})).status_code == status
        forged = {"host": "localhost:9999", "origin": "http://localhost:8888"}
        assert (await web.get("/v1/agents", headers=forged)).status_code == 403
