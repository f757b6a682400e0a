"""Who runs a call: how replicas of a tool keep from running one call twice.

While a replica runs a call it answers on a core subject of that call alone. Whoever gets a command that was delivered
before, or repeated by the safety net, asks there first: nobody listening is told by the server at once, so a dead
replica costs no waiting, and a stuck one that is still connected is waited for. The first delivery of a command asks
nobody. Costs one subscription per running call. Two replicas asking within the same millisecond may both find nobody.
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
    """Somebody holds it and does not answer, or NATS is away: it cannot be known."""


class Presence:
    """What one replica tells and asks about the calls of one tool."""

    def __init__(self, conn: NatsConnection, spec: ToolSpec, instance: str) -> None:
        self._conn = conn
        self._spec = spec
        self._instance = instance

    async def check(self, project: ProjectId | None) -> None:
        """Raises `ConfigError` if this user may not ask or answer: it would take every repeated command for held."""
        subject = self._subject(project or ProjectId("any"), ChannelId("any"), ToolCallId("check"))
        subscription = await self._conn.subscribe(subject, _ignore)
        await self._conn.send(subject, b"")
        try:
            await self._conn.verify()
        except ConfigError as error:
            raise ConfigError(f"tool {self._spec.name}: {error}; see docs/tools.md, permissions") from None
        finally:
            await self._conn.unsubscribe(subscription)

    async def holder(self, command: CallCommand) -> ToolCallHolder | NotRunning | NoReply:
        """Who runs the call. Ask before `held`, or the answer is one's own."""
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
        """Tell whoever asks that the call runs here."""
        told = encode(ToolCallHolder(instance=self._instance, stream_seq=command.stream_seq).model_dump(mode="json"))

        async def on_question(msg: Msg) -> None:
            if _REPLY.match(msg.reply):  # anywhere else the answer would land in somebody's events
                await self._conn.send(msg.reply, told)

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
