"""The verbs of the message pump: `send`, and for operators `thread.describe` and `listener.list` (protocol §9).

`send` accepts a message without checking its payload or its recipient: the thread's workflow routes it later. So the
reply does not reveal which listeners exist.
"""

import hashlib
import re

from turnstile.bridge.pump.thread_wakes import ThreadStarter
from turnstile.bridge.serving.micro_service import REPLY_INBOX, VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import (
    find_thread,
    list_listeners,
    list_thread_messages,
    list_thread_payloads,
    list_thread_replies,
)
from turnstile.ledger.pump.threads import Send, ThreadLimits, send_message
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import uuid7
from turnstile.schema.pump.threads import MessageId, ThreadRef, new_thread_id
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.descriptions import ListenerListReply, ThreadDescribeReply
from turnstile.schema.wire.inbox import ListenerListRequest, SendReply, SendRequest, ThreadDescribeRequest
from turnstile.schema.wire.limits import rate_limited

_SENDER = re.compile(r"[A-Za-z0-9_.:@-]{1,128}\Z")
EXTERNAL = "external"


class PumpVerbs:
    """The verbs over one ledger; new threads run on `worker_target`."""

    def __init__(self, pool: Pool, threads: ThreadStarter, worker_target: str, limits: ThreadLimits) -> None:
        self._pool = pool
        self._threads = threads
        self._worker_target = worker_target
        self._limits = limits

    async def send(self, request: VerbRequest) -> SendReply:
        """Store a message and wake its thread; a command that is delivered twice sends one message."""
        body = request.parse(SendRequest)
        body.check_size()
        if request.wait_seconds and body.correlation_id is None and request.command_id is None:
            raise rate_limited(request.wait_seconds)  # without an id it cannot be a repeat, so it is not looked up
        command = self._command(request, body)
        sent = await self._pool.transact(lambda conn: send_message(conn, command, self._limits))
        hit(Fault.THREAD_SENT)
        with about(message_id=sent.message_id):
            await self._threads.wake(sent.thread, [sent.message_id])
        return SendReply(
            status=ReplyStatus.ACCEPTED,
            thread_id=sent.thread.thread_id,
            message_id=sent.message_id,
            duplicate=sent.duplicate,
        )

    async def thread_describe(self, request: VerbRequest) -> ThreadDescribeReply:
        """A thread of the caller's channel with its messages and replies; raises `Refused` if there is none."""
        body = request.parse(ThreadDescribeRequest)
        thread = await self._pool.run(lambda conn: find_thread(conn, request.project_id, body.thread_id))
        if thread is None or thread.channel_id != request.channel_id:
            raise Refused("unknown_thread", "the channel has no such thread")
        named, most = body.thread_id, body.limit
        messages = await self._pool.run(lambda conn: list_thread_messages(conn, named, row_limit=most))
        replies = await self._pool.run(lambda conn: list_thread_replies(conn, named, row_limit=most))
        payloads: dict[MessageId, str] = {}
        if body.payloads:
            payloads = await self._pool.run(lambda conn: list_thread_payloads(conn, named, row_limit=most))
        return ThreadDescribeReply(
            status=ReplyStatus.ACCEPTED,
            thread=thread,
            messages=tuple(messages),
            payloads=payloads,
            replies=tuple(replies),
        )

    async def listener_list(self, request: VerbRequest) -> ListenerListReply:
        """The listeners that workers have declared, or one with its XSDs; raises `Refused` if there is none."""
        body = request.parse(ListenerListRequest)
        rows = await self._pool.run(
            lambda conn: list_listeners(conn, self._worker_target, name=body.listener, with_xsd=body.xsd)
        )
        if body.listener is not None and not rows:
            raise Refused("unknown_listener", "no worker has declared such a listener")
        return ListenerListReply(status=ReplyStatus.ACCEPTED, listeners=tuple(rows))

    def _command(self, request: VerbRequest, body: SendRequest) -> Send:
        sender = request.headers.get(headers.SENDER)
        if sender is not None and not _SENDER.match(sender):
            raise BadRequest(f"{headers.SENDER} must be 1 to 128 characters of A-Z a-z 0-9 _ . : @ -")
        # A listener's name has no colon, so a sender from outside can pose neither as a listener nor as the pump.
        requester = EXTERNAL if sender is None else f"{EXTERNAL}:{sender}"
        if body.reply_to is not None and not REPLY_INBOX.match(body.reply_to):
            raise BadRequest("reply_to must be a reply inbox of NATS")
        message = MessageId(uuid7())
        correlation = body.correlation_id or (request.command_id and f"command-{request.command_id}") or message
        text = body.text()
        parts = (request.channel_id, requester, body.to, body.thread_id or "", text)
        digest = hashlib.sha256("\0".join(parts).encode())
        thread = ThreadRef(
            project_id=request.project_id,
            channel_id=request.channel_id,
            thread_id=body.thread_id or new_thread_id(),
            worker_target=self._worker_target,
        )
        return Send(
            thread=thread,
            joins=body.thread_id is not None,
            requester=requester,
            to=body.to,
            payload=text,
            context_headers=headers.context_headers(request.headers),
            message_id=message,
            correlation_id=correlation,
            request_digest=digest.hexdigest(),
            reply_to=body.reply_to,
            wait_seconds=request.wait_seconds,
        )
