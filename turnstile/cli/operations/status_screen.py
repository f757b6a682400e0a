"""The screen of `turnstile top`: redrawn at an interval, or JSON lines.

It needs no mouse and no key but q, so it works in any terminal. At the end it restores the terminal.
"""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnstile.cli.output import clean, clock
from turnstile.cli.session import Session
from turnstile.ledger.operations.monitor import ROW_LIMIT, LimitedModel, SystemStatus, look_around
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import ServerUnavailable

_STATES = ("idle", "dispatched", "running", "suspended")
_STATUSES = ("success", "partial", "failed", "canceled", "timeout")
_ROWS = ("queued", "pending", "processing", "deferred")
_MINUTE = 60


async def watch_status(session: Session, pool: Pool, interval: float, *, once: bool) -> None:
    """Show the system's status until q or an interrupt, or once; the screen says if the ledger is away."""
    first = await pool.run(look_around)
    if session.out.as_json:
        await _lines(session, pool, first, interval)
    elif once or not sys.stdout.isatty():
        session.out.show(screen(first))
    else:
        await _live(session, pool, first, interval)


async def _live(session: Session, pool: Pool, first: SystemStatus, interval: float) -> None:
    hint, console = Text("q ends it", style="dim"), session.out.console
    page = Group(screen(first), hint)
    with _keys() as ended, Live(page, console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while not await _wait(ended, interval):
            querying = asyncio.create_task(pool.run(look_around))
            quitting = asyncio.create_task(ended.wait())
            await asyncio.wait({querying, quitting}, return_when=asyncio.FIRST_COMPLETED)
            quitting.cancel()
            if not querying.done():  # q was pressed while the query waited for the ledger
                querying.cancel()
                return
            try:
                page = Group(screen(querying.result()), hint)
                live.update(page, refresh=True)
            except ServerUnavailable as error:
                live.update(Group(page, Text(clean(str(error)), style="red")), refresh=True)


async def _lines(session: Session, pool: Pool, status: SystemStatus, interval: float) -> None:
    while True:
        session.out.json_line(status)
        await asyncio.sleep(interval)
        status = await pool.run(look_around)


def screen(status: SystemStatus) -> RenderableType:
    """The whole screen, as text that fits 80 columns."""
    ended = sum(status.outcomes.values())
    mean = "" if status.mean_seconds is None else f", {status.mean_seconds:.2f} s each"
    due = f"{status.oldest_due_seconds:.1f} s" if status.oldest_due_seconds else "none"
    facts = {
        "agents": _counts(status.agents, _STATES),
        "inbox": _counts(status.rows, _ROWS),
        **({"tried again": _counts(status.tried_again)} if status.tried_again else {}),
        "inbox lag": due,
        "last minute": f"{_count(ended)} turns, {ended / _MINUTE:.1f}/s{mean}",
        "outcomes": _counts(status.outcomes, _STATUSES),
        "open threads": _count(status.open_threads),
        **({"limited models": "\n".join(map(_limited, status.limited_models))} if status.limited_models else {}),
        "workers": _counts(status.workers) or "none: start `turnstile worker`",
        "repairs so far": _counts(status.repairs) or "none",
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(clean(value)))
    return Group(Text(f"turnstile, {clock(status.seen_at)}", style="bold"), table)


def _limited(model: LimitedModel) -> str:
    now = datetime.now(UTC)
    paused = model.paused_until is not None and model.paused_until > now
    until = f"paused until {clock(model.paused_until)}, " if paused and model.paused_until is not None else ""
    return f"{model.model} ({model.account}): {until}{_count(model.waiting)} waiting"


def _counts(counts: Mapping[str, int], first: tuple[str, ...] = ()) -> str:
    names = [*first, *sorted(counts.keys() - set(first))]
    return "   ".join(f"{name} {_count(counts.get(name, 0))}" for name in names)


def _count(number: int) -> str:
    return f"{ROW_LIMIT}+" if number >= ROW_LIMIT else str(number)


@contextmanager
def _keys() -> Generator[asyncio.Event]:
    """An event that the key q sets, without Enter."""
    ended = asyncio.Event()
    if not sys.stdin.isatty():
        yield ended
        return
    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)

    def on_key() -> None:
        if set(os.read(descriptor, 64)) & set(b"qQ"):
            ended.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, on_key)
    try:
        yield ended
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _wait(ended: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), seconds)
    return ended.is_set()
