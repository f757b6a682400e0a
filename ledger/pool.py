"""The connections to Postgres, and the rule by which a transition is run again (docs/decisions/0002).

`Pool.run` gives a transition one connection and repeats it: while its statement answers `again`, once more if the gate
is closed (a concurrent repeat may hold the row), after a unique violation that a concurrent lease caused, and after a
transient error (`turnstile.ledger.postgres_errors`); every transition is idempotent. It counts round trips. It retries
for `patience` seconds while the server does not answer, and for three while the server answers that it is unable; then
it raises `ServerUnavailable`.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

import asyncpg

from turnstile.ledger.address import read_address
from turnstile.ledger.gathered import GatheredWrites
from turnstile.ledger.histories import Histories
from turnstile.ledger.postgres_errors import DRIVER_ERRORS, TRANSIENT, ErrorKind, kind_of, translated
from turnstile.ledger.queries import Again, Connection, query
from turnstile.runtime.shares import Shares
from turnstile.schema.amounts import amount
from turnstile.schema.errors import Refused, ServerUnavailable, StaleTurn, TurnstileError

T = TypeVar("T")
log = logging.getLogger(__name__)

MINIMUM_SERVER = 160_000
"""PostgreSQL 16, the first with `pg_input_is_valid`. The embedded one is 18."""

_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": "60000",
    "timezone": "UTC",
}
"""The plan tests show the need for the planner's two: their plans are made on empty tables and kept, as in a new
installation. Without `force_generic_plan` 3 of 70 read a project's past, without `enable_seqscan = off` 24 do. `jit` is
for views and audits of large databases: no hot plan comes near the cost where it begins."""
_COLLISIONS = 50
_CLOSE_SECONDS = 5.0
_QUIET_SECONDS = 5.0
"""Seconds between two log lines about waiting, for all callers together."""
_UNABLE_SECONDS = 3.0
"""How long to retry while the server answers that it is unable; a client waits longer for its reply."""


class Session(Connection, Protocol):
    """A connection that its user holds for more than one statement."""

    async def execute(self, query: str, *args: Any) -> str:
        """Run statements; returns the tag of the last one."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction around the block."""
        ...

    def terminate(self) -> None:
        """Close the connection at once, without telling the server."""
        ...

    def is_closed(self) -> bool:
        """Whether the connection is closed or lost; raises `InterfaceError` once a pool has taken it back for that."""
        ...


class ServerTooOld(TurnstileError):
    """The ledger's statements need PostgreSQL 16."""

    code: str = "server_too_old"
    cure: Final = "upgrade it, or leave [database].url empty to use the embedded one"

    def __init__(self, reason: str) -> None:
        """`reason` says which server runs what."""
        self.reason = reason
        super().__init__(f"{reason}: {self.cure}")


class _RawPool(Protocol):
    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Session]: ...
    async def close(self) -> None: ...
    async def expire_connections(self) -> None: ...
    def terminate(self) -> None: ...


def _timeout(seconds: float) -> dict[str, str]:
    return {"statement_timeout": str(round(seconds * 1000))} if seconds else {}


async def _reset(_: object) -> None:
    """Reset nothing: asyncpg's own reset costs a round trip, and no session state outlives a transaction here."""


class Pool:
    """A lazily opened asyncpg pool. Holds connections and counters, nothing about any agent or turn."""

    def __init__(
        self,
        url: str,
        *,
        size: int = 10,
        name: str = "turnstile",
        patience: float = 20.0,
        read_only: bool = False,
        statement_seconds: float = 0.0,
        share: int = 0,
    ) -> None:
        """With `read_only` every transaction refuses to write.

        `statement_seconds` is how long a statement may take, and `share` how many connections those at a time have for
        whom `turnstile.runtime.shares` says that they ask; 0 for any. Raises `ConfigError` for an address that cannot
        be read.
        """
        self._url = url
        self.server = read_address(url).shown
        """The server's address without user and password, for messages."""
        self.version = ""
        """The server's version, once `open` has looked."""
        self._size = size
        self._name = name
        self._patience = patience
        self._read_only = read_only
        self._pool: _RawPool | None = None
        self._opening = asyncio.Lock()
        self._statement_seconds = statement_seconds
        self._shares = Shares(share or size)
        self._quiet_until = 0.0
        self._histories = Histories(self._give_up, read_only=read_only)
        self.round_trips = 0
        self.soon = GatheredWrites(self.run)
        """Writes that may come a moment later, many at a time."""

    async def open(self, *, writable: bool = False) -> None:
        """Connect now and check the server's version; raises `ServerUnavailable` or `ServerTooOld`.

        With `writable` it raises `ServerUnavailable` also for a read-only server, such as a standby. Raises
        `ConfigError` as `connection` does, and for a pooler in transaction mode.
        """
        async with self.connection() as conn:
            server = await query("server_version").one(conn)
        if server["plan_cache_mode"] != _SETTINGS["plan_cache_mode"] and not self._histories.pooled:
            self._histories.pooled = True  # a pooler between them has let the settings fall
            await self.close()
            await self.open(writable=writable)
            return
        self.version = server["text"]
        if server["number"] < MINIMUM_SERVER:
            raise ServerTooOld(f"PostgreSQL 16 or newer is needed, and {self.server} runs {server['text']}")
        if writable and server["read_only"]:
            await self.close()  # a later attempt may find another of several hosts
            raise ServerUnavailable(f"{self.server} is read-only: a standby, or default_transaction_read_only")

    async def _give_up(self) -> None:
        """Have each open connection replaced at its next use."""
        if self._pool is not None:
            await self._pool.expire_connections()

    async def close(self) -> None:
        """Write what was gathered, and close all connections; idempotent."""
        await self.soon.flush(_CLOSE_SECONDS)
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), timeout=_CLOSE_SECONDS)
            except DRIVER_ERRORS:
                pool.terminate()

    async def _opened(self) -> _RawPool:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    options: dict[str, Any] = {
                        "min_size": 0,
                        "max_size": self._size,
                        "timeout": 10,
                        "command_timeout": 60,
                        # By default asyncpg keeps no statement above 15 KiB prepared, and plans it at each call.
                        "max_cacheable_statement_size": 0,
                        "reset": _reset,
                        "connect": self._histories.connect,
                        "server_settings": {
                            **_SETTINGS,
                            "application_name": self._name,
                            **({"default_transaction_read_only": "on"} if self._read_only else {}),
                            **_timeout(self._statement_seconds),
                        },
                    }
                    make = cast("Callable[..., Awaitable[_RawPool]]", asyncpg.create_pool)  # pyright: ignore[reportUnknownMemberType] -- asyncpg is untyped
                    self._pool = await make(self._url, **options)
        return self._pool

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Session]:
        """A connection for the block, for transactions.

        Raises `ServerUnavailable` if there is none now, or for a transient error in the block
        (`turnstile.ledger.postgres_errors`), and `ConfigError` if the server refuses the login or the address is wrong.
        """
        async with AsyncExitStack() as stack:
            try:
                pool = await self._opened()
                await stack.enter_async_context(self._shares.mine())
                conn = await stack.enter_async_context(pool.acquire(timeout=30))
            except DRIVER_ERRORS as error:
                self._raise(error, kind_of(error))
            try:
                yield conn
            except DRIVER_ERRORS as error:
                if (kind := kind_of(error, connected=_is_connected(conn))) in TRANSIENT:
                    self._raise(error, kind)
                raise

    async def run(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a one-statement transition, repeated as the module's docstring says.

        Raises `StaleTurn` if its gate is closed, `BadRequest` for text that Postgres cannot store, and as `connection`
        does.
        """
        return await self._run(transition, self._patience, min(self._patience, _UNABLE_SECONDS))

    async def insist(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """As `run`, for as long as the server is away or unable: for results that cannot be computed again."""
        return await self._run(transition, math.inf, math.inf)

    async def _run(self, transition: Callable[[Connection], Awaitable[T]], away: float, unable: float) -> T:
        """As `run`, for `away` seconds while the server is away, and for `unable` seconds while it is unable."""
        canceled, began = _cancellations(), time.monotonic()
        stale = again = failed = 0
        while True:
            connected = False
            try:
                pool = await self._opened()
                async with self._shares.mine(), pool.acquire(timeout=30) as conn:
                    try:
                        return await transition(_CountingConnection(self, conn))
                    except DRIVER_ERRORS as error:
                        connected = _is_connected(conn)
                        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                            conn.terminate()  # another session may reach another server
                        raise
            except StaleTurn:
                stale += 1
                if stale > 1:
                    raise
            except (Again, *DRIVER_ERRORS) as error:
                if _cancellations() > canceled:  # a rollback on a lost connection hides the cancellation
                    raise asyncio.CancelledError from error
                kind = ErrorKind.CONFLICT if isinstance(error, Again) else kind_of(error, connected=connected)
                if kind is ErrorKind.CONFLICT and again < _COLLISIONS:
                    again += 1
                    await asyncio.sleep(random.uniform(0, min(0.001 * 2**again, 0.05)))  # noqa: S311 -- jitter, not a secret
                    continue
                patience = {ErrorKind.AWAY: away, ErrorKind.UNABLE: unable}.get(kind, 0.0)
                if time.monotonic() - began >= patience:
                    self._raise(error, kind)
                failed += 1
                if failed > 2 and time.monotonic() > self._quiet_until:
                    self._quiet_until = time.monotonic() + _QUIET_SECONDS
                    log.warning("waiting: %s", translated(error, kind, self.server))
                await asyncio.sleep(min(0.05 * 2 ** min(failed, 5), 1.0))

    def _raise(self, error: Exception, kind: ErrorKind) -> NoReturn:
        """Raise the error as `translated`; a statement that took too long is refused, and not tried again."""
        if self._statement_seconds and isinstance(error, asyncpg.QueryCanceledError):
            raise Refused(
                "read_too_costly", f"reading this takes longer than {amount(self._statement_seconds)} s: ask for less"
            )
        instead = translated(error, kind, self.server)
        if instead is None:
            raise error
        raise instead from error if isinstance(instead, ServerUnavailable) else None

    async def transact(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a transition of several statements in one transaction, as `run` does; it must be idempotent, too."""

        async def whole(conn: Connection) -> T:
            async with cast("Session", conn).transaction():
                return await transition(conn)

        return await self.run(whole)

    async def rehearse(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run the transition once, in a transaction that is rolled back; returns its result.

        Raises as `connection` does.
        """
        answers: list[T] = []
        async with self.connection() as conn:
            with contextlib.suppress(_DryRunEnd):
                async with conn.transaction():
                    answers.append(await transition(conn))
                    raise _DryRunEnd
        return answers[0]


def _is_connected(conn: Session) -> bool:
    try:
        return not conn.is_closed()
    except asyncpg.InterfaceError:  # the connection was lost, and the pool has taken it back
        return False


def _cancellations() -> int:
    """How often cancellation of the current task was requested."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _DryRunEnd(Exception):
    """The end of a rehearsal."""


class _CountingConnection:
    """A connection that counts the round trips of its pool."""

    __slots__ = ("_conn", "_pool")

    def __init__(self, pool: Pool, conn: Session) -> None:
        self._pool = pool
        self._conn = conn

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        self._pool.round_trips += 1
        return await self._conn.fetch(query, *args)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return self._conn.transaction()
