"""A Temporal worker as a process runs it.

The SDK asks for the namespace when a worker begins, and gives up after 30 s; what a worker that has begun needs, it
asks for as long as it takes. One that could not begin cannot be used again, nor another one on its client.
"""

import asyncio

from temporalio.client import Client
from temporalio.worker import Worker

from turnstile.bridge.engine import ensure_engine
from turnstile.runtime.waiting import await_server, unless_told
from turnstile.schema.errors import ServerUnavailable

_NOT_BEGUN = "Worker validation failed"


class NotBegun(ServerUnavailable):
    """Temporal went away as a worker began: on a new client another one can."""


async def work(client: Client, worker: Worker, stop: asyncio.Event) -> None:
    """Run the worker until `stop`, whose activities then have the worker's graceful timeout.

    Raises `NotBegun`, or what ends a worker that has begun.
    """

    async def begin() -> None:
        await await_server("Temporal", lambda: ensure_engine(client))
        await worker.run()

    try:
        # A worker that is cancelled shuts down like one that is told to, and one that has not begun ends at once.
        await unless_told(stop, begin())
    except RuntimeError as error:
        if not str(error).startswith(_NOT_BEGUN):
            raise
        raise NotBegun(f"Temporal: {error!s:.300}") from None
