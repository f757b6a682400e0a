"""What strangers send: bytes that are nearly HTTP, and requests that are nearly valid (protocol §14)."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote, urlencode

import pytest

from tests.e2e.gateway.test_access import ASK, code
from tests.support.fuzz import IDS, TEXTS, VALUES, Dice
from tests.support.gateway import asking, client, composed, token_of
from tests.support.guarded import CONNECTIONS, Guarded, ended
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.schema.ids import AgentTurnId

SHARE = 0.04
"""Of `--fuzz-cases`."""


def bent(dice: Dice, request: bytes) -> bytes:
    """Bytes that are nearly a request."""
    lines, oddities = request.split(b"\r\n"), [*ODD_LINES]
    for _ in range(dice.pick.randrange(1, 4)):
        place = dice.pick.randrange(len(lines))
        match dice.pick.randrange(6):
            case 0:
                lines.insert(max(1, place), dice.pick.choice(oddities))
            case 1:
                lines.insert(place, lines[place])
            case 2:
                del lines[place]
                lines = lines or [b""]
            case 3:
                cut = dice.pick.randrange(len(lines[place]) + 1)
                lines[place] = lines[place][:cut] + dice.pick.choice(ODD_BYTES) + lines[place][cut:]
            case 4:
                lines[0] = dice.pick.choice(ODD_BEGINS)
            case _:
                lines.append(dice.pick.choice(ODD_BODIES))
    return b"\r\n".join(lines)


ODD_LINES = [
    *(
        b"host: evil.example",
        b"content-length: 5",
        b"content-length: -1",
        b"content-length: 1, 2",
        b"content-length: x",
    ),
    *(b"transfer-encoding: chunked", b"transfer-encoding: chunked, chunked", b"transfer-encoding: gzip"),
    *(
        b" folded",
        b"\tfolded",
        b"x: " + b"y" * 40_000,
        b"x" * 40_000,
        b"a:b\nc:d",
        b"x: \0",
        b"\0: x",
        b": empty",
        b"x",
    ),
    *(b"expect: 100-continue", b"expect: x", b"connection: upgrade", b"upgrade: websocket", b"upgrade: h2c"),
    *(
        b"connection: close, keep-alive",
        b"authorization: Bearer x",
        b"last-event-id: \xff",
        b"prefer: wait=" + b"9" * 99,
    ),
    *(b"idempotency-key: \xe9", b"origin: null", b"origin: http://[", b"x-forwarded-for: 1.1.1.1", b"trailer: x"),
    *(b"traceparent: 00-" + b"a" * 600, b"content-encoding: gzip", b"content-type: text/plain", b"cookie: a=b"),
]
ODD_BYTES = [
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xff",
    b" ",
    b"\t",
    b"%00",
    b"%0d%0aX: y",
    b"%ff",
    b"?",
    b"#",
    b"//",
    b"..",
    b":",
]
ODD_BEGINS = [
    *(b"GET", b"GET  /v1/turns HTTP/1.1", b"GET /v1/turns", b"GET /v1/turns HTTP/9.9", b"GET /v1/turns HTTP/1.0", b""),
    *(b"PRI * HTTP/2.0", b"CONNECT evil.example:80 HTTP/1.1", b"GET http://evil.example/v1/turns HTTP/1.1"),
    *(
        b"OPTIONS * HTTP/1.1",
        b"TRACE /v1/turns HTTP/1.1",
        b"X" * 3000 + b" / HTTP/1.1",
        b"GET " + b"/" * 60_000 + b" HTTP/1.1",
    ),
    *(b"HEAD /v1/agents HTTP/1.1", b"PUT /v1/turns HTTP/1.1", b"POST /v1/turns HTTP/1.1", b"\x16\x03\x01\x02\0\x01"),
    *(b"GET /v1/turns?\xff HTTP/1.1", b"GET /v1/turns/%2e%2e/%2e%2e HTTP/1.1", b"GET /v1/turns?cursor=%00 HTTP/1.1"),
]
ODD_BODIES = [
    *(
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;ext=1\r\nhello\r\n0\r\nx: y\r\n\r\n",
        b"-1\r\n",
        b"ffffffffffffffff\r\n",
        b"xyz\r\n",
    ),
    *(b"{}", b"GET /v1/agents HTTP/1.1\r\n\r\n", b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\0" * 1000),
]


@pytest.mark.fuzz
async def test_bytes_of_any_kind_are_answered_or_cut(
    guarded: Guarded, tenant: Tenant, fuzz_share: Callable[[float], int]
) -> None:
    await tenant.agent("player")
    body = json.dumps(ASK).encode()
    bases = [
        guarded.head("GET /v1/agents HTTP/1.1") + b"\r\n",
        guarded.head("POST /v1/turns HTTP/1.1", "content-type: application/json", f"content-length: {len(body)}")
        + b"\r\n"
        + body,
        guarded.head("POST /v1/turns/x/stop HTTP/1.1", "content-type: application/json", "transfer-encoding: chunked")
        + b"\r\n2\r\n{}\r\n0\r\n\r\n",
        guarded.head("GET /v1/turns/x/events HTTP/1.1", "last-event-id: x:1.0.1.1") + b"\r\n",
    ]
    seen: Counter[int] = Counter()
    slots = asyncio.Semaphore(CONNECTIONS - 10)

    async def one(number: int) -> None:
        dice = Dice.of(number)
        sent = bent(dice, dice.pick.choice(bases))
        async with slots, guarded.connected() as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                if dice.chance(0.2):
                    writer.write_eof()
                _, answer = await ended(reader)
                statuses = [int(each) for each in re.findall(rb"^HTTP/1\.1 (\d{3})", answer, re.MULTILINE)]
                seen.update(statuses or [0])
                assert not {500, 502} & set(statuses), (number, sent[:300], answer[:300])
                assert b"Traceback" not in answer
                assert b"x: y" not in answer.partition(b"\r\n\r\n")[0].lower(), (number, answer[:300])

    await asyncio.gather(*(one(number) for number in range(fuzz_share(SHARE))))
    assert seen[400] > 10
    assert seen[200] > 5
    assert seen[0] > 0
    async with client(guarded.url, guarded.token) as web:
        assert (await web.get("/v1/agents")).status_code == 200
    for row in await tenant.rows("SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1", tenant.project):
        await tenant.ended(AgentTurnId(row["agent_turn_id"]))


@pytest.mark.fuzz
async def test_requests_of_any_kind_are_answered(
    here: Stack, tenant: Tenant, fuzz_share: Callable[[float], int]
) -> None:
    """Bodies, parameters, headers and paths of each endpoint: valid, nearly valid and invalid."""
    token = await token_of(here, tenant.project)
    async with composed(here) as gateway, asking(gateway, token) as web:
        slots = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            dice = Dice.of(number)
            endpoint = dice.pick.choice(gateway.endpoints)
            path = re.sub(r"\{\w+\}", lambda _: quote(_line(dice.pick.choice([*IDS, *TEXTS]))), endpoint.path)
            given: Any = dice.valid(endpoint.query)
            given = dice.bent(given) if dice.chance(0.6) else given
            asked = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
            query = urlencode({_line(name): _text(each) for name, each in asked.items()})
            chosen = dice.pick.sample(HEADERS, 2)
            headers = {name.encode(): _line(dice.pick.choice([*VALUES, *TEXTS])[:2000]) for name in chosen}
            body = None if endpoint.body is None else dice.payload(endpoint.body)
            async with slots, asyncio.timeout(30):
                answer = await web.request(
                    *(endpoint.method, path),
                    params=query,
                    content=body,
                    headers={b"content-type": b"application/json", **headers},
                )
            assert answer.status_code < 500, (number, endpoint.name, answer.text)
            if answer.status_code >= 400:
                code(answer)

        await asyncio.gather(*(one(number) for number in range(fuzz_share(SHARE * 2))))
        assert gateway.access.open_streams == 0


HEADERS = ["idempotency-key", "prefer", "last-event-id", "traceparent", "tracestate", "x-other"]


def _line(text: str) -> bytes:
    """What a client can send in one line."""
    return text.encode("utf-8", "replace").replace(b"\r", b"").replace(b"\n", b"")


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)[:500]
