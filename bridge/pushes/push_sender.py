"""Notifies receivers over HTTP when their turns change their state, at least once each (protocol §17.3).

A claim holds a notification for longer than sending it may take; whatever dies in between, it is due again, with the
same id. If a receiver does not answer with 2xx, the notification is repeated after growing pauses, for a day. Any
number of bridges may send. Costs two statements each `poll_seconds`, and at most `_MOST` connections, `_SHARE` of them
of one project.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, TypeAlias

import httpx

from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.receivers import ClaimedPush, claim_pushes, fail_push, record_push
from turnstile.ledger.pushes.webhooks import ClaimedEvent, claim_events, fail_event, record_event_sent
from turnstile.ledger.queries import Connection
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.outbound import Names, destination, outbound_client, post
from turnstile.runtime.telemetry import SILENT, Meter, Metric
from turnstile.schema.errors import Refused, TurnstileError
from turnstile.schema.ids import ProjectId
from turnstile.schema.wire.webhook_requests import PREFIX
from turnstile.transport.limited_log import LimitedLog

log = logging.getLogger(__name__)
Claimed: TypeAlias = ClaimedPush | ClaimedEvent
"""What is to be sent: the state of a turn to a receiver, or an event to a webhook."""
_MOST: Final = 64
_SHARE: Final = 16
_SEND_SECONDS: Final = 10.0
_HOLD_SECONDS: Final = 20.0
"""How long a claim holds: longer than resolving a name, sending and recording may take."""


@dataclass(frozen=True, slots=True)
class PushTimes:
    """How often receivers are looked for, and how long those are tried that do not answer, in seconds."""

    poll: float = 1.0
    longest_pause: float = 300.0
    give_up: float = 86_400.0


@dataclass
class PushSender:
    """Sends what is due until it is stopped."""

    pool: Pool
    times: PushTimes = field(default_factory=PushTimes)
    private: bool = False
    """Whether notifications may go to private addresses."""
    meter: Meter = SILENT.meter
    names: Names = field(default_factory=Names)

    def __post_init__(self) -> None:
        self._in_hand: dict[asyncio.Task[None], ProjectId] = {}
        self._limited = LimitedLog(log)

    async def run(self, stop: asyncio.Event) -> None:
        """Claim and send; what is in hand when it stops is due again at another bridge."""
        async with outbound_client(_SEND_SECONDS) as client:
            while not stop.is_set():
                try:
                    claimed = await self._claim()
                except TurnstileError as error:
                    self._limited.warning("claim", "notifications wait: %s", error)
                    claimed = []
                except Exception:  # a bridge outlives what goes wrong here
                    log.exception("notifications wait")
                    claimed = []
                for push in claimed:
                    task = asyncio.create_task(self.send(client, push))
                    self._in_hand[task] = push.project_id
                    task.add_done_callback(self._done)
                if not claimed:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), self.times.poll)
            for task in self._in_hand:
                task.cancel()
            if self._in_hand:
                await asyncio.wait(list(self._in_hand))

    async def _claim(self) -> list[Claimed]:
        room, held = _MOST - len(self._in_hand), Counter(self._in_hand.values())
        if room <= 0:
            return []
        busy = [project for project, count in held.items() if count >= _SHARE]
        claimed: list[Claimed] = [
            *await self.pool.run(
                lambda conn: claim_pushes(conn, busy=busy, share=_SHARE, hold_seconds=_HOLD_SECONDS, row_limit=room)
            )
        ]
        if room := room - len(claimed):
            claimed += await self.pool.run(
                lambda conn: claim_events(conn, busy=busy, share=_SHARE, hold_seconds=_HOLD_SECONDS, row_limit=room)
            )
        if claimed:
            hit(Fault.PUSH_CLAIMED)
        return claimed

    async def send(self, client: httpx.AsyncClient, push: Claimed) -> None:
        """Send one notification, and record what came of it."""
        body = json.dumps(body_of(push)).encode()
        gone, error = False, ""
        try:
            to = await destination(push.url, self.names, push.project_id, private=self.private)
            status = await post(client, to, body, headers_of(push, body, int(time.time())), seconds=_SEND_SECONDS)
            gone = status == HTTPStatus.GONE
            error = "" if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES else f"it answered {status}"
        except Refused as refused:
            error = str(refused)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as trouble:
            error = f"it cannot be reached: {type(trouble).__name__}"
        hit(Fault.PUSH_SENT)
        if not error:
            self.meter.count(Metric.PUSHES, outcome="told")
            await self.pool.run(lambda conn: _record(conn, push))
        else:
            times = self.times
            given_up = await self.pool.run(
                lambda conn: _fail(
                    conn,
                    push,
                    error,
                    gone=gone,
                    longest_pause=times.longest_pause,
                    give_up_seconds=times.give_up,
                )
            )
            self.meter.count(Metric.PUSHES, outcome="given_up" if given_up else "failed")
            if given_up:
                receiver = push.receiver_id if isinstance(push, ClaimedPush) else push.webhook_id
                self._limited.warning("given up", "turn %s: receiver %s: %s", push.agent_turn_id, receiver, error)
        hit(Fault.PUSH_RECORDED)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_hand.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._limited.warning("record", "a notification is sent again: %s", type(error).__name__)


def _record(conn: Connection, push: Claimed) -> Awaitable[bool]:
    return record_push(conn, push) if isinstance(push, ClaimedPush) else record_event_sent(conn, push)


def _fail(
    conn: Connection, push: Claimed, error: str, *, gone: bool, longest_pause: float, give_up_seconds: float
) -> Awaitable[bool]:
    times = {"longest_pause": longest_pause, "give_up_seconds": give_up_seconds}
    if isinstance(push, ClaimedPush):
        return fail_push(conn, push, error, gone=gone, **times)
    return fail_event(conn, push, error, gone=gone, **times)


def body_of(push: Claimed) -> dict[str, object]:
    """A notification: ids and the state, as A2A says, or an event; nothing of what the turn has said."""
    if isinstance(push, ClaimedEvent):
        return {"type": push.type, "timestamp": _moment(push.happened_at), "data": push.data}
    status = {"state": f"TASK_STATE_{push.state.partition(':')[0].upper()}", "timestamp": _moment(push.state_at)}
    return {"statusUpdate": {"taskId": push.agent_turn_id, "contextId": push.context_id, "status": status}}


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def headers_of(push: Claimed, body: bytes, now: int) -> dict[str, str]:
    """The headers: the id, the time, and the signature over both and the body, as Standard Webhooks says."""
    is_event = isinstance(push, ClaimedEvent)
    name = push.event_id if is_event else push.id
    headers = {
        "content-type": "application/json" if is_event else "application/a2a+json",
        "user-agent": "turnstile",
        "webhook-id": name,
        "webhook-timestamp": str(now),
    }
    key = base64.b64decode(push.secret.removeprefix(PREFIX)) if is_event else (push.token or "").encode()
    if key:
        signed = hmac.new(key, f"{name}.{now}.".encode() + body, hashlib.sha256).digest()
        headers["webhook-signature"] = "v1," + base64.b64encode(signed).decode()
    if not is_event and push.token is not None:
        headers["x-a2a-notification-token"] = push.token
    return headers
