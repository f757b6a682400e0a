"""Who serves what: workers, and services of their own, sign on in `state.workers` (protocol §4, §8)."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from ledger.pool import Pool
from ledger.sweep import touch_worker
from schema.errors import ServerUnavailable
from schema.threads import Serves

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
) -> None:
    """Say in `state.workers`, now and then, that this worker serves its targets, and listeners; `signed` once it is."""
    while not stop.is_set():
        try:
            await pool.run(lambda conn: touch_worker(conn, instance, worker_targets, serves))
        except ServerUnavailable as error:
            log.warning("not signed on: %s", error)
        else:
            if signed is not None:
                signed.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SIGN_ON_SECONDS)
