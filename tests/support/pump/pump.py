"""A client of the message pump that sends messages, receives replies, and reads the ledger."""

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.tenants import CHANNEL, Tenant, new_tenant
from turnstile.ledger.pool import _CountingConnection
from turnstile.ledger.pump.thread_views import list_thread_messages
from turnstile.ledger.queries import Connection, parse
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import uuid7
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.threads import ThreadId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.descriptions import MessageLine
from turnstile.schema.wire.inbox import SendReply
from turnstile.transport.json_messages import decode_object

ORGANISM = "tests.support.pump.organism"
_QUERIES = parse(Path(__file__).with_name("threads.sql").read_text(encoding="utf-8"))


def pump_config(config: Config = QUICK, **pump: Any) -> Config:
    """A configuration with the organism's listeners, on a worker target of its own."""
    return {**config, "pump": {"listeners": [ORGANISM], "worker_target": f"pump-{uuid7()}", **pump}}


@dataclass(frozen=True)
class Heard:
    """A reply event."""

    kind: str
    reason: str
    sender: str | None
    payload: str | None
    event: JsonObject
    headers: dict[str, str]

    @property
    def said(self) -> str:
        """The text in a `done` payload of the organism."""
        assert self.payload is not None, self.event
        assert self.payload.startswith("<done><said>"), self.payload
        text = self.payload.removeprefix("<done><said>").removesuffix("</said></done>")
        return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@dataclass
class Caller:
    """A client of a new project."""

    tenant: Tenant
    events: dict[str, list[Heard]] = field(default_factory=dict[str, list[Heard]])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def request(self, to: str, payload: str | Payload | JsonObject, **fields: Any) -> SendReply:
        """Call `send`; returns its reply, accepted or not."""
        asked, told = request_of(to, payload, fields)
        reply = await self.tenant.client.request("send", asked, headers=told)
        return SendReply.model_validate(reply)

    async def send(self, to: str, payload: str | Payload | JsonObject, **fields: Any) -> SendReply:
        """Call `send`, which must be accepted; returns its reply."""
        reply = await self.request(to, payload, **fields)
        assert reply.status is ReplyStatus.ACCEPTED, reply
        return reply

    async def heard(self, sent: SendReply | str, timeout: float = 25.0) -> Heard:
        """Wait for the reply event of a message."""
        message = sent if isinstance(sent, str) else str(sent.message_id)
        async with asyncio.timeout(timeout):
            while message not in self.events:
                self.changed.clear()
                await self.changed.wait()
        return self.events[message][0]

    async def ask(self, to: str, payload: str | Payload | JsonObject, **fields: Any) -> Heard:
        """Send a message and wait for its reply event."""
        return await self.heard(await self.send(to, payload, **fields))

    async def on_event(self, msg: Msg) -> None:
        """Record a reply event."""
        event = decode_object(msg.data)
        known: Any = event
        heard = Heard(
            *(known["kind"], known["reason"], known["from"], known["payload"]), event, dict(msg.headers or {})
        )
        self.events.setdefault(known["message_id"], []).append(heard)
        self.changed.set()

    async def messages(self, sent: SendReply) -> list[MessageLine]:
        """The messages of a thread, in order."""
        thread = ThreadId(str(sent.thread_id))
        return await self.tenant.pool.run(lambda conn: list_thread_messages(conn, thread, row_limit=10_000))

    async def chain(self, sent: SendReply) -> list[str]:
        """One line for each message of a thread: sender, chain, kind, status and effect."""
        lines = await self.messages(sent)
        return [f"{line.from_id} > {line.chain} {line.kind} {line.status} {line.effect}" for line in lines]

    async def stored(self) -> list[str]:
        """The messages whose answers are in the event stream, once for each time."""
        return [str(event.payload["message_id"]) for event in await self.tenant.events("sys.pump.reply")]


def request_of(
    to: str, payload: str | Payload | JsonObject, fields: dict[str, Any]
) -> tuple[JsonObject, dict[str, str]]:
    """The arguments of a `send`; `sender` is a header."""
    told = {headers.SENDER: fields.pop("sender")} if "sender" in fields else {}
    return {"to": to, "payload": payload.to_xml().decode() if isinstance(payload, Payload) else payload, **fields}, told


@asynccontextmanager
async def calling_in(stack: Stack) -> AsyncGenerator[Caller]:
    """A caller in a new project, subscribed to its reply events."""
    caller = Caller(new_tenant(stack))
    subject = subjects.pump_reply(caller.tenant.project, CHANNEL)
    subscription = await stack.conn.subscribe(subject, caller.on_event)
    try:
        yield caller
    finally:
        await stack.conn.unsubscribe(subscription)


async def assert_threads(conn: Connection) -> None:
    """Raise `AssertionError` with the rows of threads that break protocol §9."""
    broken = {
        name: [json.dumps(dict(row), default=str) for row in found]
        for name, each in _QUERIES.items()
        if (found := await conn.fetch(each.sql))
    }
    assert not broken, broken


@contextmanager
def noting_statements(ours: set[str]) -> Generator[list[str]]:
    """The statements of this process that have an argument in `ours`, in order."""
    seen: list[str] = []
    fetch = _CountingConnection.fetch

    async def counted(self: _CountingConnection, query: str, *args: Any) -> list[Any]:
        if ours & {str(arg) for arg in args}:
            seen.append(query)
        return await fetch(self, query, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_CountingConnection, "fetch", counted)
        yield seen


@asynccontextmanager
async def noting_messages(caller: Caller) -> AsyncGenerator[list[tuple[str, tuple[str, ...]]]]:
    """Subject and names of headers of every message of the caller's project."""
    heard: list[tuple[str, tuple[str, ...]]] = []

    async def on_message(msg: Msg) -> None:
        heard.append((msg.subject, tuple(sorted(msg.headers or {}))))

    conn = caller.tenant.stack.conn
    watch = await conn.subscribe(f"cg.v1r4.{caller.tenant.project}.>", on_message)
    try:
        yield heard
    finally:
        await conn.unsubscribe(watch)
