"""Finds out which replica of a tool runs a call, so that no two run the same call.

While a replica runs a call it replies on a core subject of that call. A replica that gets a command delivered before,
or repeated by the safety net, sends a request there first. If no replica subscribes, the server says so at once, so a
dead replica costs no waiting; a stuck one that is still connected counts as running the call. The first delivery of a
command needs no request. Costs one subscription per running call. Two replicas that ask within the same millisecond
may both find none.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg
from pydantic import ValidationError

from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import ChannelId, ProjectId, ToolCallId
from turnstile.schema.tools import ToolCallHolder
from turnstile.schema.wire import subjects
from turnstile.sdk.tools.commands import CallCommand
from turnstile.sdk.tools.spec import ToolSpec
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import encode

_ASK_SECONDS = 2.0
_REPLY = re.compile(r"(_INBOX[A-Za-z0-9_-]*|_R_)\.[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True, slots=True)
class NotRunning:
    """No connected replica runs it."""


@dataclass(frozen=True, slots=True)
class NoReply:
    """Unknown: a replica subscribes and does not reply, or NATS is down."""


class Presence:
    """Lets one replica of a tool announce the calls that it runs, and ask about others."""

    def __init__(self, conn: NatsConnection, spec: ToolSpec, instance: str) -> None:
        self._conn = conn
        self._spec = spec
        self._instance = instance

    async def check(self, project: ProjectId | None) -> None:
        """Raises `ConfigError` if this user may not ask or reply: every repeated call would then seem to be running."""
        subject = self._subject(project or ProjectId("any"), ChannelId("any"), ToolCallId("check"))
        subscription = await self._conn.subscribe(subject, _ignore)
        await self._conn.send(subject, b"")
        try:
            await self._conn.verify()
        except ConfigError as error:
            raise ConfigError(
                f"tool {self._spec.name}: {error}; `turnstile docs tools` says which permissions it needs"
            ) from None
        finally:
            await self._conn.unsubscribe(subscription)

    async def holder(self, command: CallCommand) -> ToolCallHolder | NotRunning | NoReply:
        """The replica that runs the call. Ask before entering `held`: inside it this replica would reply to itself."""
        subject = self._subject(command.project_id, command.channel_id, command.tool_call_id)
        try:
            answer = await self._conn.request(subject, b"", timeout=_ASK_SECONDS)
            return ToolCallHolder.model_validate_json(answer.data)
        except nats.errors.NoRespondersError:
            return NotRunning()
        except (*NATS_TROUBLE, ValidationError):
            return NoReply()

    @asynccontextmanager
    async def held(self, command: CallCommand) -> AsyncGenerator[None]:
        """Inside the block, reply to every replica that asks that the call runs here."""
        reply = encode(ToolCallHolder(instance=self._instance, stream_seq=command.stream_seq).model_dump(mode="json"))

        async def on_question(msg: Msg) -> None:
            if _REPLY.match(msg.reply):  # a reply to any other subject could look like an event
                await self._conn.send(msg.reply, reply)

        subject = self._subject(command.project_id, command.channel_id, command.tool_call_id)
        subscription = await self._conn.subscribe(subject, on_question)
        try:
            yield
        finally:
            await self._conn.unsubscribe(subscription)

    def _subject(self, project: ProjectId, channel: ChannelId, call: ToolCallId) -> str:
        terms = self._spec.terms
        return subjects.tool_presence(project, channel, terms.target, terms.suffix, call)


async def _ignore(_: Msg) -> None:
    pass
