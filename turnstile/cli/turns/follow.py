"""Follows a turn to its end: prints its events, and queries the ledger once a second in case an event is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnstile.cli.errors import NoBridge
from turnstile.cli.session import Session
from turnstile.cli.turns.live import LiveView
from turnstile.cli.turns.lookup import require_turn
from turnstile.cli.turns.missing import Missing
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.client import BridgeClient, WatchEvent
from turnstile.sdk.nats_turns import describe, turn_in
from turnstile.transport.connection import NatsConnection

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

POLL_SECONDS = 1.0
_LINGER_SECONDS = 0.1
"""How long to wait for the rest of a turn's text after its end: events of two subscriptions come in any order."""


Look = Callable[[], Awaitable[TurnView]]
"""Reads the turn's state; raises `ServerUnavailable`."""


def look_into_ledger(session: Session, pool: "Pool", turn: AgentTurnId, *, gives_up: bool = False) -> Look:
    """Reads the turn from the ledger, and prints why it does not begin; with `gives_up` it may raise `NoBridge`."""
    missing = Missing(session, pool, gives_up=gives_up)

    async def look() -> TurnView:
        view = await require_turn(pool, session.project, turn)
        await missing.check(view)
        return view

    return look


def look_at(session: Session, pool: "Pool | None", client: BridgeClient, turn: AgentTurnId) -> Look:
    """Reads the turn from the ledger, or from the bridge if the ledger's driver is not installed."""
    if pool is not None:
        return look_into_ledger(session, pool, turn)

    async def look() -> TurnView:
        return turn_in(await describe(client, {"agent_turn_id": turn}))

    return look


async def follow_turn(session: Session, look: Look, events: AsyncIterator[WatchEvent], view: LiveView) -> None:
    """Print what happens until the turn has its outcome."""
    announced = asyncio.Event()
    reading = asyncio.create_task(_print(session, events, view, announced))
    try:
        while not await _has_ended(session, look):
            announced.clear()
            await _wait(announced, POLL_SECONDS)
        await asyncio.wait({reading}, timeout=_LINGER_SECONDS)
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        view.close()


async def wait_turn(session: Session, pool: "Pool", turn: AgentTurnId) -> None:
    """Poll the ledger until the turn has its outcome; raises `NoBridge` if no bridge answers for long.

    If the turn does not begin, print the reason.
    """
    never, look = asyncio.Event(), look_into_ledger(session, pool, turn, gives_up=True)
    while not await _has_ended(session, look):
        await _wait(never, POLL_SECONDS)


@contextmanager
def printing_outages(session: Session, conn: NatsConnection) -> Generator[None]:
    """Print a remark when the connection to NATS is lost, and when it is back."""

    def changed() -> None:
        state = "connected again" if conn.connected.is_set() else "gone; waiting for it"
        session.out.remark(f"NATS at {conn.shown}: {state}")

    forget = conn.listen(changed)
    try:
        yield
    finally:
        forget()


@contextmanager
def explaining_interrupt(session: Session, what: str, ways: Mapping[str, str]) -> Generator[None]:
    """If Ctrl-C ends the block, print that `what` goes on; `ways` maps each command to what it does with it."""
    try:
        yield
    except asyncio.CancelledError:
        own = session.options
        named = (("--project", own.project), ("--data", own.data), ("--config", own.config))
        same = "".join(f" {option} {value}" for option, value in named if value)
        commands = ", ".join(f"`turnstile {command}{same}` {does}" for command, does in ways.items())
        session.out.remark(f"{what} goes on: {commands}")
        raise


def ways_of(turn: AgentTurnId) -> dict[str, str]:
    """Commands for a turn that goes on, each with what it does."""
    return {f"turn show {turn}": "shows it", f"watch {turn}": "waits for it", f"turn stop {turn}": "ends it"}


async def _has_ended(session: Session, look: Look) -> bool:
    try:
        view = await look()
    except NoBridge:
        raise
    except ServerUnavailable as error:  # keep waiting: the turn goes on
        session.out.remark(f"waiting: {error}")
        return False
    return view.ended_at is not None


async def _print(session: Session, events: AsyncIterator[WatchEvent], view: LiveView, announced: asyncio.Event) -> None:
    try:
        async for event in events:
            if view.take(event):
                announced.set()
    except ServerUnavailable as error:
        session.out.remark(f"{error}; querying the ledger instead")


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
