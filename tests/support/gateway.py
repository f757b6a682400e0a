"""A gateway in this process, and clients of it."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.processes.piped import piped
from tests.support.processes.stack import Stack
from turnstile.gateway.app import Gateway
from turnstile.gateway.bounds import Doors, GatewayLimits
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.ledger.access.tokens import add_token
from turnstile.ledger.pool import Pool
from turnstile.processes.connections import open_store
from turnstile.processes.gateway import run_gateway
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.settings import Settings


@asynccontextmanager
async def serving(stack: Stack, settings: Settings | None = None, **changes: Any) -> AsyncGenerator[str]:
    """The address of a gateway in this process; `changes` are of its section."""
    base = stack.settings if settings is None else settings
    own = base.model_copy(update={"gateway": base.gateway.model_copy(update=changes)})
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    endpoints = stack.endpoints
    running = asyncio.create_task(
        run_gateway(own, endpoints.database_url, endpoints.nats_url, stop, ready=ready.set_result)
    )
    await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    try:
        yield ready.result()
    finally:
        stop.set()
        await running


@asynccontextmanager
async def gateway_process(stack: Stack) -> AsyncGenerator[tuple[int, str]]:
    """`turnstile gateway` as a process: its id, and where it serves; it may be killed."""
    started = await piped(("gateway", "--config", stack.config), os.environ, cwd=stack.directory)
    assert started.stderr is not None
    async with asyncio.timeout(60):
        while "gateway serves" not in (line := (await started.stderr.readline()).decode()):
            assert line, "the gateway ended"
    yield started.pid, line.split()[-1]
    started.send_signal(signal.SIGTERM)
    assert await started.wait() in (0, -signal.SIGKILL)


def _let_be(_: object) -> None:
    """A client without a connection."""


@asynccontextmanager
async def composed(
    stack: Stack, *, origins: Iterable[str] = (), once: OneTimeLinks | None = None, **limits: Any
) -> AsyncGenerator[Gateway]:
    """A gateway without a server, for `asking`: what it holds and the statements that it sends can be counted."""
    pool = Pool(stack.endpoints.database_url, size=2, name="composed", read_only=True)
    given: dict[str, Any] = {"rate": 0.0, "heartbeat_seconds": 0.2, **limits}
    chosen, doors = GatewayLimits(**given), Doors(frozenset({"here", "localhost"}), frozenset(origins))
    told: dict[str, Any] = {"default_channel": ChannelId("public"), "abort": _let_be, "once": once}
    told["store"] = open_store(stack.settings.artifacts)
    made = Gateway(pool, stack.conn, chosen, doors, **told)
    try:
        yield made
    finally:
        await made.feeds.close()
        await pool.close()


def asking(gateway: Gateway, token: str) -> httpx.AsyncClient:
    """A client of a gateway without a server; it gets an answer when all of it is there."""
    transport = httpx.ASGITransport(app=gateway.app)
    return httpx.AsyncClient(transport=transport, base_url="http://here", headers={"authorization": f"Bearer {token}"})


async def gauges(metrics: int) -> dict[str, float]:
    """What a gateway holds: its open connections, streams and feeds."""
    async with httpx.AsyncClient() as web:
        text = (await web.get(f"http://127.0.0.1:{metrics}/metrics")).text
    found = re.findall(r"^turnstile_http_(connections|open_streams|feeds) (\S+)$", text, re.MULTILINE)
    assert len(found) == 3
    return {name: float(value) for name, value in found}


async def token_of(
    stack: Stack, project: ProjectId, role: GatewayRole = GatewayRole.OPERATOR, channel: str | None = None
) -> str:
    """A new token of the project."""
    only = None if channel is None else ChannelId(channel)
    secret, _ = await stack.pool.run(lambda conn: add_token(conn, project, role, channel=only))
    return secret.text


@asynccontextmanager
async def client(url: str, token: str | None, **headers: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with this token."""
    own = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers={**own, **headers}, timeout=30) as made:
        yield made


@dataclass(frozen=True)
class Sent:
    """A server-sent event."""

    event: str
    data: Any
    id: str | None


async def events_of(response: httpx.Response) -> AsyncIterator[Sent]:
    """The events of a stream, read as the WHATWG says as far as the gateway writes them."""
    event, data, last = "message", "", None
    async for line in response.aiter_lines():
        if not line:
            if data:
                yield Sent(event, json.loads(data), last)
            event, data, last = "message", "", None
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                event = value
            case "data":
                data += value
            case "id":
                last = value
            case _:
                pass


class Folded:
    """What a client makes of the events of a turn: its text by step, and whether chunks were lost or came twice."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.cards: dict[str, Mapping[str, Any]] = {}
        self.last: str | None = None
        self.lost = self.doubled = self.resets = self.chunks = 0
        self.outcome: Mapping[str, Any] | None = None
        self.order: list[str] = []
        self._place: dict[str, tuple[int, int]] = {}
        self._ids: set[str] = set()

    def take(self, sent: Sent) -> None:
        """One event."""
        if sent.id is not None:
            self.doubled += sent.id in self._ids
            self._ids.add(sent.id)
            self.last = sent.id
        self.order.append(sent.event)
        data = sent.data
        match sent.event:
            case "chunk":
                self._chunk(data)
            case "reset":
                self.resets += 1
                self.text[data["step_id"]] = ""
                self._place.pop(data["step_id"], None)
            case "card":
                self.cards[data["card_id"]] = data
            case "outcome":
                self.outcome = data
            case _:
                pass

    def _chunk(self, data: Mapping[str, Any]) -> None:
        self.chunks += 1
        step, attempt, index = data["step_id"], data["attempt"], data["index"]
        before = self._place.get(step)
        if before is None or before[0] < attempt:
            self.text[step] = ""
            expected = 0
        else:
            expected = before[1] + 1
        self.lost += index != expected
        self._place[step] = (attempt, index)
        if data["chunk_type"] == "content":
            self.text[step] += data["content"]
