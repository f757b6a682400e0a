"""Connections to a server of the ledger's newest history (protocol §16).

After a failover the old primary may come back alone, with a history that others have left. `Histories` remembers the
newest history that its process has seen, and refuses servers that are behind it; a process that has seen none asks all
hosts of the address and takes the one that is ahead. A session that writes enters the server's era before anything
else, which begins one if the history is new. It costs a round trip per connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from turnstile.ledger.address import read_address
from turnstile.ledger.pooler import open_session
from turnstile.ledger.postgres_errors import DRIVER_ERRORS, TRANSIENT, ServerBehind, kind_of
from turnstile.ledger.queries import query

log = logging.getLogger(__name__)

_ASK_SECONDS = 3.0
"""How long the first connection waits for hosts that are slow to answer after one that did."""
_NO_LEDGER = (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)
"""The database has no era yet: it was not migrated."""


@dataclass(frozen=True, slots=True, order=True)
class History:
    """What tells a server's history from an older one of the same ledger."""

    epoch_floor: int
    timeline_id: int


async def connect(url: str, **options: Any) -> Any:
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
    """The history that a host has told, if it has."""
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None
