"""`thread send`: sends a message to a listener over NATS and waits for its reply.

It subscribes to the reply inbox before it sends. If a repeated message was answered before, or the reply came while
NATS was away, it asks the bridge for the reply.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from turnstile.cli.errors import REFUSED, CommandFailed
from turnstile.cli.session import Session
from turnstile.cli.turns.follow import explaining_interrupt
from turnstile.cli.turns.texts import given_text, read_text
from turnstile.schema import verbs
from turnstile.schema.amounts import amount
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.pump.threads import EndReason, MessageId, ReplyKind, ThreadId
from turnstile.schema.wire.events import ReplyEvent
from turnstile.schema.wire.inbox import ListenerListRequest, SendReply, SendRequest, ThreadDescribeRequest
from turnstile.sdk.client import BridgeClient, ReplyInbox
from turnstile.sdk.requests import parse_request

Answer = TypeVar("Answer")
_CHECK_SECONDS = 2.0
"""How long to wait for a reply before checking whether a worker with listeners runs."""
_ROWS = 10_000

_ENDED = {
    EndReason.ENDED: "the last listener returned no reply",
    EndReason.PRUNED: "a reply to an earlier message of the chain ended it",
    EndReason.LIMIT: "the thread reached a limit of [pump]",
}


class NoAnswer(ServerUnavailable):
    """No reply came in time."""

    code: str = "no_answer"


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The arguments of `thread send`."""

    to: str
    payload: str
    thread: str | None = None
    correlation_id: str | None = None

    def request(self) -> JsonObject:
        """The arguments of `send`; raises `BadRequest` naming what is wrong, or the file that cannot be read."""
        request: JsonObject = {"to": self.to, "payload": _payload_text(self.payload)}
        named = {"thread_id": self.thread, "correlation_id": self.correlation_id}
        request |= {name: value for name, value in named.items() if value is not None}
        parse_request(SendRequest, request)
        return request


async def send_message(session: Session, options: MessageOptions, *, wait: bool, timeout: float) -> None:
    """Send the message; print its ids, or with `wait` its reply.

    Raises `CommandFailed` if the message ended without a reply or could not be delivered.
    """
    arguments = options.request()
    async with session.nats() as conn:
        client = session.bridge_on(conn)
        if not wait:
            sent = await _send(session, client, arguments)
            again = ", as before" if sent.duplicate else ""
            session.out.result(sent, f"message {sent.message_id} is on its way in thread {sent.thread_id}{again}")
            return
        async with client.reply_inbox() as inbox:
            sent = await _send(session, client, {**arguments, "reply_to": inbox.subject})
            session.out.remark(f"thread {sent.thread_id}")
            interrupt = explaining_interrupt(
                session, f"message {sent.message_id}", {f"thread show {sent.thread_id}": "shows it"}
            )
            with session.printing_outages(conn), interrupt:
                reply = await _wait_for_reply(session, client, inbox, sent, timeout)
    _print_result(session, reply)


async def _send(session: Session, client: BridgeClient, arguments: JsonObject) -> SendReply:
    """The bridge's reply; raises `Refused` with its code, `NoBridge`, or `ServerUnavailable`."""
    await session.await_bridge(client)
    try:
        return await client.call(verbs.SEND, arguments)
    except ServerUnavailable as error:
        raise ServerUnavailable(
            f"{error}; the message may have been accepted: see `turnstile thread list`. "
            "With a --correlation-id a message can be repeated safely"
        ) from None


async def _wait_for_reply(
    session: Session, client: BridgeClient, inbox: ReplyInbox, sent: SendReply, timeout: float
) -> ReplyEvent:
    """The reply, from the inbox or the ledger; raises `NoAnswer` after `timeout` seconds."""
    message = MessageId(str(sent.message_id))
    if sent.duplicate and (known := await _kept(client, sent)) is not None:
        return known
    soon = min(timeout, _CHECK_SECONDS)
    try:
        return await inbox.wait(message, soon)
    except TimeoutError:
        if await _unserved(client):
            session.out.remark(_no_worker(session))
    try:
        return await inbox.wait(message, timeout - soon)
    except TimeoutError:
        if (known := await _kept(client, sent)) is not None:
            return known
    why = f": {_no_worker(session)}" if await _unserved(client) else ""
    thread = sent.thread_id
    raise NoAnswer(f"no answer in {amount(timeout)} s{why}. The message goes on: `turnstile thread show {thread}`")


async def _kept(client: BridgeClient, sent: SendReply) -> ReplyEvent | None:
    """The reply in the ledger; None if there is none yet, or this user may not look."""
    request = ThreadDescribeRequest(thread_id=ThreadId(str(sent.thread_id)), limit=_ROWS)
    described = await _known(client.call(verbs.THREAD_DESCRIBE, request))
    if described is None:
        return None
    reply = next((reply for reply in described.replies if reply.request_id == sent.message_id), None)
    if reply is None:
        return None
    known = reply.model_dump(include={"kind", "reason", "payload", "payload_card_id"})
    ids = {"thread_id": sent.thread_id, "message_id": reply.request_id, "correlation_id": reply.request_id}
    return ReplyEvent.model_validate({**known, **ids, "from": reply.from_id})


async def _unserved(client: BridgeClient) -> bool:
    """Whether no worker has any listener; false if this user may not look."""
    listed = await _known(client.call(verbs.LISTENER_LIST, ListenerListRequest()))
    return listed is not None and not any(listener.workers for listener in listed.listeners)


async def _known(answer: Awaitable[Answer]) -> Answer | None:
    """The bridge's answer; None if it is refused, or there is none in `_CHECK_SECONDS`."""
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            return await answer
    except (TurnstileError, TimeoutError):
        return None


def _no_worker(session: Session) -> str:
    target = session.settings.pump.worker_target
    return f"no worker with listeners serves {target!r}: name them in [pump].listeners and start `turnstile worker`"


def _print_result(session: Session, reply: ReplyEvent) -> None:
    """Print the reply; unless a listener responded, raise `CommandFailed`, or with --json set its exit code."""
    out = session.out
    if out.as_json:
        out.document(reply.model_dump(mode="json", by_alias=True))
        session.exit_code = 0 if reply.reason is EndReason.RESPONDED else REFUSED
        return
    if reply.kind is ReplyKind.ENDED:
        raise CommandFailed(str(reply.reason), f"the message ended without a reply: {_ENDED[reply.reason]}")
    out.line(reply.payload or "")
    if reply.reason is not EndReason.RESPONDED:
        raise CommandFailed(str(reply.reason), "the message could not be delivered")


def _payload_text(argument: str) -> str:
    """The payload: the argument itself, the content of the file `@FILE`, or standard input for `-`."""
    if argument.startswith("@"):
        return read_text(Path(argument[1:]))
    return given_text(argument, None)
