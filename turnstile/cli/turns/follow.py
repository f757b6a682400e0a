"""Follows a turn to its end: shows what happens, and queries the ledger once a second in case an event is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from turnstile.cli.errors import NoBridge
from turnstile.cli.session import Session
from turnstile.cli.turns.lookup import require_turn
from turnstile.cli.turns.missing import Missing
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.descriptions import TurnView

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

Piece = TypeVar("Piece")
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


async def follow_turn(
    session: Session, look: Look | None, happening: AsyncIterator[Piece], take: Callable[[Piece], bool]
) -> None:
    """Show what happens until the turn has its outcome: each piece goes to `take`, which says whether it is the end.

    With `look` the ledger is asked, too, and what is shown may break off. Without it the last piece is the end.
    """
    if look is None:
        async for piece in happening:
            take(piece)
        return
    announced = asyncio.Event()
    reading = asyncio.create_task(_show(session, happening, take, announced))
    try:
        while not await _has_ended(session, look):
            announced.clear()
            await _wait(announced, POLL_SECONDS)
        await asyncio.wait({reading}, timeout=_LINGER_SECONDS)
    finally:
        reading.cancel()
        await asyncio.wait({reading})


async def wait_turn(session: Session, pool: "Pool", turn: AgentTurnId) -> None:
    """Poll the ledger until the turn has its outcome; raises `NoBridge` if no bridge answers for long.

    If the turn does not begin, print the reason.
    """
    never, look = asyncio.Event(), look_into_ledger(session, pool, turn, gives_up=True)
    while not await _has_ended(session, look):
        await _wait(never, POLL_SECONDS)


@contextmanager
def explaining_interrupt(session: Session, what: str, ways: Mapping[str, str]) -> Generator[None]:
    """If Ctrl-C ends the block, print that `what` goes on; `ways` maps each command to what it does with it."""
    try:
        yield
    except asyncio.CancelledError:
        same = same_options(session)
        commands = ", ".join(f"`turnstile {command}{same}` {does}" for command, does in ways.items())
        session.out.remark(f"{what} goes on: {commands}")
        raise


def same_options(session: Session) -> str:
    """The options by which another command finds the same servers and project, each after a blank."""
    options = session.options
    named = (
        ("--project", options.project),
        ("--data", options.data),
        ("--config", options.config),
        ("--url", options.url),
    )
    named += (("--token-file", options.token_file),)
    return "".join(f" {option} {value}" for option, value in named if value)


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


async def _show(
    session: Session, happening: AsyncIterator[Piece], take: Callable[[Piece], bool], announced: asyncio.Event
) -> None:
    try:
        async for piece in happening:
            if take(piece):
                announced.set()
    except ServerUnavailable as error:
        session.out.remark(f"{error}; querying the ledger instead")
    announced.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
