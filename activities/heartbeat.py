"""Heartbeats for the whole run of an activity, so that the engine notices a dead worker within seconds.

They carry details for the next run of the activity, which reads them from `activity.info().heartbeat_details`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from temporalio import activity

BEAT_SECONDS = 0.5
_BEATS = 4
"""How often an activity beats within its heartbeat timeout, at least."""


@asynccontextmanager
async def beating(details: Callable[[], object] | None = None) -> AsyncGenerator[None]:
    """Heartbeat with `details` while the block runs, and once when it fails; the SDK throttles heartbeats.

    A block shorter than `BEAT_SECONDS` sends none, because the activity's start counts as one and each is a write for
    the engine. After the first one it beats `_BEATS` times in the heartbeat timeout: each costs as much as some pieces
    of a stream.
    """
    timeout = activity.info().heartbeat_timeout
    every = BEAT_SECONDS if timeout is None else max(BEAT_SECONDS, timeout.total_seconds() / _BEATS)

    def beat() -> None:
        activity.heartbeat(*(() if details is None else (details(),)))

    async def beat_on() -> None:
        await asyncio.sleep(BEAT_SECONDS)
        while True:
            beat()
            await asyncio.sleep(every)

    task = asyncio.create_task(beat_on(), name="heartbeat")
    try:
        yield
    except Exception:
        beat()  # the SDK sends the last one with the failure
        raise
    finally:
        task.cancel()
        await asyncio.wait([task])
