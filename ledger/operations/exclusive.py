"""Exclusive use of a worker target: an advisory lock on a session of its own, which is checked (protocol §8).

The lock lives as long as its session; a process that ends loses it at once. A process that is cut off from the server
gives up `give_up` seconds after its last successful check, before the server ends the session after `silent` seconds.
If a session is ended from outside, the server releases the lock first: a process that takes a lock over therefore waits
`settle` seconds before it acts, longer than the former holder takes to notice. A process that is frozen (SIGSTOP) in
the middle of a statement cannot be stopped by a lock; the CAS gate fences it.

It needs a session: a direct connection, or a pooler in session mode. Costs one connection and a round trip a second.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.pool import Session
from turnstile.ledger.postgres_errors import DRIVER_ERRORS, TRANSIENT, ErrorKind, kind_of
from turnstile.ledger.queries import query
from turnstile.schema.amounts import amount
from turnstile.schema.errors import ConfigError, ServerUnavailable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Times in seconds, each less than the next; the module's docstring explains them."""

    watch: float = 1.0
    give_up: float = 3.0
    settle: float = 4.0
    silent: float = 8.0


LOCK_TIMES = LockTimes()


class ExclusiveLock:
    """A lock that this process holds until `lost` is set."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.why = ""
        """Why the lock was lost."""

    def lose(self, why: str) -> None:
        """Set `lost`; the first reason is kept."""
        if not self.lost.is_set():
            self.why = why
            self.lost.set()


class LockTaken(Exception):
    """Another session holds the lock; `holder` is that session's name."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class _Raw(Session, Protocol):
    def add_termination_listener(self, callback: Callable[[Any], None]) -> None: ...
    async def close(self, *, timeout: float) -> None: ...


@asynccontextmanager
async def try_hold(url: str, name: str, holder: str, pace: LockTimes = LOCK_TIMES) -> AsyncGenerator[ExclusiveLock]:
    """Hold the lock `name` during the block, or until `Hold.lost` is set.

    `holder` is the name that `LockTaken` shows to other processes. Raises `LockTaken` if another session has the lock,
    `ServerUnavailable` if no session can be opened, `ConfigError` behind a pooler in transaction mode.
    """
    conn = await _connect(url, holder, pace)
    watching: asyncio.Task[None] | None = None
    try:
        backend = await _take(conn, name)
        hold = ExclusiveLock()
        conn.add_termination_listener(lambda _: hold.lose("its connection was closed"))
        watching = asyncio.create_task(_watch(conn, name, backend, hold, pace))
        yield hold
    finally:
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        await _close(conn)


async def _connect(url: str, holder: str, pace: LockTimes) -> _Raw:
    settings = {"application_name": holder, "idle_session_timeout": str(int(pace.silent * 1000)), "jit": "off"}
    try:
        conn: _Raw = await connect_to_host(
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
    """Take the lock; returns the id of the session that holds it."""
    try:
        taken = await query("try_hold").one(conn, name=name)
        backend: int = taken["backend"]
        if taken["read_only"]:
            raise ServerUnavailable("the server is read-only, and a lock there keeps nobody else away")
        if not taken["held"]:
            holder = await query("holder_of").opt(conn, name=name)
            raise LockTaken("another process" if holder is None else holder["holder"] or "another process")
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


async def _watch(conn: _Raw, name: str, backend: int, hold: ExclusiveLock, pace: LockTimes) -> None:
    """Check periodically that the session still holds the lock; sets `lost` if not, or if the answer is late."""
    clock = asyncio.get_running_loop().time
    proven = clock()
    while not hold.lost.is_set():
        await asyncio.sleep(pace.watch)
        sent_at = clock()
        try:
            async with asyncio.timeout_at(proven + pace.give_up):
                held = (await query("still_holds").one(conn, name=name, backend=backend))["held"]
        except DRIVER_ERRORS as error:
            hold.lose(f"its session did not answer in {amount(pace.give_up)} s ({_kind(error)})")
            return
        if not held:
            hold.lose("its session is another one")
        proven = sent_at


async def _close(conn: _Raw) -> None:
    """Close the session in any state; the server then releases the lock."""
    if conn.is_closed():
        return
    with contextlib.suppress(*DRIVER_ERRORS):
        await conn.close(timeout=1)
    conn.terminate()


def _kind(error: BaseException) -> str:
    """The error's type; its message may hold an address with a password."""
    return type(error).__name__
