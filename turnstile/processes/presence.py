"""Records in `state.workers` which workers and services serve which targets, and the bridges (protocol §4, §8).

A worker signs on only while Temporal answers, since Temporal gives it its work. After a gap it counts as present from
then on, so that the safety net does not end turns that no worker could have begun. A bridge signs on to say which
version of the protocol it speaks; nothing waits for that. One that ends as it should signs off, so that what is listed
as gone was killed, or lost its servers.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

from turnstile.ledger.operations.sweep import sign_off, touch_bridge, touch_worker
from turnstile.ledger.pool import Pool
from turnstile.runtime.waiting import await_server, unless_stopped
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.pump.threads import Serves

log = logging.getLogger(__name__)
_SIGN_ON_SECONDS = 10.0
_SIGN_OFF_SECONDS = 1.0


async def sign_on(
    pool: Pool,
    instance: str,
    worker_targets: Sequence[str],
    stop: asyncio.Event,
    *,
    serves: Serves | None = None,
    signed: asyncio.Event | None = None,
    reach: Callable[[], Awaitable[None]] | None = None,
    declare: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Record periodically in `state.workers` that this worker serves its targets and listeners.

    Waits for both servers first, then runs `declare` once and sets `signed`. `reach` raises `ServerUnavailable` while
    the server that wakes the worker is away: then nothing is recorded.
    """

    async def record(*, restarted: bool = False) -> None:
        await pool.run(lambda conn: touch_worker(conn, instance, worker_targets, serves, restarted=restarted))

    async def begin() -> None:
        if reach is not None:
            await await_server("Temporal", reach)
        await await_server("PostgreSQL", record)
        if declare is not None:
            await await_server("PostgreSQL", declare)
        if signed is not None:
            signed.set()

    await unless_stopped(stop, begin())
    away = False
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SIGN_ON_SECONDS)
            break
        try:
            if reach is not None:
                await reach()
            await record(restarted=away)
        except ServerUnavailable as error:
            log.warning("not signed on: %s", error)
            away = True
        else:
            away = False
    await _leave(pool, instance, is_bridge=False)


async def sign_on_bridge(pool: Pool, instance: str, stop: asyncio.Event) -> None:
    """Say in `state.workers`, now and then until `stop`, that this bridge runs and what it speaks."""
    while not stop.is_set():
        try:
            await pool.run(lambda conn: touch_bridge(conn, instance))
        except ServerUnavailable as error:
            log.warning("not signed on: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SIGN_ON_SECONDS)
    await _leave(pool, instance, is_bridge=True)


async def _leave(pool: Pool, instance: str, *, is_bridge: bool) -> None:
    """Sign off, if PostgreSQL answers at once."""
    try:
        async with asyncio.timeout(_SIGN_OFF_SECONDS):
            await pool.run(lambda conn: sign_off(conn, instance, is_bridge=is_bridge))
    except (ServerUnavailable, TimeoutError) as error:
        log.info("not signed off: %s", error or "PostgreSQL does not answer")
