"""A sign of life from an activity's first line to its last, so that a dead worker is noticed within seconds."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio import activity

BEAT_SECONDS = 0.5


@asynccontextmanager
async def beating() -> AsyncGenerator[None]:
    """Heartbeat while the block runs; the SDK throttles what is sent."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(BEAT_SECONDS)

    task = asyncio.create_task(beat(), name="heartbeat")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
