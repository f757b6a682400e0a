"""A sign of life from an activity's first line to its last, so that a dead worker is noticed within seconds.

It carries what a next run of the activity must know of this one; that is read back from
`activity.info().heartbeat_details`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from temporalio import activity

BEAT_SECONDS = 0.5


@asynccontextmanager
async def beating(details: Callable[[], object] | None = None) -> AsyncGenerator[None]:
    """Heartbeat with `details` while the block runs, and once when it fails; the SDK throttles what is sent.

    Its start is a sign of life as well, so a short block sends none: to the engine each is a write.
    """

    def beat() -> None:
        activity.heartbeat(*(() if details is None else (details(),)))

    async def beat_on() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            beat()

    task = asyncio.create_task(beat_on(), name="heartbeat")
    try:
        yield
    except Exception:
        beat()  # the SDK sends the last one with the failure
        raise
    finally:
        task.cancel()
        await asyncio.wait([task])
