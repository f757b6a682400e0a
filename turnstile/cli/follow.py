"""Follows a turn to its end: events as they come, and the ledger once a second, so that a lost event cannot hang it."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager

from bridge.client import WatchEvent
from bridge.connection import NatsConnection
from ledger.pool import Pool
from schema.errors import ServerUnavailable
from schema.ids import AgentTurnId
from turnstile.cli.live import LiveView
from turnstile.cli.lookup import require_turn
from turnstile.cli.session import Session

POLL_SECONDS = 1.0
_LINGER_SECONDS = 0.1
"""How long after a turn's end the rest of its text may come: subscriptions are delivered side by side."""


async def follow_turn(
    session: Session, pool: Pool, turn: AgentTurnId, events: AsyncIterator[WatchEvent], view: LiveView
) -> None:
    """Print what happens until the turn has its outcome."""
    announced = asyncio.Event()
    reading = asyncio.create_task(_print(session, events, view, announced))
    try:
        while not await _has_ended(session, pool, turn):
            announced.clear()
            await _wait(announced, POLL_SECONDS)
        await asyncio.wait({reading}, timeout=_LINGER_SECONDS)
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        view.close()


async def wait_turn(session: Session, pool: Pool, turn: AgentTurnId) -> None:
    """Return once the turn has its outcome, asking the ledger alone."""
    never = asyncio.Event()
    while not await _has_ended(session, pool, turn):
        await _wait(never, POLL_SECONDS)


@contextmanager
def telling_outages(session: Session, conn: NatsConnection) -> Generator[None]:
    """Say when NATS goes away and comes back."""

    def changed() -> None:
        state = "connected again" if conn.connected.is_set() else "gone; waiting for it"
        session.out.remark(f"NATS at {conn.shown}: {state}")

    forget = conn.listen(changed)
    try:
        yield
    finally:
        forget()


async def _has_ended(session: Session, pool: Pool, turn: AgentTurnId) -> bool:
    try:
        return (await require_turn(pool, session.project, turn)).ended_at is not None
    except ServerUnavailable as error:  # its pool has waited, and we wait on: the turn goes on without us
        session.out.remark(f"waiting: {error}")
        return False


async def _print(session: Session, events: AsyncIterator[WatchEvent], view: LiveView, announced: asyncio.Event) -> None:
    try:
        async for event in events:
            if view.take(event):
                announced.set()
    except ServerUnavailable as error:
        session.out.remark(f"{error}; asking the ledger instead")


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
