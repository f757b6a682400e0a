"""How a client of one project asks, commands and watches: core subscriptions only, no JetStream API (protocol §5).

What it hears is lossy while it is disconnected; the ledger, asked by `describe`, is the truth. A message sent twice is
stored once but heard twice on core NATS, so a watch leaves out what has a message id it heard lately. It keeps no
state but its subscriptions, and holds at most some thousand unread events of a slow watcher before NATS drops more.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel, JsonValue, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused, ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, token, uuid7
from turnstile.schema.pump.threads import MessageId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import headers as names
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import ReplyEvent, TaskEvent
from turnstile.schema.wire.inbox import Reply, SendReply
from turnstile.sdk.acks import ActionWaiter
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import decode_object, encode

_UNREAD = 4096
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """Something that happened: `suffix` is the subject's last token (`state`, `task`, `chunk`, `enqueue_ack`, …)."""

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
        """The turn's `task` event; raises `TimeoutError` after `timeout` seconds: then ask `describe`."""
        forget = self._conn.listen(self._changed.set)
        try:
            async with asyncio.timeout(timeout):
                while agent_turn_id not in self._seen:
                    _raise_if_closed(self._conn)
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            forget()
        return self._seen[agent_turn_id]

    async def on_event(self, event: WatchEvent) -> None:
        """Used by `BridgeClient`: take an event of the agent."""
        try:
            task = TaskEvent.model_validate(event.payload)
        except ValidationError:  # not ours to judge: whoever waits runs into its timeout and asks `describe`
            return
        self._seen[task.agent_turn_id] = task
        self._changed.set()


class ReplyInbox:
    """Collects the answers to messages that were sent with its `subject` as `reply_to`."""

    def __init__(self, conn: NatsConnection, subject: str) -> None:
        self.subject = subject
        self._conn = conn
        self._heard: dict[MessageId, ReplyEvent] = {}
        self._changed = asyncio.Event()

    async def wait(self, message_id: MessageId, timeout: float) -> ReplyEvent:
        """The answer to a message, once; raises `TimeoutError` after `timeout` seconds."""
        forget = self._conn.listen(self._changed.set)
        try:
            async with asyncio.timeout(timeout):
                while message_id not in self._heard:
                    _raise_if_closed(self._conn)
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            forget()
        return self._heard.pop(message_id)

    async def on_message(self, msg: Msg) -> None:
        """Used by `BridgeClient`: take an answer."""
        try:
            heard = ReplyEvent.model_validate_json(msg.data)
        except ValidationError:  # not an answer: whoever waits runs into its timeout
            return
        self._heard[heard.message_id] = heard
        self._changed.set()


class BridgeClient:
    """A client of one channel of one project."""

    def __init__(self, conn: NatsConnection, project_id: ProjectId, channel_id: ChannelId) -> None:
        self._conn = conn
        self._project = project_id
        self._channel = channel_id

    @property
    def closed(self) -> bool:
        """Whether the connection is gone for good."""
        return self._conn.closed.is_set()

    def in_channel(self, channel_id: ChannelId) -> "BridgeClient":
        """A client of another channel of the project, on the same connection."""
        return BridgeClient(self._conn, self._project, channel_id)

    async def request(
        self,
        verb: str,
        payload: BaseModel | JsonObject,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> JsonObject:
        """Ask a verb and return its reply, whatever its status; raises `ServerUnavailable` if nobody answers."""
        subject = subjects.bridge_request(self._project, self._channel, verb)
        data = self._sized(encode(_object(payload)))
        try:
            answer = await self._conn.request(subject, data, timeout=timeout, headers=self._headers(verb, headers))
        except nats.errors.NoRespondersError:
            raise ServerUnavailable("no bridge is running; start one with `turnstile bridge`") from None
        except NATS_TROUBLE as error:
            raise ServerUnavailable(f"the bridge did not answer {verb} in {timeout:g} s: {error}") from error
        try:
            return decode_object(answer.data)
        except BadRequest as error:
            raise ServerUnavailable(f"the answer to {verb} cannot be read: {error}") from None

    async def command(
        self,
        verb: str,
        payload: BaseModel | JsonObject,
        request_id: str,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Store a durable command; its answer is the `{verb}_ack` event with this `request_id`.

        False if this request was stored before, within the stream's duplicate window: then nothing was stored.
        Raises `ServerUnavailable` if the stream did not acknowledge it; the same call may then be repeated.
        """
        subject = subjects.bridge_command(self._project, self._channel, verb)
        data = self._sized(encode({**_object(payload), "request_id": request_id}))
        sent = self._headers(verb, headers)
        # the duplicate window spans the whole stream, all projects and verbs
        sent[names.MSG_ID] = f"cmd-{self._project}-{self._channel}-{verb}-{token(request_id, 'request_id')}"
        try:
            ack = await self._conn.store(subject, data, headers=sent, timeout=5.0)
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

        Raises `Refused` if it is not taken, `ServerUnavailable` if no bridge answers or a server of its own is away,
        `TimeoutError` if nobody has answered in time: the answer is then still to come, as `evt.sys.pump.reply`.
        """
        async with self.reply_inbox() as inbox:
            asked: JsonObject = {"to": to, "payload": payload, "reply_to": inbox.subject, **fields}
            sent = SendReply.model_validate(await self.request("send", asked, headers=headers))
            raise_unless_accepted(sent)
            if sent.message_id is None:
                raise Refused("internal_error", "the bridge took the message and named none")
            return await inbox.wait(sent.message_id, timeout)

    @asynccontextmanager
    async def reply_inbox(self) -> AsyncGenerator[ReplyInbox]:
        """An inbox for answers, subscribed on entry: its `subject` is the `reply_to` of what is sent inside.

        It hears no answer that was given before, such as that to the first of two equal messages.
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
        """Ask for a UI action and hear its acks inside; `fields` are more of the payload, such as `message_id`.

        The same `action_id` or `message_id` again is the same action. Raises `ServerUnavailable` if the stream did not
        take it. Where no bridge serves UI actions, no ack comes.
        """
        waiter = ActionWaiter(self._conn, action_id or uuid7())
        asked: JsonObject = {"action_id": waiter.action_id, "agent_id": agent_id, "tool_name": tool_name, "args": args}
        data = self._sized(encode({**asked, **fields}))
        # an id of its own for each time: a repeat that the stream swallowed would not be answered
        sent = {**self._headers("ui_action", headers), names.MSG_ID: uuid7()}

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
        """Events of an agent, or of the channel, from the first step of the iteration on.

        Raises `ServerUnavailable` once the connection is closed. Close the generator when done.
        """
        async with self.watching(agent_id, include_chunks=include_chunks) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def watching(
        self, agent_id: AgentId | None = None, *, include_chunks: bool = False
    ) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        """`watch`, subscribed on entry: what a request made inside sets off is not missed."""
        unread: asyncio.Queue[WatchEvent | None] = asyncio.Queue(_UNREAD)
        filters = [self._events(agent_id), *([self._chunks(agent_id)] if include_chunks else [])]
        async with self._subscribed(filters, unread.put):
            ending = asyncio.create_task(_end(self._conn, unread))
            try:
                yield _read(self._conn, unread)
            finally:
                ending.cancel()

    @asynccontextmanager
    async def wait_task(self, agent_id: AgentId) -> AsyncGenerator[TaskWaiter]:
        """A waiter subscribed on entry: enqueue inside, then `await waiter.wait(agent_turn_id, timeout)`."""
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
            except BadRequest:  # a stranger's message, which nobody could use
                return
            if message_id := event.headers.get(names.MSG_ID):
                if message_id in recent:
                    return
                recent[message_id] = None
                if len(recent) > _REMEMBERED:
                    recent.popitem(last=False)
            await take(event)

        subscriptions = [await self._conn.subscribe(each, on_message) for each in filters]
        try:
            yield
        finally:
            for subscription in subscriptions:
                await self._conn.unsubscribe(subscription)

    def _events(self, agent_id: AgentId | None) -> str:
        if agent_id is not None:
            return subjects.agent_events_filter(self._project, self._channel, agent_id)
        return subjects.channel_filter(self._project, self._channel, "evt")

    def _chunks(self, agent_id: AgentId | None) -> str:
        if agent_id is not None:
            return subjects.agent_chunk(self._project, self._channel, agent_id)
        return subjects.channel_filter(self._project, self._channel, "str")

    def _headers(self, verb: str, given: Mapping[str, str] | None) -> dict[str, str]:
        return {
            names.TRACEPARENT: names.new_traceparent(),
            names.PROJECT_ID: self._project,
            names.CHANNEL_ID: self._channel,
            names.TIMESTAMP: str(time.time_ns() // 1_000_000),
            names.VERSION: subjects.VERSION,
            names.MSG_TYPE: verb,
            names.SENDER: "client",
            **(given or {}),
        }

    def _sized(self, data: bytes) -> bytes:
        if len(data) > self._conn.size_limit:  # sent, it would close the connection
            raise BadRequest(f"the request has {len(data)} bytes, at most {self._conn.size_limit} can be sent")
        return data


def raise_unless_accepted(reply: Reply) -> None:
    """Raises `ServerUnavailable` where the same request may be accepted later, else `Refused` with the reply's code."""
    if reply.status is ReplyStatus.ACCEPTED:
        return
    message = reply.error or f"the bridge answered {reply.status}"
    if reply.error_code == ServerUnavailable.code:
        raise ServerUnavailable(message)
    raise Refused(reply.error_code or str(reply.status), message)


def _object(payload: BaseModel | JsonObject) -> JsonObject:
    return payload.model_dump(mode="json", exclude_unset=True) if isinstance(payload, BaseModel) else payload


def _event(msg: Msg) -> WatchEvent:
    rest = subjects.parse(msg.subject).rest
    agent = AgentId(rest[1]) if rest[0] == "agent" else None
    return WatchEvent(msg.subject, rest[-1], agent, decode_object(msg.data), dict(msg.headers or {}))


def _raise_if_closed(conn: NatsConnection) -> None:
    if conn.closed.is_set():
        raise ServerUnavailable(f"the connection to NATS at {conn.shown} is closed")


async def _end(conn: NatsConnection, unread: asyncio.Queue[WatchEvent | None]) -> None:
    await conn.closed.wait()
    await unread.put(None)


async def _read(conn: NatsConnection, unread: asyncio.Queue[WatchEvent | None]) -> AsyncGenerator[WatchEvent]:
    while event := await unread.get():
        yield event
    _raise_if_closed(conn)
