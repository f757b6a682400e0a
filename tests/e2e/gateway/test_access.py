"""Who may ask, by which name and from which page; what is refused says why, and tells nothing else."""

import asyncio
import base64
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway import client, composed, gateway_process, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from turnstile.gateway.http import bearers
from turnstile.ledger.access.tokens import revoke_token
from turnstile.schema.access import GatewayRole, Secret, new_secret, read_secret
from turnstile.schema.errors import TurnstileError

ASK = {"agent_id": ALICE, "instruction": json.dumps({"steps": [{"text": "hello"}]})}


@pytest.fixture(scope="module")
async def strict(here: Stack) -> AsyncIterator[str]:
    """A gateway with little patience."""
    changes: dict[str, Any] = {
        "max_body_kb": 4,
        "request_timeout_seconds": 0.5,
        "request_burst": 20,
        "requests_per_second": 5.0,
        "max_streams_per_token": 2,
        "allowed_origins": ["https://app.example"],
        "allowed_hosts": ["api.example"],
    }
    async with serving(here, **changes) as url:
        yield url


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"] == f"urn:turnstile:problem:{problem['code']}"
    assert "Traceback" not in answer.text
    return answer.status_code, problem["code"]


async def test_without_a_valid_token_nothing_is_told(url: str, tenant: Tenant) -> None:
    token = await token_of(tenant.stack, tenant.project)
    known = read_secret(token)
    assert known is not None
    wrong = [
        None,
        "tsk_x",
        new_secret().text,
        f"tsk_{known.token_id}_{new_secret().secret}",
        token[:-1],
        token + "A",
        token.upper(),
    ]
    details: set[str] = set()
    for given in wrong:
        async with client(url, given) as web:
            for path in ("/v1/turns", "/v1/turns/x", "/v1/turns/x/events", "/v1/agents"):
                answer = await web.get(path)
                assert code(answer) == (401, "unauthenticated"), given
                assert answer.headers["www-authenticate"] == "Bearer"
            details.add(answer.json()["detail"])
            assert code(await web.post("/v1/turns", json=ASK)) == (401, "unauthenticated")
    assert len(details) == 2  # none, and not valid
    async with client(url, None) as web:
        both = [("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}")]
        assert code(await web.get("/v1/turns", headers=both)) == (401, "unauthenticated")
        assert code(await web.get("/v1/turns", params={"access_token": token})) == (401, "unauthenticated")
    async with client(url, token) as web:
        assert code(await web.get("/v1/turns", params={"token": token})) == (400, "bad_request")


async def test_roles_and_channels(url: str, tenant: Tenant) -> None:
    await tenant.agent("player")
    stack, project = tenant.stack, tenant.project
    roles = {role: await token_of(stack, project, role) for role in GatewayRole}
    async with client(url, roles[GatewayRole.CLIENT]) as web:
        made = (await web.post("/v1/turns", json=ASK, headers={"Prefer": "wait=20"})).json()
    for role, asks in ((GatewayRole.VIEWER, False), (GatewayRole.APPROVER, False), (GatewayRole.OPERATOR, True)):
        async with client(url, roles[role]) as web:
            assert (await web.get(f"/v1/turns/{made['agent_turn_id']}")).status_code == 200
            answer = await web.post("/v1/turns", json=ASK, headers={"Prefer": "wait=20"})
            assert answer.status_code == (201 if asks else 403)
    async with client(url, await token_of(stack, project, GatewayRole.CLIENT, channel="u_ada")) as web:
        assert code(await web.get(f"/v1/turns/{made['agent_turn_id']}")) == (404, "unknown_turn")
        assert code(await web.get(f"/v1/turns/{made['agent_turn_id']}/events")) == (404, "unknown_turn")
        assert code(await web.post(f"/v1/turns/{made['agent_turn_id']}/stop", json={})) == (404, "unknown_turn")
        assert (await web.get("/v1/turns")).json()["turns"] == []
        assert code(await web.get("/v1/turns", params={"channel_id": "public"})) == (403, "forbidden")
        assert code(await web.post("/v1/turns", json={**ASK, "channel_id": "public"})) == (403, "forbidden")
        own = (await web.post("/v1/turns", json=ASK, headers={"Prefer": "wait=20"})).json()
        assert (own["channel_id"], own["status"]) == ("u_ada", "success")


async def test_a_foreign_project_is_like_none(url: str, web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    made = (await web.post("/v1/turns", json={**ASK, "conversation_id": "talk"}, headers={"Prefer": "wait=20"})).json()
    turn = made["agent_turn_id"]
    async with client(url, await token_of(tenant.stack, tenant.named("p-elsewhere").project)) as other:
        for path in (f"/v1/turns/{turn}", f"/v1/turns/{turn}/tree", f"/v1/turns/{turn}/events"):
            assert (await other.get(path)).text == (await other.get(path.replace(turn, "nobodys"))).text
        assert code(await other.post(f"/v1/turns/{turn}/stop", json={})) == (404, "unknown_turn")
        assert code(await other.get("/v1/conversations/talk")) == (404, "unknown_conversation")
        assert code(await other.get("/v1/conversations/talk/events")) == (404, "unknown_conversation")
        assert (await other.get("/v1/conversations")).json()["conversations"] == []
        assert (await other.get("/v1/agents")).json()["agents"] == []
        body = {"agent_id": "bob", "instruction": "x", "context_box_id": made["context_box_id"]}
        assert (await other.post("/v1/turns", json=body)).status_code == 404


async def revoked_in_the_middle(stack: Stack, tenant: Tenant, web: httpx.AsyncClient, path: str, held: Secret) -> None:
    """Read a stream whose token is revoked at the first chunk; there must be no outcome."""
    async with web.stream("GET", path) as response:
        async for line in response.aiter_lines():
            if line.startswith("event: chunk"):
                await stack.pool.run(lambda conn: revoke_token(conn, tenant.project, held.token_id))
            assert "outcome" not in line


async def test_a_revoked_token_is_refused_and_its_streams_end(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.1)
    await tenant.agent("player")
    token = await token_of(here, tenant.project)
    held = read_secret(token)
    assert held is not None
    long = json.dumps({"steps": [{"text": "words " * 400, "chunks": 100, "delay_seconds": 0.02}]})
    async with serving(here, heartbeat_seconds=0.2) as url, client(url, token) as web:
        turn = (await web.post("/v1/turns", json={**ASK, "instruction": long})).json()["agent_turn_id"]
        path = f"/v1/turns/{turn}/events"
        with pytest.raises(httpx.RemoteProtocolError):
            await revoked_in_the_middle(here, tenant, web, path, held)
        assert code(await web.get("/v1/turns")) == (401, "unauthenticated")
    await tenant.ended(turn)


async def test_requests_of_a_known_token_are_none_of_a_stranger(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the ledger is asked whether it is still valid."""
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(bearers, "_FAILURES_PER_SECOND", 2.0)
    async with serving(here) as url, client(url, await token_of(here, tenant.project)) as web:
        answers = await asyncio.gather(*(web.get("/v1/agents") for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}


async def test_a_rebound_name_reaches_nothing(url: str, web: httpx.AsyncClient) -> None:
    """A page of evil.example whose name now means this machine sends its own name as Host."""
    port = urlsplit(url).port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "",
        "localhost.evil.example",
    ):
        assert code(await web.get("/v1/turns", headers={"host": host})) == (421, "host_not_allowed"), host
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}", "127.0.0.1", "[::1]:1"):  # forwarded ports
        assert (await web.get("/v1/turns", headers={"host": host})).status_code == 200


async def test_pages_of_other_origins_are_refused_unless_listed(strict: str, url: str, tenant: Tenant) -> None:
    async with client(strict, await token_of(tenant.stack, tenant.project)) as web:
        for origin in ("https://evil.example", "null", "https://app.example.evil.example", "file://", "x", "http://["):
            assert code(await web.get("/v1/turns", headers={"origin": origin})) == (403, "origin_not_allowed")
        listed = {"origin": "https://app.example"}
        asked = await web.options("/v1/turns", headers={**listed, "access-control-request-method": "POST"})
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (204, "https://app.example")
        answer = await web.get("/v1/turns", headers=listed)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
        own = await web.get("/v1/turns", headers={"origin": strict})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        assert (await web.get("/v1/turns", headers={"host": "api.example"})).status_code == 200


async def test_bad_bodies_are_refused_and_change_nothing(web: httpx.AsyncClient, strict: str, tenant: Tenant) -> None:
    await tenant.agent("player")
    json_type = {"content-type": "application/json"}
    bodies: list[tuple[bytes, dict[str, str], tuple[int, str]]] = [
        (b"{", json_type, (400, "bad_request")),
        (b"[]", json_type, (400, "bad_request")),
        (b"\xff\xfe", json_type, (400, "bad_request")),
        (b'{"agent_id": "alice", "instruction": "\\ud800"}', json_type, (400, "bad_request")),
        (b'{"agent_id": "alice", "instruction": "a\\u0000b"}', json_type, (400, "bad_request")),
        (b'{"agent_id": "alice", "instruction": "x", "metadata": {"a": 1e999}}', json_type, (400, "bad_request")),
        (b"[" * 100_000, json_type, (400, "bad_request")),
        (b'{"agent_id": "alice", "instruction": "x", "project_id": "p2"}', json_type, (400, "bad_request")),
        (b'{"agent_id": "a.b", "instruction": "x"}', json_type, (400, "bad_request")),
        (b'{"agent_id": "bob", "instruction": "x"}', json_type, (404, "unknown_agent")),
        (json.dumps(ASK).encode(), {"content-type": "text/plain"}, (415, "unsupported_media_type")),
        (b"agent_id=alice", {"content-type": "application/x-www-form-urlencoded"}, (415, "unsupported_media_type")),
        (json.dumps(ASK).encode(), {**json_type, "content-encoding": "gzip"}, (415, "unsupported_media_type")),
        (json.dumps({**ASK, "instruction": "x" * 600_000}).encode(), json_type, (413, "text_too_large")),
        (b" " * 2_000_000, json_type, (413, "body_too_large")),
    ]
    for body, headers, expected in bodies:
        assert code(await web.post("/v1/turns", content=body, headers=headers)) == expected, body[:60]
    for key in ("", "x" * 300, "a\tb"):
        answer = await web.post("/v1/turns", json=ASK, headers={"idempotency-key": key})
        assert code(answer) == (400, "bad_request"), key
    for query in ("limit=0", "limit=501", "limit=x", "cursor=x", "who=me", "limit=1&limit=2", "agent_id=a.b"):
        assert code(await web.get(f"/v1/turns?{query}")) == (400, "bad_request"), query
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-01-01T00:00:00", "1e400", "\0"):
        assert code(await web.get("/v1/usage", params={"since": moment})) == (400, "bad_request"), moment
        cursor = base64.urlsafe_b64encode(f"{moment}|x".encode()).decode()
        for path in ("/v1/turns", "/v1/conversations"):
            assert code(await web.get(path, params={"cursor": cursor})) == (400, "bad_request"), moment
    long = await web.post("/v1/turns", json={**ASK, "x" * 50_000: 1})
    assert code(long) == (400, "bad_request")
    assert len(long.content) < 5000
    assert code(await web.get("/v1/elsewhere")) == (404, "not_found")
    assert code(await web.delete("/v1/turns")) == (405, "method_not_allowed")
    assert code(await web.get("/v1/turns/a%00b")) == (400, "bad_request")
    assert await tenant.count("state.agent_inbox") == 0

    async def blanks(number: int) -> AsyncIterator[bytes]:
        for _ in range(number):
            yield b" " * 1000

    async with client(strict, await token_of(tenant.stack, tenant.project)) as small:
        answer = await small.post("/v1/turns", content=blanks(20), headers=json_type)
        assert code(answer) == (413, "body_too_large")
        with pytest.raises(httpx.TransportError):  # the answer is not waited for, and so cut
            await small.post("/v1/turns", content=blanks(100_000), headers=json_type)


async def test_a_request_that_comes_a_byte_at_a_time_is_cut(strict: str, tenant: Tenant) -> None:
    place = urlsplit(strict)
    token = await token_of(tenant.stack, tenant.project)
    head = f"POST /v1/turns HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {token}\r\n"
    beginnings = (
        "",
        "GET / HT",
        head,
        head + "content-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        f"GET /health HTTP/1.1\r\nhost: {place.netloc}\r\n\r\nGET /v1",
    )

    async def trickle(beginning: str) -> float:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        began = asyncio.get_running_loop().time()
        writer.write(beginning.encode())
        try:
            async with asyncio.timeout(25):
                while True:
                    try:
                        async with asyncio.timeout(0.1):
                            if not await reader.read(1000):
                                break
                    except TimeoutError:
                        writer.write(b"x")
        except ConnectionError:
            pass
        finally:
            writer.close()
        return asyncio.get_running_loop().time() - began

    assert max(await asyncio.gather(*map(trickle, beginnings))) < 5


async def test_a_token_that_asks_too_often_is_told_when_to_come_back(strict: str, tenant: Tenant) -> None:
    async with client(strict, await token_of(tenant.stack, tenant.project)) as web:
        answers = [await web.get("/v1/agents") for _ in range(40)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 5 < len(refused) < 25
        assert code(refused[0]) == (429, "rate_limited")
        assert int(refused[0].headers["retry-after"]) >= 1
    async with client(strict, await token_of(tenant.stack, tenant.project)) as other:
        assert (await other.get("/v1/agents")).status_code == 200


async def _stranger(url: str) -> int:
    """The status that an unknown token gets, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    try:
        writer.write(
            f"GET /v1/agents HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {new_secret().text}\r\n\r\n".encode()
        )
        return int((await reader.read()).split(b" ", 2)[1])
    finally:
        writer.close()


async def _strangers(url: str, every_second: int, seconds: float) -> list[int]:
    """The statuses of requests with unknown tokens, at most so many a second; none waits for another's answer."""
    async with asyncio.TaskGroup() as group:
        end, sent = time.monotonic() + seconds, list[asyncio.Task[int]]()
        while time.monotonic() < end:
            sent.append(group.create_task(_stranger(url)))
            await asyncio.sleep(1 / every_second)
    return [task.result() for task in sent]


async def _times(url: str, tokens: Iterable[str], pause: float) -> list[float]:
    """Seconds that a request of each token took; all are answered."""
    took = list[float]()
    for token in tokens:
        async with client(url, token) as web:
            await asyncio.sleep(pause)
            begun = time.monotonic()
            answer = await web.get("/v1/agents")
            took.append(time.monotonic() - begun)
            assert answer.status_code == 200, answer.text
    return took


@pytest.mark.parametrize("seconds", [4.5, pytest.param(30.0, marks=pytest.mark.long)])
async def test_unknown_tokens_neither_lock_out_nor_slow_a_valid_one(
    here: Stack, tenant: Tenant, seconds: float
) -> None:
    """All of one address: strangers, tokens that are seen for the first time, and one that is no longer remembered."""
    fresh = [await token_of(here, tenant.project) for _ in range(5)]
    seldom = await token_of(here, tenant.project)
    async with gateway_process(here) as (_, url):
        flood = asyncio.create_task(_strangers(url, 200, seconds))
        await asyncio.sleep(1.0)  # their share is used up
        first, again = await asyncio.gather(
            _times(url, fresh, 0.2), _times(url, [seldom] * int((seconds - 1) / 3), 3.0)
        )
        statuses = Counter(await flood)
    assert statistics.median(first + again) < 0.5, (first, again)
    assert set(statuses) <= {401, 429}, statuses


async def test_tokens_that_come_together_are_looked_up_together(here: Stack, tenant: Tenant) -> None:
    """Thousands of strangers hold one connection, and a token that comes with them is among those of one statement."""
    text = await token_of(here, tenant.project)
    known = read_secret(text)
    assert known is not None
    async with composed(here) as gateway:
        access, pool = gateway.access, gateway.pool
        before = pool.round_trips
        strangers = [asyncio.create_task(access.principal(new_secret(), "10.0.0.1")) for _ in range(2000)]
        await asyncio.sleep(0)
        assert (await access.principal(known, "10.0.0.1")).project_id == tenant.project
        refused = await asyncio.gather(*strangers, return_exceptions=True)
        assert pool.round_trips - before <= 6
    codes = Counter(error.code for error in refused if isinstance(error, TurnstileError))
    assert codes["unauthenticated"] + codes["rate_limited"] == 2000
    assert codes["rate_limited"] > 1000
