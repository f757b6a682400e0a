"""What belongs to one process: an advisory lock on a session of its own, which is watched (protocol §8).

The lock lives as long as its session. A process that ends loses it at once. One that is cut off gives up
`give_up` seconds after it last asked and was answered, before the server does, which ends a session that is `silent`
for so long. Where a session is ended from outside, the server lets go first: who takes a lock over therefore waits
`settle` seconds before it acts, longer than another takes to notice. What no lock holds back is a process that stands
still (SIGSTOP, a frozen machine) in the middle of a statement: that one the CAS gate fences.

It needs a session: a direct connection, or a pooler in session mode. Costs one connection and a round trip a second.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from turnstile.ledger.pool import Session, connect
from turnstile.ledger.postgres_errors import DRIVER_ERRORS, TRANSIENT, ErrorKind, kind_of
from turnstile.ledger.queries import query
from turnstile.schema.errors import ConfigError, ServerUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Seconds, each less than the next: what holds back whom is in the docstring of this module."""

    watch: float = 1.0
    give_up: float = 3.0
    settle: float = 4.0
    silent: float = 8.0


LOCK_TIMES = LockTimes()


class Hold:
    """A lock that is held until `lost` is set."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.why = ""
        """What became of it, once it is lost."""

    def lose(self, why: str) -> None:
        """It is not held any more; the first reason stays."""
        if not self.lost.is_set():
            self.why = why
            self.lost.set()


class Held(Exception):
    """Another session holds it; `holder` is what that calls itself."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class _Raw(Session, Protocol):
    def add_termination_listener(self, callback: Callable[[Any], None]) -> None: ...
    async def close(self, *, timeout: float) -> None: ...


@asynccontextmanager
async def try_hold(url: str, name: str, holder: str, pace: LockTimes = LOCK_TIMES) -> AsyncGenerator[Hold]:
    """Hold the lock of this name for as long as the block lasts, or until `Hold.lost`.

    `holder` is what others hear of who holds it. Raises `Held` if another session does, `ServerUnavailable` if there
    is none to be had, `ConfigError` behind a pooler that gives each statement another session.
    """
    conn = await _connect(url, holder, pace)
    watching: asyncio.Task[None] | None = None
    try:
        backend = await _take(conn, name)
        hold = Hold()
        conn.add_termination_listener(lambda _: hold.lose("its connection was closed"))
        watching = asyncio.create_task(_watch(conn, name, backend, hold, pace))
        yield hold
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        await _close(conn)


async def _connect(url: str, holder: str, pace: LockTimes) -> _Raw:
    settings = {
        "application_name": holder,
        "idle_session_timeout": str(int(pace.silent * 1000)),
        "jit": "off",
    }
    try:
        conn: _Raw = await connect(
            url, timeout=10, command_timeout=pace.give_up, statement_cache_size=0, server_settings=settings
        )
    except DRIVER_ERRORS as error:
        if kind_of(error) is ErrorKind.REFUSED:
            raise ConfigError(f"no session for the lock ({_kind(error)}): check [database].url") from None
        if kind_of(error) not in TRANSIENT:
            raise
        raise ServerUnavailable(f"no session for the lock ({_kind(error)})") from error
    return conn


async def _take(conn: _Raw, name: str) -> int:
    """The session that holds it now."""
    try:
        taken = await query("try_hold").one(conn, name=name)
        backend: int = taken["backend"]
        if taken["read_only"]:
            raise ServerUnavailable("the server is read-only, and a lock there keeps nobody else away")
        if not taken["held"]:
            found = await query("holder_of").opt(conn, name=name)
            raise Held("another process" if found is None else found["holder"] or "another process")
        if not (await query("still_holds").one(conn, name=name, backend=backend))["held"]:
            raise ConfigError(
                f"{name}: the lock needs a session of its own, and this connection has another one for each statement: "
                "[database].url must name PostgreSQL itself, or a pooler in session mode"
            )
    except DRIVER_ERRORS as error:
        if kind_of(error, connected=not conn.is_closed()) not in TRANSIENT:
            raise
        raise ServerUnavailable(f"the session for the lock was lost ({_kind(error)})") from error
    return backend


async def _watch(conn: _Raw, name: str, backend: int, hold: Hold, pace: LockTimes) -> None:
    """Ask now and then. An answer that is late counts as none: the server may let go before the next one."""
    clock = asyncio.get_running_loop().time
    proven = clock()
    while not hold.lost.is_set():
        await asyncio.sleep(pace.watch)
        asked = clock()
        try:
            async with asyncio.timeout_at(proven + pace.give_up):
                held = (await query("still_holds").one(conn, name=name, backend=backend))["held"]
        except DRIVER_ERRORS as error:
            hold.lose(f"its session did not answer in {pace.give_up:g} s ({_kind(error)})")
            return
        if not held:
            hold.lose("its session is another one")
        proven = asked


async def _close(conn: _Raw) -> None:
    """Gone, whatever state it is in; the server lets go when it sees that."""
    if conn.is_closed():
        return
    with contextlib.suppress(*DRIVER_ERRORS):
        await conn.close(timeout=1)
    conn.terminate()


def _kind(error: BaseException) -> str:
    """An error by its type: its message may hold an address with a password."""
    return type(error).__name__
