"""The memory-backed stream of streamed text, and reading back what it still holds (protocol §5, §14.2).

It is a gateway's: who only listens needs none. NATS forgets it when it restarts, so `declare_chunk_stream` is called
after each connect. Nothing depends on what it holds: the cards of a step are the truth, and the text of a running step
is sent to those who listen now in any case. Reading makes no consumer, so nothing is left behind on the server.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final

from nats.aio.msg import Msg

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, words_of
from turnstile.transport.json_messages import encode, headers_of
from turnstile.transport.streams import JetStreamError, call_api

_SECOND = 1_000_000_000
_BATCH = 1000
_REPLY_SECONDS = 3.0
_SKEW = timedelta(seconds=60)
"""The clocks of PostgreSQL and NATS may differ by this much."""
_NOT_FOUND = 404
CHUNK_SECONDS: Final = 600
"""How long text is kept; a step that takes longer is resumed by its card."""

_STREAM: JsonObject = {
    "name": subjects.STR_STREAM,
    "subjects": [subjects.STR_SUBJECTS],
    "storage": "memory",
    "retention": "limits",
    "discard": "old",
    "max_age": CHUNK_SECONDS * _SECOND,
    "max_bytes": 64 << 20,
    "max_msgs_per_subject": 50_000,
    "duplicate_window": 0,
    "num_replicas": 1,
    "no_ack": True,
    "allow_direct": True,
}


async def declare_chunk_stream(conn: NatsConnection) -> None:
    """Make the stream if it is not there; raises `ServerUnavailable`, or `JetStreamError` if JetStream refuses."""
    try:
        await call_api(conn, f"STREAM.INFO.{subjects.STR_STREAM}", {})
    except JetStreamError as error:
        if error.status != _NOT_FOUND:
            raise
        await call_api(conn, f"STREAM.CREATE.{subjects.STR_STREAM}", _STREAM)


async def replay(conn: NatsConnection, subject: str, since: datetime) -> list[bytes]:
    """The messages of a subject that the stream holds, in order, from a little before `since`.

    Empty without a stream; raises `ServerUnavailable` if there is no answer.
    """
    chunks: list[bytes] = []
    start: JsonObject = {"start_time": (since - _SKEW).astimezone(UTC).isoformat().replace("+00:00", "Z")}
    while True:
        batch, last = await _batch(conn, {**start, "next_by_subj": subject, "batch": _BATCH})
        chunks += batch
        if len(batch) < _BATCH:
            return chunks
        start = {"seq": last + 1}


async def _batch(conn: NatsConnection, request: JsonObject) -> tuple[list[bytes], int]:
    """A batch of messages, and the number of the last one in the stream."""
    replies: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = conn.nc.new_inbox()
    chunks: list[bytes] = []
    last = 0
    try:
        subscription = await conn.subscribe(inbox, replies.put)
        try:
            await conn.send(f"$JS.API.DIRECT.GET.{subjects.STR_STREAM}", encode(request), reply=inbox)
            while True:
                msg = await asyncio.wait_for(replies.get(), _REPLY_SECONDS)
                headers = headers_of(msg)
                if "Nats-Sequence" not in headers:  # the end of the batch, nothing found, or no such stream
                    return chunks, last
                chunks.append(msg.data)
                last = int(headers["Nats-Sequence"])
        finally:
            await conn.unsubscribe(subscription)
    except NATS_TROUBLE as error:
        raise ServerUnavailable(f"the stream of text did not answer: {words_of(error)}") from error
