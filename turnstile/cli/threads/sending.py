"""`thread send`: a message to a listener over NATS, and its answer.

The inbox of the answer is subscribed before anything is sent. An answer that came before (of a message that is
repeated), or while NATS was away, is read from the ledger.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from turnstile.cli.errors import REFUSED, CommandFailed, NoBridge
from turnstile.cli.session import Session, patiently
from turnstile.cli.turns.follow import printing_outages, telling_interrupt
from turnstile.cli.turns.texts import given_text, read_text
from turnstile.ledger.operations.sweep import is_served
from turnstile.ledger.pump.thread_views import list_thread_replies
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.pump.threads import EndReason, MessageId, ReplyKind, ThreadId
from turnstile.schema.wire.events import ReplyEvent
from turnstile.schema.wire.inbox import SendReply, SendRequest
from turnstile.sdk.client import BridgeClient, ReplyInbox, raise_unless_accepted
from turnstile.sdk.requests import parse_request

_SENDER = "turnstile.cli"
_LOOK_SECONDS = 2.0
"""How long without an answer until it is asked who is there to give it."""
_ROWS = 10_000

_ENDED = {
    EndReason.ENDED: "a listener had nothing to answer",
    EndReason.PRUNED: "another answer ended what worked on it",
    EndReason.LIMIT: "the thread came to a limit of [pump]",
}


class NoAnswer(ServerUnavailable):
    """Nobody has answered in time."""

    code: str = "no_answer"


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """What `thread send` was given."""

    to: str
    payload: str
    thread: str | None = None
    correlation_id: str | None = None

    def request(self) -> JsonObject:
        """The arguments of `send`; raises `BadRequest` naming what is wrong, or the file that cannot be read."""
        asked: JsonObject = {"to": self.to, "payload": _text(self.payload)}
        named = {"thread_id": self.thread, "correlation_id": self.correlation_id}
        asked |= {name: value for name, value in named.items() if value is not None}
        parse_request(SendRequest, asked)
        return asked


async def send_letter(session: Session, letter: MessageOptions, *, wait: bool, timeout: float) -> None:
    """Send it and print the ids, or with `wait` its answer; raises `CommandFailed` for one that is none."""
    asked = letter.request()
    async with session.nats() as conn:
        client = BridgeClient(conn, session.project, session.channel)
        if not wait:
            sent = await _send(session, client, asked)
            again = ", as before" if sent.duplicate else ""
            if session.out.as_json:
                session.out.document(sent)
            else:
                session.out.line(f"message {sent.message_id} is on its way in thread {sent.thread_id}{again}")
            return
        async with client.reply_inbox() as inbox:
            sent = await _send(session, client, {**asked, "reply_to": inbox.subject})
            session.out.remark(f"thread {sent.thread_id}")
            told = f"message {sent.message_id}", {f"thread show {sent.thread_id}": "shows it"}
            with printing_outages(session, conn), telling_interrupt(session, *told):
                heard = await _answer(session, inbox, sent, timeout)
    _print_result(session, heard)


async def _send(session: Session, client: BridgeClient, asked: JsonObject) -> SendReply:
    """The bridge's reply; raises `Refused` with its code, `NoBridge`, or `ServerUnavailable`."""
    try:
        patience = session.settings.nats.patience_seconds
        await patiently(lambda: client.request("describe", {}), patience, session.out.remark)
    except ServerUnavailable as error:
        raise NoBridge(str(error)) from None
    try:
        answer = await client.request("send", asked, headers={"CG-Sender": _SENDER})
    except ServerUnavailable as error:
        raise ServerUnavailable(
            f"{error}; it may have been taken: look at `turnstile thread list`. "
            "With a --correlation-id a message can be repeated safely"
        ) from None
    reply = SendReply.model_validate(answer)
    raise_unless_accepted(reply)
    return reply


async def _answer(session: Session, inbox: ReplyInbox, sent: SendReply, timeout: float) -> ReplyEvent:
    """The answer, from the inbox or the ledger; raises `NoAnswer` after `timeout` seconds."""
    thread, message = ThreadId(str(sent.thread_id)), MessageId(str(sent.message_id))
    if sent.duplicate and (known := await _kept(session, thread, message)) is not None:
        return known
    soon = min(timeout, _LOOK_SECONDS)
    try:
        return await inbox.wait(message, soon)
    except TimeoutError:
        if not await _asked(session, _served):
            session.out.remark(_nobody(session))
    try:
        return await inbox.wait(message, timeout - soon)
    except TimeoutError:
        if (known := await _kept(session, thread, message)) is not None:
            return known
    why = "" if await _asked(session, _served) else f": {_nobody(session)}"
    raise NoAnswer(f"no answer in {timeout:g} s{why}. The message goes on: `turnstile thread show {thread}`")


async def _kept(session: Session, thread: ThreadId, message: MessageId) -> ReplyEvent | None:
    """The answer as the ledger has it; None where it has none, or its driver is not installed."""
    async with session.ledger_if_installed() as pool:
        if pool is None:
            return None
        replies = await pool.run(lambda conn: list_thread_replies(conn, thread, row_limit=_ROWS))
    found = next((each for each in replies if each.request_id == message), None)
    if found is None:
        return None
    known = found.model_dump(include={"kind", "reason", "payload", "payload_card_id"})
    told = {**known, "thread_id": thread, "message_id": message, "correlation_id": message, "from": found.from_id}
    return ReplyEvent.model_validate(told)


async def _served(session: Session) -> bool:
    """Whether a worker with listeners is there, as far as the ledger can be asked."""
    async with session.ledger_if_installed() as pool:
        return pool is None or await pool.run(lambda conn: is_served(conn, session.settings.pump.worker_target))


async def _asked(session: Session, question: Callable[[Session], Awaitable[bool]]) -> bool:
    """What the ledger says; yes where it cannot be asked, as from a client that reaches NATS alone."""
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            return await question(session)
    except (TurnstileError, TimeoutError):
        return True


def _nobody(session: Session) -> str:
    target = session.settings.pump.worker_target
    return f"no worker with listeners serves {target!r}: name them in [pump].listeners and start `turnstile worker`"


def _print_result(session: Session, heard: ReplyEvent) -> None:
    """Print the answer; raises `CommandFailed`, or with --json only exits so, unless somebody responded."""
    out = session.out
    if out.as_json:
        out.document(heard.model_dump(mode="json", by_alias=True))
        session.exit_code = 0 if heard.reason is EndReason.RESPONDED else REFUSED
        return
    if heard.kind is ReplyKind.ENDED:
        raise CommandFailed(str(heard.reason), f"the message ended without an answer: {_ENDED[heard.reason]}")
    out.line(heard.payload or "")
    if heard.reason is not EndReason.RESPONDED:
        raise CommandFailed(str(heard.reason), "the message could not be delivered")


def _text(given: str) -> str:
    """The payload: what is given, a file, or standard input."""
    if given.startswith("@"):
        return read_text(Path(given[1:]))
    return given_text(given, None)
