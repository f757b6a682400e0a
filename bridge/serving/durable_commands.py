"""Durable verbs: `cmd.sys.bridge.{verb}`, answered by `evt.sys.bridge.{verb}_ack` (protocol §5).

A command is acknowledged only after its ack event is in the event stream. The event's message id is made of the
command's sequence and time in its stream, so all deliveries of a command store one event. While a server is away, the
command is redelivered after 2 to 30 s and no event is published. An unreadable command gets the status `rejected` and
is terminated. If a verb fails for an unknown reason, its command is tried `failures` times; then it gets the error
`internal_error`, is logged with its sequence, and is terminated. A verb may run more than once for one command, which
it recognises by `VerbRequest.command_id`. At most `concurrency` commands run at a time. Failures are counted in memory,
so a restarted process counts from zero.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from nats.aio.msg import Msg

from turnstile.bridge.serving.micro_service import (
    RequestPayload,
    VerbAnswer,
    VerbHandler,
    VerbRequest,
    encode_reply,
    keeps_effects,
    read_request,
    rejected,
    run_verb,
)
from turnstile.runtime.ports import Publisher
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, TurnstileError
from turnstile.schema.ids import token
from turnstile.schema.json_reading import read_json_object
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.inbox import REQUEST_ID_LIMIT
from turnstile.transport.connection import NatsConnection
from turnstile.transport.durable import CommandQueue, Disposition, Done, Reject, command_id, deferred
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.streams import COMMANDS_CONSUMER, declare_commands

_REMEMBERED = 10_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Command:
    """A delivered command; `fault` is set if it cannot be run."""

    request: VerbRequest
    request_id: str | None
    fault: BadRequest | None = None


def read_command(msg: Msg) -> _Command:
    """The command in a message; raises `BadRequest` if its subject cannot be read, so no ack event can be addressed."""
    subject, name = subjects.parse(msg.subject), command_id(msg)
    bare = VerbRequest(
        subject.rest[-1], subject.project_id, subject.channel_id, RequestPayload(b""), {}, "command", name
    )
    try:
        payload = read_json_object(msg.data, mended=keeps_effects(bare.verb))
    except BadRequest as error:
        return _Command(bare, None, error)
    request_id = payload.pop("request_id", None)
    if not isinstance(request_id, str):
        request_id = None
    elif len(request_id) > REQUEST_ID_LIMIT:
        return _Command(bare, None, BadRequest(f"request_id has more than {REQUEST_ID_LIMIT} characters"))
    try:
        request = replace(read_request(msg, "command", payload), command_id=name)
    except BadRequest as error:
        return _Command(bare, request_id, error)
    return _Command(request, request_id)


def ack_event(command: _Command, answer: VerbAnswer, limit: int) -> Message:
    """The ack event of a command; it has the same message id for each delivery of the command."""
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
    except BadRequest:  # the verb has rejected the headers; the event gets a trace of its own
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


@dataclass
class DurableCommands:
    """Runs durable verbs until stopped.

    `unavailable` are further exceptions that mean that a server is away. `failures` is how often a command may fail for
    any other reason; the default of 20 takes about eight minutes with the pauses between deliveries.
    """

    conn: NatsConnection
    verbs: Mapping[str, VerbHandler]
    publisher: Publisher
    _: KW_ONLY
    unavailable: tuple[type[Exception], ...] = ()
    concurrency: int = 64
    failures: int = 20
    ensure: Callable[[], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        ensure = self.ensure or partial(declare_commands, self.conn)
        self._queue = CommandQueue(self.conn, COMMANDS_CONSUMER, ensure, self._dispose, self.concurrency)
        self.pull = self._queue.pull
        self._failed: OrderedDict[str, int] = OrderedDict()
        self._log = LimitedLog(logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every received command is settled; raises as `ContinuousPull.run` does."""
        await self._queue.run(stop)

    async def _dispose(self, msg: Msg) -> Disposition:
        try:
            command = read_command(msg)
        except BadRequest as error:
            self._log.warning("subject", "a command with an unreadable subject is dropped: %s", error)
            return Reject()
        if command.fault:
            answer = VerbAnswer(rejected(command.fault))
        else:
            answer = await run_verb(self.verbs, command.request, self.unavailable)
        if answer.server_trouble or (answer.is_bug and not self._give_up(command.request)):
            return deferred(msg.metadata.num_delivered)
        try:
            await self.publisher.publish([ack_event(command, answer, self.conn.size_limit)])
        except TurnstileError as error:
            self._log.warning("ack", "the ack event of %s was not stored: %s", msg.subject, error)
            return deferred(msg.metadata.num_delivered)
        if answer.is_bug:
            place = msg.metadata.sequence.stream
            logger.error("%s is given up: message %d of %s holds it", msg.subject, place, subjects.ASK_STREAM)
            return Reject(keeps=True)
        return Reject() if command.fault else Done()

    def _give_up(self, request: VerbRequest) -> bool:
        """Count a failure of this command; True if it has failed as often as it may."""
        name = request.command_id or ""
        self._failed[name] = self._failed.pop(name, 0) + 1
        if len(self._failed) > _REMEMBERED:
            self._failed.popitem(last=False)
        return self._failed[name] >= self.failures
