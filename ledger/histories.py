"""Connections to a server of the ledger's newest history (protocol §16).

After a failover the old primary may come back alone, with a history that others have left. `Histories` remembers the
newest history that its process has seen, and refuses servers that are behind it; a process that has seen none asks all
hosts of the address and takes the one that is ahead. A session that writes enters the server's era before anything
else, which begins one if the history is new. It costs a round trip per connection.

A connection pooler such as PgBouncer must be in session mode. One that refuses the settings of a new session gets them
as statements, so that nobody has to configure it. In transaction mode a session's settings, prepared statements and
locks go to the next client: two clients that look whether their servers are their own find that out, and it is refused.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, cast

import asyncpg

from turnstile.ledger.address import read_address
from turnstile.ledger.postgres_errors import (
    DRIVER_ERRORS,
    TRANSACTION_MODE,
    TRANSIENT,
    ServerBehind,
    is_shared,
    kind_of,
)
from turnstile.ledger.queries import query
from turnstile.schema.errors import ConfigError

log = logging.getLogger(__name__)

_ASK_SECONDS = 3.0
"""How long the first connection waits for hosts that are slow to answer after one that did."""
_NO_LEDGER = (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
"""The database has no era yet: it was not migrated."""


@dataclass(frozen=True, slots=True, order=True)
class History:
    """What distinguishes a server's history from an older one of the same ledger."""

    epoch_floor: int
    timeline_id: int


async def connect_to_host(url: str, **options: Any) -> Any:
    """Connect to the first suitable host of the address; raises the error of the last one.

    asyncpg tries several hosts itself, all within one `timeout`, and none after one that is just starting up.
    """
    *others, last = read_address(url).each()
    for other in others:
        try:
            return await open_session(other, options)
        except DRIVER_ERRORS as error:
            if kind_of(error) not in TRANSIENT:
                raise
    return await open_session(last, options)


@dataclass(slots=True)
class _Session:
    """An open connection, and the history that its server has; None if the database has no ledger."""

    conn: Any
    at: str
    history: History | None
    is_standby: bool


class Histories:
    """Opens connections for one pool. Holds the newest history seen, and the host of the latest connection."""

    def __init__(self, on_newer: Callable[[], Awaitable[None]], *, read_only: bool) -> None:
        """`on_newer` is called when a newer history is seen than before: older connections are to be given up."""
        self._on_newer = on_newer
        self._read_only = read_only
        self.pooled = False
        """Whether a pooler is known to be between, which takes no settings as a session begins."""
        self._newest: History | None = None
        self._last = ""

    async def connect(self, url: str, **options: Any) -> Any:
        """A connection to a host whose history is not behind; one that takes writes is preferred, unless it only reads.

        Raises the error of the last host, or `ServerBehind` if one was refused.
        """
        hosts = sorted(read_address(url).each(), key=lambda h: h != self._last)
        if self._newest is None and len(hosts) > 1:
            hosts = await self._by_history(hosts, options)
        standby: _Session | None = None
        failed: Exception | None = None
        for host in hosts:
            try:
                session = await self._enter(host, options)
            except DRIVER_ERRORS as error:
                if kind_of(error) not in TRANSIENT:
                    raise
                failed = failed if isinstance(failed, ServerBehind) else error
                continue
            if not session.is_standby or self._read_only:
                if standby is not None:
                    standby.conn.terminate()
                return await self._use(session)
            if standby is None:
                standby = session
            else:
                session.conn.terminate()
        if standby is not None:
            return await self._use(standby)
        raise failed or OSError("the address names no host")

    async def _use(self, session: _Session) -> Any:
        self._last = session.at
        if session.history is not None and (self._newest is None or session.history > self._newest):
            is_newer, self._newest = self._newest is not None, session.history
            if is_newer:
                log.warning(
                    "the ledger has a new history, on timeline %d of its server: connections to the one before are "
                    "given up, and turns in hand are started again from the ledger",
                    session.history.timeline_id,
                )
                await self._on_newer()
        return session.conn

    async def _by_history(self, hosts: Sequence[str], options: dict[str, Any]) -> list[str]:
        """The hosts, that with the newest history first; none of them is written to."""
        asking = {asyncio.create_task(self._ask(h, options)): h for h in hosts}
        try:
            pending = set(asking)
            while pending and not any(_answered(a) for a in asking):
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if pending:
                await asyncio.wait(pending, timeout=_ASK_SECONDS)
            ranks = {host: _answered(task) or History(-1, -1) for task, host in asking.items()}
        finally:
            for asked_host in asking:
                asked_host.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return sorted(hosts, key=lambda h: ranks[h], reverse=True)

    async def _ask(self, host: str, options: dict[str, Any]) -> History | None:
        conn = await open_session(host, options, pooled=self.pooled)
        try:
            history, is_standby = await self._look(conn)
            return None if is_standby else history
        finally:
            conn.terminate()

    async def _enter(self, host: str, options: dict[str, Any]) -> _Session:
        """A session on this host, in its era; raises `ServerBehind`.

        Nothing is written on a server whose history is the one that its era names, such as an old primary. A server
        that was promoted since begins an era, which is the newest.
        """
        conn = await open_session(host, options, pooled=self.pooled)
        try:
            history, is_standby = await (self._look(conn) if self._read_only else self._begin(conn))
            self._check(history, is_standby, host)
        except BaseException:
            conn.terminate()
            raise
        return _Session(conn, host, history, is_standby)

    async def _begin(self, conn: Any) -> tuple[History | None, bool]:
        """Enter the server's era; returns its history, and whether it takes no writes."""
        try:
            entered = await query("enter_era").opt(conn)
        except _NO_LEDGER:
            return None, False
        except asyncpg.ReadOnlySQLTransactionError:
            return None, True
        if entered is None:
            return await self._look(conn)
        return History(entered["epoch_floor"], entered["timeline_id"]), False

    async def _look(self, conn: Any) -> tuple[History | None, bool]:
        """The server's history, and whether it is a standby."""
        try:
            row = await query("find_history").one(conn)
        except _NO_LEDGER:
            return None, False
        timeline = row["timeline_id"]
        return History(row["epoch_floor"] or 0, timeline or 0), timeline is None

    def _check(self, history: History | None, is_standby: bool, host: str) -> None:
        newest = self._newest
        if history is None or newest is None:
            return
        if history.epoch_floor < newest.epoch_floor or (history < newest and not is_standby):
            raise ServerBehind(
                f"{read_address(host).shown} has an older history of the ledger (timeline {history.timeline_id}) than "
                f"this process has worked with (timeline {newest.timeline_id}): an old primary that came back? "
                "Make it a standby of the new one; nothing is read or written there"
            )


def _answered(task: "asyncio.Task[History | None]") -> History | None:
    """The history that a host has returned, if any."""
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


_PROBE_SECONDS: Final = 3.0
_AT_START: Final = "application_name"
"""The setting that poolers take as a session begins."""


async def open_session(url: str, options: dict[str, Any], *, pooled: bool = False) -> Any:
    """A session with the `server_settings` of the options; `pooled` if a pooler is known to be between.

    Raises `ConfigError` for a pooler in transaction mode.
    """
    if not pooled:
        try:
            return await _connect(url, options)
        except asyncpg.ProtocolViolationError as error:
            if "startup parameter" not in str(error):
                raise
    settings: dict[str, str] = options.get("server_settings") or {}
    named = {name: value for name, value in settings.items() if name == _AT_START}
    if not await _keeps_sessions(url, {**options, "server_settings": named}):
        raise ConfigError(f"{read_address(url).shown} {TRANSACTION_MODE}")
    conn = await _connect(url, {**options, "server_settings": named})
    try:
        rest = [f"SET {name} = '{value}'" for name, value in settings.items() if name not in named]
        await conn.execute("; ".join(rest))
    except BaseException:
        conn.terminate()
        raise
    return conn


async def _connect(url: str, options: dict[str, Any]) -> Any:
    make = cast("Callable[..., Awaitable[Any]]", asyncpg.connect)  # pyright: ignore[reportUnknownMemberType] -- asyncpg is untyped
    return await make(url, **options)


async def _keeps_sessions(url: str, options: dict[str, Any]) -> bool:
    """Whether a client has a server of its own from its first statement on: session mode.

    In transaction mode the server of an idle client is the next one's, or its own changes. A second client that gets
    no server while the first one only idles says the same as one with another server.
    """
    options = {**options, "statement_cache_size": 0}
    async with AsyncExitStack() as stack:
        first = await _probe(stack, url, options)
        backends = await _backends(first, 3)
        if len(backends) > 1 or None in backends:
            return False
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                second = await _probe(stack, url, options)
                others = await _backends(second, 2)
        except TimeoutError:
            others = set[int | None]()
        return not others & backends and None not in others and await _backends(first, 1) == backends


async def _probe(stack: AsyncExitStack, url: str, options: dict[str, Any]) -> Any:
    conn = await _connect(url, options)
    stack.callback(conn.terminate)
    return conn


async def _backends(conn: Any, count: int) -> set[int | None]:
    """The server processes of a client's transactions; None where one does not hold its server (statement mode)."""
    backends = set[int | None]()
    for _ in range(count):
        try:
            async with conn.transaction():
                row = await query("session_process").one(conn)
        except DRIVER_ERRORS as error:
            if not is_shared(error):
                raise
            return {None}
        backends.add(int(row["pid"]))
    return backends
