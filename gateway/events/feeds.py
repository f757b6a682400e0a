"""The feeds of a gateway: one for each turn that somebody follows, kept a while for those who come back."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from turnstile.gateway.events.ends import Ends
from turnstile.gateway.events.feed import Sources, TurnFeed
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.ids import AgentTurnId, ProjectId
from turnstile.schema.wire.descriptions import TurnView

log = logging.getLogger(__name__)
_LOOK_SECONDS = 5.0
"""How often who waits looks into the ledger without a hint, while NATS is there."""
_LOOK_ALONE_SECONDS = 1.0
LINGER_SECONDS: Final = 5.0
"""How long a feed is kept that nobody reads: clients whose connection broke come back to it."""


@dataclass(slots=True)
class _Open:
    feed: TurnFeed
    task: asyncio.Task[None]
    readers: int = 0
    closing: asyncio.TimerHandle | None = None


class Feeds:
    """Opens, shares and closes feeds."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.ends = Ends(sources.conn)
        self._open: dict[tuple[ProjectId, AgentTurnId], _Open] = {}

    def __len__(self) -> int:
        """Open feeds."""
        return len(self._open)

    @property
    def readers(self) -> int:
        """Who follows a turn."""
        return sum(held.readers for held in self._open.values())

    @asynccontextmanager
    async def following(self, view: TurnView) -> AsyncGenerator[TurnFeed]:
        """The feed of this turn, while inside."""
        key = view.project_id, view.agent_turn_id
        held = self._open.get(key)
        if held is None or held.feed.failed:
            feed = TurnFeed(self._sources, view)
            held = self._open[key] = _Open(feed, asyncio.create_task(feed.run(), name=f"feed-{view.agent_turn_id}"))
            held.task.add_done_callback(_log_failure)
        if held.closing is not None:
            held.closing.cancel()
            held.closing = None
        held.readers += 1
        try:
            yield held.feed
        finally:
            held.readers -= 1
            if not held.readers and self._open.get(key) is held:
                held.closing = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._drop, key)

    def known(self, project: ProjectId, turn: AgentTurnId) -> TurnView | None:
        """The turn as its open feed knows it; None if it has none."""
        held = self._open.get((project, turn))
        return None if held is None or held.feed.failed else held.feed.view

    async def until_over(self, view: TurnView) -> TurnView:
        """The turn once it is over; costs no feed, as nobody hears its text."""
        pool, conn = self._sources.pool, self._sources.conn
        project, turn = view.project_id, view.agent_turn_id
        async with self.ends.hinted(project, view.channel_id, turn) as hint:
            while True:
                hint.clear()
                current = await pool.run(lambda db: describe_turn(db, project, turn))
                if current is not None and current.ended_at is not None:
                    return current
                look = _LOOK_SECONDS if conn.connected.is_set() else _LOOK_ALONE_SECONDS
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(hint.wait(), look)

    async def close(self) -> None:
        """End all feeds."""
        await self.ends.close()
        tasks = [held.task for held in self._open.values()]
        for held in self._open.values():
            if held.closing is not None:
                held.closing.cancel()
            held.task.cancel()
        self._open.clear()
        if tasks:
            await asyncio.wait(tasks)

    def _drop(self, key: tuple[ProjectId, AgentTurnId]) -> None:
        held = self._open.get(key)
        if held is not None and not held.readers:
            del self._open[key]
            held.task.cancel()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a feed failed: %s", type(error).__name__, exc_info=error)
