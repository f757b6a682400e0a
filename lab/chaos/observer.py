"""Observes every `task` event: by its own consumer on the event stream, and by a core subscription, without proxies.

It declares its consumer, never the streams, since the run tests that these are declared again. A stored event is
identified by sequence and time, so a redelivery is not a duplicate. Two events of a turn between two deletions are.
"""

import asyncio
import json
import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import nats.errors
from nats.aio.msg import Msg

from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, connect
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import declare_consumer

CONSUMER = "chaos_observer"
TASKS = f"cg.{subjects.VERSION}.*.*.evt.agent.*.task"
STREAMS = (subjects.CMD_STREAM, subjects.EVT_STREAM)


@dataclass
class Observer:
    """`stored` has the times of each turn's stored events, `heard` the number of its events on core NATS."""

    conn: NatsConnection
    stored: dict[str, dict[tuple[float, int], None]] = field(
        default_factory=lambda: defaultdict[str, dict[tuple[float, int], None]](dict)
    )
    heard: Counter[str] = field(default_factory=Counter[str])
    statuses: dict[str, str] = field(default_factory=dict[str, str])
    created: list[float] = field(default_factory=list[float])
    """The times at which the event stream was created."""
    last_event: float = field(default_factory=time.time)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _pulling: "asyncio.Task[None] | None" = None

    @classmethod
    async def start(cls, url: str) -> "Observer":
        """Listening."""
        observer = cls(await connect(url, name="chaos-observer"))
        await observer.conn.subscribe(TASKS, observer._on_core)
        pull = ContinuousPull(observer.conn, subjects.EVT_STREAM, CONSUMER, observer._ensure)
        observer._pulling = asyncio.create_task(pull.run(observer._on_stored, observer._stop))
        return observer

    async def close(self) -> None:
        """Stop observing."""
        self._stop.set()
        if self._pulling is not None:
            await asyncio.wait({self._pulling}, timeout=10)
        await self.conn.close()

    @property
    def seen(self) -> set[str]:
        """Turns whose `task` event was seen, on either way."""
        return self.stored.keys() | self.heard.keys()

    def duplicates(self) -> dict[str, int]:
        """Turns with more than one stored event between two deletions, with the number of surplus events."""
        repeats: dict[str, int] = {}
        for turn, places in self.stored.items():
            by_incarnation = Counter(bisect(self.created, at) for at, _ in places)
            if more := sum(count - 1 for count in by_incarnation.values()):
                repeats[turn] = more
        return repeats

    def repeated_after_deletion(self) -> int:
        """Number of turns whose event was stored again after the stream was deleted."""
        return sum(len({bisect(self.created, at) for at, _ in places}) > 1 for places in self.stored.values())

    async def caught_up(self) -> bool:
        """Wait at most 10 seconds until all events are read; False if some are left."""
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            with suppress(*NATS_TROUBLE):
                info = await self.conn.js.consumer_info(subjects.EVT_STREAM, CONSUMER, timeout=2)
                if not info.num_pending and not info.num_ack_pending:
                    return True
            await asyncio.sleep(0.05)
        return False

    async def delete(self, streams: Sequence[str]) -> None:
        """Read all events, then delete the streams."""
        async with asyncio.timeout(60):
            while not await self.caught_up():
                await self.conn.connected.wait()
            for stream in streams:
                while not await self._deleted(stream):  # noqa: ASYNC110 -- the server is asked
                    await asyncio.sleep(0.1)

    async def _deleted(self, stream: str) -> bool:
        try:
            answer = await self.conn.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=2)
        except NATS_TROUBLE:
            return False
        return bool(json.loads(answer.data).get("success")) or b"not found" in answer.data

    async def _ensure(self) -> None:
        try:
            await declare_consumer(self.conn, CONSUMER, TASKS, stream=subjects.EVT_STREAM, ack_wait_seconds=2)
            answer = await self.conn.request(f"$JS.API.STREAM.INFO.{subjects.EVT_STREAM}", b"", timeout=2)
            created = _moment(str(json.loads(answer.data).get("created", "")))
            if created not in self.created:
                self.created = sorted([*self.created, created])
        except (TurnstileError, ValueError) as error:
            raise ServerUnavailable(f"the observer's consumer: {error}") from error

    async def _on_stored(self, batch: list[Msg]) -> None:
        for msg in batch:
            place = msg.metadata
            turn, status = _read(msg)
            self.stored[turn][place.timestamp.timestamp(), place.sequence.stream] = None
            self.statuses[turn] = status
            self.last_event = time.time()
            with suppress(nats.errors.Error, OSError):
                await msg.ack()

    async def _on_core(self, msg: Msg) -> None:
        turn, status = _read(msg)
        self.heard[turn] += 1
        self.statuses[turn] = status
        self.last_event = time.time()


def _read(msg: Msg) -> tuple[str, str]:
    event = json.loads(msg.data)
    return str(event["agent_turn_id"]), str(event["status"])


def _moment(text: str) -> float:
    """Seconds since the epoch; the server writes nanoseconds, which `datetime` does not read."""
    seconds, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}+00:00").timestamp() + float(f"0.{rest or 0}")
