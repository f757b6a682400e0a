"""Hints that turns may have ended, for requests that wait for an outcome and not for its text.

All who wait in a channel share one subscription to its `task` events, which is kept a while for the next. A hint is a
reason to look, never the truth: an event may be lost, so who waits looks now and then without one. Costs a look at
each `task` event of a channel in which somebody waits.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import decode_object

LINGER_SECONDS: Final = 30.0
"""How long a subscription is kept that nobody waits on."""


_Key = tuple[ProjectId, ChannelId]


@dataclass(slots=True)
class _Channel:
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether there is a subscription, or none can be made now."""
    waiting: dict[str, set[asyncio.Event]] = field(default_factory=dict[str, set[asyncio.Event]])
    """By their turns."""
    task: asyncio.Task[None] | None = None
    closing: asyncio.TimerHandle | None = None


class Ends:
    """The `task` events of the channels in which somebody waits."""

    def __init__(self, conn: NatsConnection) -> None:
        self._conn = conn
        self._channels: dict[_Key, _Channel] = {}

    @asynccontextmanager
    async def hinted(self, project: ProjectId, channel: ChannelId, turn: AgentTurnId) -> AsyncGenerator[asyncio.Event]:
        """An event that is set at each hint that this turn is over; inside none is missed while NATS is there."""
        key, hint = (project, channel), asyncio.Event()
        held = self._channels.get(key)
        if held is None:
            held = self._channels[key] = _Channel()
            held.task = asyncio.create_task(self._listen(key, held), name=f"ends-{project}")
        if held.closing is not None:
            held.closing.cancel()
            held.closing = None
        held.waiting.setdefault(turn, set()).add(hint)
        try:
            await held.heard.wait()
            yield hint
        finally:
            held.waiting[turn].discard(hint)
            if not held.waiting[turn]:
                del held.waiting[turn]
            if not held.waiting and held.task is not None:
                held.closing = asyncio.get_running_loop().call_later(LINGER_SECONDS, held.task.cancel)

    async def close(self) -> None:
        """End all subscriptions."""
        tasks = [held.task for held in self._channels.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _listen(self, key: _Key, held: _Channel) -> None:
        async def on_event(_: str, data: bytes) -> None:
            with contextlib.suppress(BadRequest):  # a stranger's
                for hint in held.waiting.get(str(decode_object(data).get("agent_turn_id")), ()):
                    hint.set()

        try:
            with contextlib.suppress(*NATS_TROUBLE):  # NATS was not there yet: the next who waits tries again
                subscription = await self._conn.hear(subjects.task_events_filter(*key), on_event)
                held.heard.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    await self._conn.unsubscribe(subscription)
        finally:
            self._channels.pop(key, None)
            held.heard.set()
            if held.closing is not None:
                held.closing.cancel()
