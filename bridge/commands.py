"""Durable verbs: `cmd.sys.bridge.{verb}`, answered by `evt.sys.bridge.{verb}_ack` (protocol §5).

A command is acknowledged only after its answer is in the event stream, under a message id made of the command's place
and time in its stream, so a redelivery answers once. While a server is away it comes again after 2 to 30 s and is not
answered; what cannot be read is answered `rejected` and terminated. A verb may run more than once for one command:
`VerbRequest.command_id` tells it. At most `concurrency` commands run at a time.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, assert_never

from nats.aio.msg import Msg

from bridge.connection import NATS_TROUBLE, NatsConnection
from bridge.limitedlog import LimitedLog
from bridge.pull import ContinuousPull
from bridge.service import Answer, VerbHandler, VerbRequest, encode_reply, read_request, rejected, run_verb
from bridge.streams import COMMANDS_CONSUMER, declare_commands
from bridge.wire import decode_object, encode
from schema import headers, subjects
from schema.base import JsonObject
from schema.errors import BadRequest, TurnstileError
from schema.events import Message
from schema.ids import token
from schema.inbox import REQUEST_ID_LIMIT
from schema.ports import Publisher

_DELAY_SECONDS = (2, 30)
_BATCH = 64  # what waits here longer than the consumer's ack_wait is delivered twice

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """Answered: acknowledge."""


@dataclass(frozen=True, slots=True)
class Defer:
    """A server is away: deliver again after `delay` seconds, at least 2 (an undelayed nak spins)."""

    delay: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Can never be understood: never deliver again."""


Disposition: TypeAlias = Done | Defer | Reject


async def settle(msg: Msg, disposition: Disposition) -> None:
    """Tell JetStream what becomes of a message."""
    match disposition:
        case Done():
            await msg.ack()
        case Defer(delay):
            await msg.nak(delay=max(_DELAY_SECONDS[0], delay))
        case Reject():
            await msg.term()
        case _:
            assert_never(disposition)


def deferred(deliveries: int) -> Defer:
    """How long to wait after this many deliveries: 2, 4, 8, 16, then 30 seconds."""
    shortest, longest = _DELAY_SECONDS
    return Defer(min(longest, shortest ** min(deliveries, longest)))


@dataclass(frozen=True, slots=True)
class _Command:
    """A delivered command; `fault` says why it cannot be run."""

    request: VerbRequest
    request_id: str | None
    fault: BadRequest | None = None


def read_command(msg: Msg) -> _Command:
    """The command in a message; raises `BadRequest` if not even its subject can be read, so nobody can be answered."""
    place = msg.metadata
    command_id = f"{place.sequence.stream}-{int(place.timestamp.timestamp() * 1_000_000)}"
    subject = subjects.parse(msg.subject)
    bare = VerbRequest(subject.rest[-1], subject.project_id, subject.channel_id, b"", {}, "command", command_id)
    try:
        payload = decode_object(msg.data)
    except BadRequest as error:
        return _Command(bare, None, error)
    request_id = payload.pop("request_id", None)
    if not isinstance(request_id, str):
        request_id = None
    elif len(request_id) > REQUEST_ID_LIMIT:
        return _Command(bare, None, BadRequest(f"request_id has more than {REQUEST_ID_LIMIT} characters"))
    try:
        request = replace(read_request(msg, "command", encode(payload)), command_id=command_id)
    except BadRequest as error:
        return _Command(bare, request_id, error)
    return _Command(request, request_id)


def ack_event(command: _Command, answer: Answer, limit: int) -> Message:
    """The event that answers a command; the same message id for each of its deliveries."""
    request = command.request
    reply = answer.reply if command.request_id is None else {**answer.reply, "request_id": command.request_id}
    return Message(
        subjects.bridge_ack(request.project_id, request.channel_id, request.verb),
        encode_reply(reply, limit),
        _ack_headers(request, reply),
        required=True,
    )


def _ack_headers(request: VerbRequest, reply: JsonObject) -> dict[str, str]:
    try:
        known = headers.context_headers(request.headers)
        known.pop(headers.PARENT_SPAN, None)
        if agent := request.headers.get(headers.AGENT_ID):
            known[headers.AGENT_ID] = token(agent, headers.AGENT_ID)
    except BadRequest:  # the verb has rejected them; the answer goes out with a trace of its own
        known = headers.context_headers({})
    if isinstance(turn := reply.get("agent_turn_id"), str):
        known[headers.TURN_ID] = turn
    if isinstance(epoch := reply.get("turn_epoch"), int):
        known[headers.TURN_EPOCH] = str(epoch)
    return {
        **known,
        headers.PROJECT_ID: request.project_id,
        headers.CHANNEL_ID: request.channel_id,
        headers.TIMESTAMP: str(time.time_ns() // 1_000_000),
        headers.VERSION: subjects.VERSION,
        headers.MSG_TYPE: f"{request.verb}_ack",
        headers.SENDER: "turnstile.bridge",
        headers.MSG_ID: f"ack-{request.command_id}",
    }


class DurableCommands:
    """Runs durable verbs until told to stop. `unavailable` are exceptions that mean a server is away."""

    def __init__(
        self,
        conn: NatsConnection,
        verbs: Mapping[str, VerbHandler],
        publisher: Publisher,
        *,
        unavailable: tuple[type[Exception], ...] = (),
        concurrency: int = 64,
        ensure: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.pull = ContinuousPull(
            conn, subjects.CMD_STREAM, COMMANDS_CONSUMER, ensure or partial(declare_commands, conn), batch=_BATCH
        )
        self._conn = conn
        self._verbs = verbs
        self._publisher = publisher
        self._unavailable = unavailable
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every command taken is settled; raises as `ContinuousPull.run` does."""
        try:
            await self.pull.run(self._take, stop)
        finally:
            if self._tasks:
                await asyncio.wait(set(self._tasks))

    async def _take(self, batch: list[Msg]) -> None:
        """Start every command of a batch; a full house holds the pull back, a slow verb only itself."""
        for msg in batch:
            await self._slots.acquire()
            task = asyncio.create_task(self._serve(msg))
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _serve(self, msg: Msg) -> None:
        try:
            await settle(msg, await self._dispose(msg))
        except NATS_TROUBLE as error:  # unsettled, it is delivered again after ack_wait
            self._log.warning("settle", "a command could not be settled: %s", error)

    async def _dispose(self, msg: Msg) -> Disposition:
        try:
            command = read_command(msg)
        except BadRequest as error:
            self._log.warning("subject", "a command that cannot be answered is dropped: %s", error)
            return Reject()
        if command.fault:
            answer = Answer(rejected(command.fault))
        else:
            answer = await run_verb(self._verbs, command.request, self._unavailable)
        if answer.server_trouble:
            return deferred(msg.metadata.num_delivered)
        try:
            await self._publisher.publish([ack_event(command, answer, self._conn.size_limit)])
        except TurnstileError as error:
            self._log.warning("ack", "the answer to %s was not stored: %s", msg.subject, error)
            return deferred(msg.metadata.num_delivered)
        return Reject() if command.fault else Done()
