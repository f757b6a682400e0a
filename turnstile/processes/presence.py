"""Who serves what: workers, services of their own, and bridges sign on in `state.workers` (protocol §4, §8).

A worker signs on while the engine answers it, since without the engine nobody can ring it. After a time in which it
could not, it counts as new: no turn is late for what its worker could not hear of. A bridge signs on to say which
version of the protocol it speaks; nothing waits for that.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from turnstile.ledger.operations.sweep import touch_bridge, touch_worker
from turnstile.ledger.pool import Pool
from turnstile.runtime.waiting import await_server, unless_told
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.pump.threads import Serves

log = logging.getLogger(__name__)
_SIGN_ON_SECONDS = 10.0


async def sign_on(
    pool: Pool,
    instance: str,
    worker_targets: Sequence[str],
    stop: asyncio.Event,
    *,
    serves: Serves | None = None,
    signed: asyncio.Event | None = None,
    reach: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Say in `state.workers`, now and then, that this worker serves its targets, and listeners; `signed` once it is.

    `reach` raises `ServerUnavailable` while the server by which it is rung is away. What is to begin once it has signed
    on is not kept waiting: at first both servers are waited for, as at any start.
    """

    async def say(*, anew: bool = False) -> None:
        await pool.run(lambda conn: touch_worker(conn, instance, worker_targets, serves, anew=anew))

    async def begin() -> None:
        if reach is not None:
            await await_server("Temporal", reach)
        await await_server("PostgreSQL", say)
        if signed is not None:
            signed.set()

    await unless_told(stop, begin())
    away = False
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SIGN_ON_SECONDS)
            return
        try:
            if reach is not None:
                await reach()
            await say(anew=away)
        except ServerUnavailable as error:
            log.warning("not signed on: %s", error)
            away = True
        else:
            away = False


async def sign_on_bridge(pool: Pool, instance: str, stop: asyncio.Event) -> None:
    """Say in `state.workers`, now and then until `stop`, that this bridge runs and what it speaks."""
    while not stop.is_set():
        try:
            await pool.run(lambda conn: touch_bridge(conn, instance))
        except ServerUnavailable as error:
            log.warning("not signed on: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SIGN_ON_SECONDS)
