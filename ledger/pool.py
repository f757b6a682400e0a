"""The connections to Postgres, and the rule by which a transition is run again (ARCHITECTURE.md).

`Pool.run` gives a transition one connection and repeats it: while the ledger says `again`, once more when the gate
seems gone (a twin may have been in flight), after a unique violation that a concurrent lease caused, after a lost
connection; every transition is idempotent. It counts round trips, which is what a turn is billed in. A server that is
away is waited for up to `patience` seconds; then `ServerUnavailable`.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar, cast

import asyncpg
from asyncpg.exceptions import InternalClientError

from ledger.address import read_address
from ledger.queries import Connection, query
from schema.errors import BadRequest, ConfigError, ServerUnavailable, StaleTurn, TurnstileError

T = TypeVar("T")
log = logging.getLogger(__name__)

MINIMUM_SERVER = 180_000
"""PostgreSQL 18: `RETURNING old` and virtual column behaviour that the statements rely on."""

_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": "60000",
    "timezone": "UTC",
}
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    InternalClientError,
    asyncpg.InterfaceError,
    ConnectionError,
    OSError,
    TimeoutError,
)
REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.exceptions.ClientConfigurationError,
)
"""No waiting mends these: user, password or database are wrong, or the address itself."""
_UNSTORABLE = (asyncpg.UntranslatableCharacterError, asyncpg.CharacterNotInRepertoireError)
_CONTENDED = (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class Session(Connection, Protocol):
    """A connection that its user holds for more than one statement."""

    async def execute(self, query: str, *args: Any) -> str:
        """Run statements and give the last one's tag."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction around the block."""
        ...


class ServerTooOld(TurnstileError):
    """The ledger's statements need PostgreSQL 18."""

    code: str = "server_too_old"


class _RawPool(Protocol):
    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Session]: ...
    async def close(self) -> None: ...
    def terminate(self) -> None: ...


async def connect(url: str, **options: Any) -> Any:
    """A session with the first of the address's hosts that will do; raises what the last one raised.

    asyncpg tries several hosts itself, all within one `timeout`, and none after one that is just starting up.
    """
    make = cast("Callable[..., Awaitable[Any]]", asyncpg.connect)  # pyright: ignore[reportUnknownMemberType] -- asyncpg is untyped
    *others, last = read_address(url).each()
    for each in others:
        with contextlib.suppress(*LOST):
            return await make(each, **options)
    return await make(last, **options)


async def _reset(_: object) -> None:
    """Nothing between two users: asyncpg's own reset is a round trip, and we leave no state but what it rolls back."""


class Again(Exception):
    """A statement saw an old picture and changed nothing: run it again on a fresh one."""


class Pool:
    """A lazily opened asyncpg pool. Holds connections and counters, nothing about any agent or turn."""

    def __init__(self, url: str, *, size: int = 10, name: str = "turnstile", patience: float = 20.0) -> None:
        """Raises `ConfigError` for an address that cannot be read."""
        self._url = url
        self.server = read_address(url).shown
        """The server's address without user and password, for messages."""
        self._size = size
        self._name = name
        self._patience = patience
        self._pool: _RawPool | None = None
        self._opening = asyncio.Lock()
        self.round_trips = 0

    async def open(self, *, writable: bool = False) -> None:
        """Connect now and check the server's version; raises `ServerUnavailable` saying what to do.

        With `writable` also where the server takes no writes, as a standby does.
        """
        async with self.session() as conn:
            found = await query("server_version").one(conn)
        if found["number"] < MINIMUM_SERVER:
            raise ServerTooOld(
                f"PostgreSQL 18 or newer is needed, and {self.server} runs {found['text']}: "
                "upgrade it, or leave [database].url empty to use the embedded one"
            )
        if writable and found["read_only"]:
            await self.close()  # a later try may find another of several hosts
            raise ServerUnavailable(f"{self.server} is read-only: a standby, or default_transaction_read_only")

    async def close(self) -> None:
        """Close all connections; idempotent."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), timeout=5)
            except (TimeoutError, *LOST):
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
                        "reset": _reset,
                        "connect": connect,
                        "server_settings": {**_SETTINGS, "application_name": self._name},
                    }
                    make = cast("Callable[..., Awaitable[_RawPool]]", asyncpg.create_pool)  # pyright: ignore[reportUnknownMemberType] -- asyncpg is untyped
                    self._pool = await make(self._url, **options)
        return self._pool

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Session]:
        """A connection of one's own, for transactions.

        Raises `ServerUnavailable` if none can be had now, `ConfigError` if the server refuses us or the address is bad.
        """
        async with AsyncExitStack() as stack:
            try:
                pool = await self._opened()
                conn = await stack.enter_async_context(pool.acquire(timeout=30))
            except REFUSED as error:
                raise self._refused(error) from None
            except LOST as error:
                raise ServerUnavailable(f"no answer from {self.server}: {error}") from error
            yield conn

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """As `connection`; raises `ServerUnavailable` also where the server goes in the middle of the block.

        Not for blocks that have other reasons for an `OSError`.
        """
        try:
            async with self.connection() as conn:
                yield conn
        except LOST as error:
            raise ServerUnavailable(f"no answer from {self.server}: {type(error).__name__}") from error

    async def run(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a one-statement transition until it answers.

        Raises `StaleTurn` if its gate is really gone, `BadRequest` for text that Postgres cannot store, and as
        `connection` does.
        """
        canceled = _cancellations()
        deadline = time.monotonic() + self._patience
        stale = again = lost = 0
        while True:
            try:
                pool = await self._opened()
                async with pool.acquire(timeout=30) as conn:
                    return await transition(_Counted(self, conn))
            except StaleTurn:
                stale += 1
                if stale > 1:
                    raise
            except _UNSTORABLE:
                raise BadRequest("text must not hold NUL characters or broken Unicode") from None
            except (Again, *_CONTENDED):
                again += 1
                if again > 50:
                    raise
                await asyncio.sleep(random.uniform(0, min(0.001 * 2**again, 0.05)))  # noqa: S311 -- jitter, not a secret
            except REFUSED as error:
                raise self._refused(error) from None
            except LOST as error:
                if _cancellations() > canceled:  # a rollback that met a lost connection hides it
                    raise asyncio.CancelledError from error
                lost += 1
                if time.monotonic() > deadline:
                    raise ServerUnavailable(f"no answer from {self.server}: {type(error).__name__}") from error
                if lost in {3, 30}:
                    log.warning("waiting for %s (%s)", self.server, type(error).__name__)
                await asyncio.sleep(min(0.05 * 2**lost, 1.0))

    def _refused(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.server}: {str(error).splitlines()[0]}; check [database].url")

    async def transact(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a transition of several statements in one transaction, as `run` does; it too finds its own effect."""

        async def whole(conn: Connection) -> T:
            async with cast("Session", conn).transaction():
                return await transition(conn)

        return await self.run(whole)

    async def rehearse(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """What the transition would answer: it runs once, in a transaction that is rolled back.

        Raises `ServerUnavailable` if the connection cannot be had, or is lost.
        """
        answers: list[T] = []
        async with self.session() as conn:
            with contextlib.suppress(_Rehearsed):
                async with conn.transaction():
                    answers.append(await transition(conn))
                    raise _Rehearsed
        return answers[0]


def _cancellations() -> int:
    """How often the running task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class _Rehearsed(Exception):
    """The end of a rehearsal."""


class _Counted:
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
