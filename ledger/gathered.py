"""Writes that may come a moment later: what several transitions give is gathered, and written by one statement.

Only for writes whose loss is mended: a process that dies loses what it has gathered. Each is written within
`WITHIN_SECONDS`, or when the pool is closed; whoever gives it does not wait. A write that fails is logged.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from turnstile.ledger.queries import Connection
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)
WITHIN_SECONDS = 0.1

Write: TypeAlias = Callable[[Connection, Sequence[str]], Awaitable[None]]
"""Writes these keys by one statement, which may be repeated."""


class GatheredWrites:
    """What waits to be written, by the statement that writes it. `run` runs a transition, as `Pool.run`."""

    def __init__(self, run: Callable[[Callable[[Connection], Awaitable[None]]], Awaitable[None]]) -> None:
        self._run = run
        self._keys: dict[Write, list[str]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    def add(self, write: Write, key: str) -> None:
        """Have the key written soon, together with others of this `write`."""
        if (gathered := self._keys.get(write)) is not None:
            gathered.append(key)
            return
        self._keys[write] = [key]
        task = asyncio.create_task(self._write_soon(write), name="gathered write")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def flush(self, timeout: float) -> None:
        """Write what waits now, and wait for it; gives up after `timeout` seconds."""
        self._closing.set()
        if self._writing:
            await asyncio.wait(self._writing, timeout=timeout)
        for task in self._writing:
            task.cancel()
        self._closing.clear()

    async def _write_soon(self, write: Write) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_SECONDS):
                await self._closing.wait()
        keys = self._keys.pop(write)
        try:
            await self._run(lambda conn: write(conn, keys))
        except TurnstileError as error:
            log.warning("%d gathered writes are left to the safety net: %s", len(keys), error)
        except Exception:  # nobody awaits the task
            log.exception("%d gathered writes are left to the safety net", len(keys))
