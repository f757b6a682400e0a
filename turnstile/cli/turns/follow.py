"""Follows a turn to its end: shows what happens, and looks once a second in case an event is lost."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from turnstile.cli.session import Session
from turnstile.cli.turns.lookup import turn_request
from turnstile.cli.turns.missing import CHECK_SECONDS, Missing, bridge_answers, has_begun
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.ledger_reads import ReadReply, ReadRequest
from turnstile.sdk.nats_turns import turn_in
from turnstile.sdk.turn import Turn

Piece = TypeVar("Piece")
POLL_SECONDS = 1.0
_LINGER_SECONDS = 0.1
"""How long to wait for the rest of a turn's text after its end: events of two subscriptions come in any order."""


@asynccontextmanager
async def explaining(session: Session, turn: Turn) -> AsyncGenerator[None]:
    """Print beside the block why the turn does not begin, or that no bridge answers; nothing through a gateway."""
    if session.gateway is not None:
        yield
        return
    watching = asyncio.create_task(Missing(session).watch(turn))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def wait_directly(
    session: Session, turn: AgentTurnId, read: Callable[[ReadRequest], Awaitable[ReadReply]]
) -> None:
    """Read the ledger until the turn has its outcome, and print why it does not begin.

    Raises `NoBridge` if no bridge answers for long.
    """
    missing, loop = Missing(session, gives_up=True), asyncio.get_running_loop()
    check_at = loop.time() + CHECK_SECONDS
    while True:
        try:
            view = turn_in(await read(turn_request(turn)))
        except ServerUnavailable as error:  # keep waiting: the turn goes on
            session.out.remark(f"waiting: {error}")
        else:
            if view.ended_at is not None:
                return
            if not has_begun(view) and loop.time() >= check_at:
                missing.show(view, bridge=await bridge_answers(session))
                check_at = loop.time() + CHECK_SECONDS
        await asyncio.sleep(POLL_SECONDS)


async def follow_events(
    session: Session, turn: Turn, happening: AsyncIterator[Piece], take: Callable[[Piece], bool]
) -> None:
    """Show what happens until the turn has its outcome: each piece goes to `take`, which says whether it is the end.

    The turn is looked at, too: what is shown may break off.
    """
    announced = asyncio.Event()
    reading = asyncio.create_task(_show(session, happening, take, announced))
    try:
        async with explaining(session, turn):
            while not await _has_ended(turn):
                announced.clear()
                await _wait(announced, POLL_SECONDS)
        await asyncio.wait({reading}, timeout=_LINGER_SECONDS)
    finally:
        reading.cancel()
        await asyncio.wait({reading})


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


async def _has_ended(turn: Turn) -> bool:
    try:
        return (await turn.describe()).ended_at is not None
    except ServerUnavailable:  # keep waiting: the turn goes on
        return False


async def _show(
    session: Session, happening: AsyncIterator[Piece], take: Callable[[Piece], bool], announced: asyncio.Event
) -> None:
    try:
        async for piece in happening:
            if take(piece):
                announced.set()
    except ServerUnavailable as error:
        session.out.remark(f"{error}; looking at the turn instead")
    announced.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
