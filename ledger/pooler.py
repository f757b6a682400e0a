"""Sessions of PostgreSQL, also through a connection pooler such as PgBouncer, which must be in session mode.

A pooler that refuses the settings of a new session gets them as statements, so that nobody has to configure it. In
transaction mode a session's settings, prepared statements and locks go to whoever comes next: that is found out by two
clients which look whether their servers are their own, and refused. Costs nothing without a pooler.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, cast

import asyncpg

from turnstile.ledger.address import read_address
from turnstile.ledger.postgres_errors import DRIVER_ERRORS, TRANSACTION_MODE, is_shared
from turnstile.ledger.queries import query
from turnstile.schema.errors import ConfigError

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
