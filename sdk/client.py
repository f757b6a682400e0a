"""A client of one project: requests, durable commands, and watching events (protocol §5).

It uses core subscriptions only, no JetStream API. Events published while it is disconnected are lost; `describe` reads
the truth from the ledger. A message published twice is stored once but arrives twice on core NATS, so a watch skips an
event whose message id it has seen lately. It keeps no state but its subscriptions; of a slow watcher it holds about a
thousand unread events before NATS drops more.
"""

import asyncio
import getpass
import os
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.errors
from nats.aio.msg import Msg
from nats.js.errors import APIError
from pydantic import BaseModel, JsonValue, ValidationError

from turnstile.schema import verbs
from turnstile.schema.access import Caller
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject, Reply
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, token, uuid7
from turnstile.schema.pump.threads import MessageId
from turnstile.schema.states import ActionStatus, ReplyStatus
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire import headers as names
from turnstile.schema.wire.events import ReplyEvent, TaskEvent
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.ui_actions import ActionAck
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, PublishRefused
from turnstile.transport.json_messages import decode_object, encode

Answer = TypeVar("Answer", bound=Reply)
_UNREAD = 4096
_REMEMBERED = 4096
_LOOKS = 16
_MESSAGE_TOO_LARGE = 10054
_STREAM_FULL = 10077
"""Looks of waits that a client makes at once: thousands of waits must not flood a bridge, which would refuse them."""


async def until_arrived(conn: NatsConnection, changed: asyncio.Event, arrived: Callable[[], bool]) -> None:
    """Wait until `arrived`, asked again whenever `changed` is set; raises `ServerUnavailable` once `conn` is closed."""
    forget = conn.listen(changed.set)
    try:
        while not arrived():
            if conn.closed.is_set():
                raise ServerUnavailable(f"the connection to NATS at {conn.shown} is closed")
            changed.clear()
            await changed.wait()
    finally:
        forget()


class ActionWaiter:
    """Collects the acks of one action from the moment it was made."""

    def __init__(self, conn: NatsConnection, action_id: str) -> None:
        self.action_id = action_id
        self._conn = conn
        self._turn: str | None = None
        self._acks: list[ActionAck] = []
        self._changed = asyncio.Event()

    async def next(self, after: int = 0) -> ActionAck:
        """Wait for the ack number `after`, from 0; raises `ServerUnavailable` once the connection is closed."""
        await until_arrived(self._conn, self._changed, lambda: len(self._acks) > after)
        return self._acks[after]

    async def last(self, timeout: float) -> ActionAck:
        """Wait for the final ack: `busy`, `rejected` or `done`; raises `TimeoutError` after `timeout` seconds."""
        received = 0
        async with asyncio.timeout(timeout):
            while (ack := await self.next(received)).status is ActionStatus.ACCEPTED:
                received += 1
        return ack

    def take(self, payload: JsonObject, ack_headers: Mapping[str, str]) -> None:
        """Used by `BridgeClient`: take an ack and its headers; acks of other actions are ignored.

        Once an ack has named a turn, acks of other turns are ignored, too: they belong to a caller that used the same
        `action_id` for an action of its own.
        """
        try:
            ack = ActionAck.model_validate(payload)
        except ValidationError:  # not an ack; ignored, so a waiter times out
            return
        if ack.action_id != self.action_id or self._turn not in (None, ack_headers.get(headers.TURN_ID)):
            return
        self._turn = ack_headers.get(headers.TURN_ID)
        self._acks.append(ack)
        self._changed.set()


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event; `suffix` is the subject's last token (`state`, `task`, `chunk`, `enqueue_ack`, …)."""

    subject: str
    suffix: str
    agent_id: AgentId | None
    payload: JsonObject
    headers: dict[str, str]


class TaskWaiter:
    """Collects an agent's `task` events from the moment it was made."""

    def __init__(self, conn: NatsConnection) -> None:
        self._conn = conn
        self._seen: dict[AgentTurnId, TaskEvent] = {}
        self._changed = asyncio.Event()

    async def wait(self, agent_turn_id: AgentTurnId, timeout: float) -> TaskEvent:
        """Wait for the turn's `task` event; raises `TimeoutError` after `timeout` seconds: then call `describe`."""
        async with asyncio.timeout(timeout):
            await until_arrived(self._conn, self._changed, lambda: agent_turn_id in self._seen)
        return self._seen[agent_turn_id]

    async def on_event(self, event: WatchEvent) -> None:
        """Used by `BridgeClient`: take an event of the agent."""
        try:
            task = TaskEvent.model_validate(event.payload)
        except ValidationError:  # not a `task` event; ignored, so a waiter times out and calls `describe`
            return
        self._seen[task.agent_turn_id] = task
        self._changed.set()


class ReplyInbox:
    """Collects the answers to messages that were sent with its `subject` as `reply_to`."""

    def __init__(self, conn: NatsConnection, subject: str) -> None:
        self.subject = subject
        self._conn = conn
        self._replies: dict[MessageId, ReplyEvent] = {}
        self._changed = asyncio.Event()

    async def wait(self, message_id: MessageId, timeout: float) -> ReplyEvent:
        """Wait for the answer to a message; each is returned once. Raises `TimeoutError` after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await until_arrived(self._conn, self._changed, lambda: message_id in self._replies)
        return self._replies.pop(message_id)

    async def on_message(self, msg: Msg) -> None:
        """Used by `BridgeClient`: take an answer."""
        try:
            reply = ReplyEvent.model_validate_json(msg.data)
        except ValidationError:  # not an answer; ignored, so a waiter times out
            return
        self._replies[reply.message_id] = reply
        self._changed.set()


def _names_controls(verb: str, payload: BaseModel | JsonObject) -> bool:
    """Whether an enqueue has to say who asks: for what not everybody may, or where who asks runs the calls.

    That is a profile beside its agent, a model, or `client_tools`.
    """
    if verb != "enqueue":
        return False
    fields = _object(payload)
    settings = fields.get("runtime_config")
    named = isinstance(settings, dict) and any(settings.get(name) for name in ("model", "client_tools"))
    return named or (fields.get("profile_name") is not None and fields.get("agent_id") is not None)


def _named_caller() -> Caller | None:
    named = os.environ.get("TURNSTILE_PRINCIPAL")
    return Caller.read(named.split(".")) if named else None


def _user_of_system() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a number that has no name
        return "unknown"


class BridgeClient:
    """A client of one channel of one project; `sender` is recorded with what it asks for.

    Verbs whose subject names the caller are asked as `TURNSTILE_PRINCIPAL` says (`alice`; `operator.alice` may act on
    what others asked for). Without it, `enqueue` and `stop` name nobody, and the others the user of this system, who
    operates: NATS permissions decide whether this connection may.
    """

    def __init__(
        self, conn: NatsConnection, project_id: ProjectId, channel_id: ChannelId, sender: str = "client"
    ) -> None:
        self._conn = conn
        self._project = project_id
        self._channel = channel_id
        self._sender = sender
        self.looks = asyncio.Semaphore(_LOOKS)

    @property
    def caller(self) -> Caller:
        """Who asks; raises `BadRequest` if `TURNSTILE_PRINCIPAL` is no name."""
        return _named_caller() or Caller(re.sub(r"[^A-Za-z0-9_-]", "_", _user_of_system())[:64], operates=True)

    @property
    def closed(self) -> bool:
        """Whether the connection is gone for good."""
        return self._conn.closed.is_set()

    def in_channel(self, channel_id: ChannelId) -> "BridgeClient":
        """A client of another channel of the project, on the same connection."""
        return BridgeClient(self._conn, self._project, channel_id, self._sender)

    def agent_of(self, request: EnqueueRequest) -> AgentId:
        """The agent that will run the turn of a request that names an agent, a conversation or a correlation id."""
        return request.agent(self._project, self._channel, "")

    async def request(
        self,
        verb: str,
        payload: BaseModel | JsonObject,
        *,
        headers: Mapping[str, str] | None = None,
        caller: Caller | None = None,
        timeout: float = 10.0,
    ) -> JsonObject:
        """Request a verb and return the reply, whatever its status; raises `ServerUnavailable` if there is none.

        Raises `Refused` (forbidden) if NATS does not let this user ask the verb.
        A `caller` takes the place of `self.caller` at the subject's end.
        """
        declared = verbs.verb_named(verb)
        if caller is None and declared is not None and declared.caller != "none":
            must = declared.caller == "must" or _names_controls(verb, payload)
            caller = self.caller if must else _named_caller()
        subject = subjects.bridge_request(self._project, self._channel, verb, caller)
        data = self._sized(encode(_object(payload)))
        try:
            answer = await self._conn.request(subject, data, timeout=timeout, headers=self._headers(verb, headers))
        except nats.errors.NoRespondersError:
            raise ServerUnavailable("no bridge is running; start one with `turnstile bridge`") from None
        except PublishRefused as error:
            raise Refused(
                "forbidden", f"{error}: log in to NATS as somebody who may (`turnstile docs security`)"
            ) from None
        except nats.errors.ConnectionClosedError:
            raise ServerUnavailable(f"the connection to NATS at {self._conn.shown} is closed") from None
        except NATS_TROUBLE as error:
            raise ServerUnavailable(f"the bridge did not answer {verb} in {amount(timeout)} s: {error}") from error
        try:
            return decode_object(answer.data)
        except BadRequest as error:
            raise ServerUnavailable(f"the answer to {verb} cannot be read: {error}") from None

    async def call(
        self,
        verb: verbs.Verb[Any, Answer],
        payload: BaseModel | JsonObject,
        *,
        headers: Mapping[str, str] | None = None,
        caller: Caller | None = None,
    ) -> Answer:
        """Request a verb and return its accepted reply; raises as `request` and `accepted` do."""
        return accepted(verb.reply, await self.request(verb.name, payload, headers=headers, caller=caller))

    async def command(
        self, verb: str, payload: BaseModel | JsonObject, request_id: str, headers: Mapping[str, str] | None = None
    ) -> bool:
        """Publish a durable command; its answer is the `{verb}_ack` event with this `request_id`.

        Returns False, and publishes nothing, if the stream already holds this request, within its duplicate window.
        Raises `ServerUnavailable` if the stream did not acknowledge the command; the same call may then be repeated.
        """
        subject = subjects.bridge_command(self._project, self._channel, verb)
        data = self._sized(encode({**_object(payload), "request_id": request_id}))
        sent = self._traced(verb, headers)
        # the stream compares message ids across all projects and verbs
        sent[names.MSG_ID] = f"cmd-{self._project}-{self._channel}-{verb}-{token(request_id, 'request_id')}"
        try:
            ack = await self._conn.store(subject, data, headers=sent, timeout=5.0)
        except APIError as error:
            raise _not_stored(verb, len(data), error) from error
        except NATS_TROUBLE as error:
            raise ServerUnavailable(f"the command {verb} was not acknowledged: {error}") from error
        return not ack.duplicate

    async def send(
        self,
        to: str,
        payload: str | JsonObject,
        *,
        timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
        **fields: str,
    ) -> ReplyEvent:
        """Send a message to a listener and return its answer; `fields` are more arguments of `send`.

        Raises `Refused` if the bridge rejects the message, `ServerUnavailable` if no bridge replies or a server of its
        own is down, `TimeoutError` if the listener has not answered in time: the answer then still follows as
        `evt.sys.pump.reply`.
        """
        async with self.reply_inbox() as inbox:
            arguments: JsonObject = {"to": to, "payload": payload, "reply_to": inbox.subject, **fields}
            sent = await self.call(verbs.SEND, arguments, headers=headers)
            if sent.message_id is None:
                raise Refused("internal_error", "the bridge took the message and named none")
            return await inbox.wait(sent.message_id, timeout)

    @asynccontextmanager
    async def reply_inbox(self) -> AsyncGenerator[ReplyInbox]:
        """An inbox for answers, subscribed on entry: pass its `subject` as the `reply_to` of messages sent inside.

        It does not get answers that were published before, such as the answer to the first of two equal messages.
        """
        inbox = ReplyInbox(self._conn, self._conn.nc.new_inbox())
        subscription = await self._conn.subscribe(inbox.subject, inbox.on_message)
        try:
            yield inbox
        finally:
            await self._conn.unsubscribe(subscription)

    @asynccontextmanager
    async def ui_action(
        self,
        agent_id: AgentId,
        tool_name: str,
        args: JsonObject,
        *,
        action_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: JsonValue,
    ) -> AsyncGenerator[ActionWaiter]:
        """Publish a UI action and collect its acks inside; `fields` are more of the payload, such as `message_id`.

        A repeat with the same `action_id` or `message_id` is the same action. Raises `ServerUnavailable` if the stream
        did not acknowledge it. If no bridge serves UI actions, no ack arrives.
        """
        waiter = ActionWaiter(self._conn, action_id or uuid7())
        action: JsonObject = {"action_id": waiter.action_id, "agent_id": agent_id, "tool_name": tool_name, "args": args}
        data = self._sized(encode({**action, **fields}))
        # each publish has its own message id: the stream would drop a repeat, and nobody would answer it
        sent = {**self._traced("ui_action", headers), names.MSG_ID: uuid7()}

        async def take(event: WatchEvent) -> None:
            waiter.take(event.payload, event.headers)

        async with self._subscribed([subjects.action_ack(self._project, self._channel)], take):
            try:
                await self._conn.store(subjects.ui_action(self._project, self._channel), data, headers=sent, timeout=5)
            except NATS_TROUBLE as error:
                raise ServerUnavailable(f"the action was not acknowledged: {error}") from error
            yield waiter

    async def watch(
        self, agent_id: AgentId | None = None, *, include_chunks: bool = False
    ) -> AsyncGenerator[WatchEvent]:
        """Yields the events of an agent, or of the channel; it subscribes at the first step of the iteration.

        Raises `ServerUnavailable` once the connection is closed. Close the generator when done.
        """
        async with self.watching(agent_id, include_chunks=include_chunks) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def watching(
        self, agent_id: AgentId | None = None, *, include_chunks: bool = False
    ) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        """As `watch`, but subscribed on entry: no event that a request made inside causes is missed."""
        unread: asyncio.Queue[WatchEvent | None] = asyncio.Queue(_UNREAD)
        filters = [self._events(agent_id), *([self._chunks(agent_id)] if include_chunks else [])]
        async with self._subscribed(filters, unread.put):
            ending = asyncio.create_task(_end(self._conn, unread))
            try:
                yield _read(self._conn, unread)
            finally:
                ending.cancel()

    @asynccontextmanager
    async def hearing_interrupts(self, agent_id: AgentId) -> AsyncGenerator[asyncio.Event]:
        """An event that is set whenever a turn of the agent begins to wait for a person or its client."""
        hint = asyncio.Event()

        async def take(_: WatchEvent) -> None:
            hint.set()

        subject = subjects.agent_event(self._project, self._channel, agent_id, "interrupt")
        async with self._subscribed([subject], take):
            yield hint

    @asynccontextmanager
    async def wait_task(self, agent_id: AgentId) -> AsyncGenerator[TaskWaiter]:
        """A waiter, subscribed on entry: enqueue inside, then `await waiter.wait(agent_turn_id, timeout)`."""
        waiter = TaskWaiter(self._conn)
        async with self._subscribed(
            [subjects.agent_event(self._project, self._channel, agent_id, "task")], waiter.on_event
        ):
            yield waiter

    @asynccontextmanager
    async def _subscribed(
        self, filters: list[str], take: Callable[[WatchEvent], Awaitable[None]]
    ) -> AsyncGenerator[None]:
        recent: OrderedDict[str, None] = OrderedDict()

        async def on_message(msg: Msg) -> None:
            try:
                event = _event(msg)
            except BadRequest:  # not a message of the protocol; ignored
                return
            if message_id := event.headers.get(names.MSG_ID):
                if message_id in recent:
                    return
                recent[message_id] = None
                if len(recent) > _REMEMBERED:
                    recent.popitem(last=False)
            await take(event)

        async with AsyncExitStack() as stack:
            for subject in filters:
                try:
                    subscription = await self._conn.subscribe(subject, on_message)
                except NATS_TROUBLE as error:
                    raise ServerUnavailable(f"NATS at {self._conn.shown} takes no subscription: {error}") from error
                stack.push_async_callback(self._conn.unsubscribe, subscription)
            yield

    def _events(self, agent_id: AgentId | None) -> str:
        if agent_id is not None:
            return subjects.agent_events_filter(self._project, self._channel, agent_id)
        return subjects.channel_filter(self._project, self._channel, "evt")

    def _chunks(self, agent_id: AgentId | None) -> str:
        if agent_id is not None:
            return subjects.agent_chunk(self._project, self._channel, agent_id)
        return subjects.channel_filter(self._project, self._channel, "str")

    def _headers(self, verb: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        return {
            names.PROJECT_ID: self._project,
            names.CHANNEL_ID: self._channel,
            names.TIMESTAMP: str(time.time_ns() // 1_000_000),
            names.VERSION: subjects.VERSION,
            names.MSG_TYPE: verb,
            names.SENDER: self._sender,
            **(extra or {}),
        }

    def _traced(self, verb: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        """Headers of what may be delivered twice: every delivery is of one trace, which a request's bridge begins."""
        return {names.TRACEPARENT: names.new_traceparent(), **self._headers(verb, extra)}

    def _sized(self, data: bytes) -> bytes:
        if len(data) > self._conn.size_limit:  # publishing it would close the connection
            raise BadRequest(f"the request has {len(data)} bytes, at most {self._conn.size_limit} can be sent")
        return data


def accepted(model: type[Answer], answer: JsonObject) -> Answer:
    """The bridge's reply, if it was accepted.

    Raises `ServerUnavailable` if a server is down, else `Refused` with the reply's code; it is `Limited` if the same
    request may be accepted later.
    """
    reply = model.model_validate(answer)
    if reply.is_done:
        return reply
    code, message = reply.error_code or str(reply.status), reply.error or f"the bridge answered {reply.status}"
    if code == ServerUnavailable.code:
        raise ServerUnavailable(message)
    if reply.status is ReplyStatus.BUSY:
        wait = answer.get("retry_after_seconds")
        raise Limited(code, message, retry_after=float(wait) if isinstance(wait, int | float) else None)
    raise Refused(code, message)


def _object(payload: BaseModel | JsonObject) -> JsonObject:
    return payload.model_dump(mode="json", exclude_unset=True) if isinstance(payload, BaseModel) else payload


def _not_stored(verb: str, size: int, error: APIError) -> TurnstileError:
    """What to do about a command that its stream refused."""
    if error.err_code == _MESSAGE_TOO_LARGE:
        return BadRequest(f"the command {verb} has {size} bytes, more than its stream takes in one message: send less")
    if error.err_code == _STREAM_FULL:
        return ServerUnavailable(
            f"too many commands {verb} of this channel wait ({error.description}), and this one was not stored: try"
            " again when bridges have answered some; [nats].max_commands_mb bounds them"
        )
    return ServerUnavailable(f"the command {verb} was not acknowledged: {error}")


def _event(msg: Msg) -> WatchEvent:
    """Raises `BadRequest` for what is no message of the protocol.

    An event without headers is none, but what JetStream acknowledges to a subject of somebody's choice.
    """
    subject = subjects.parse(msg.subject)
    if subject.category == "evt" and not msg.headers:
        raise BadRequest("an event has headers")
    rest = subject.rest
    agent = AgentId(rest[1]) if rest[0] == "agent" else None
    return WatchEvent(msg.subject, rest[-1], agent, decode_object(msg.data), dict(msg.headers or {}))


async def _end(conn: NatsConnection, unread: asyncio.Queue[WatchEvent | None]) -> None:
    await conn.closed.wait()
    await unread.put(None)


async def _read(conn: NatsConnection, unread: asyncio.Queue[WatchEvent | None]) -> AsyncGenerator[WatchEvent]:
    while event := await unread.get():
        yield event
    if conn.closed.is_set():
        raise ServerUnavailable(f"the connection to NATS at {conn.shown} is closed")
