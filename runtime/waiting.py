"""Waiting for a server that is away, as long as it takes: told when it begins, now and then, and when it is over."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from turnstile.schema.errors import ServerUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)
TELL_SECONDS: Final = 30.0
"""Between two lines of one wait."""
_PAUSE_SECONDS = 0.5


async def await_server(name: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` returns once the server is there; until then it raises `ServerUnavailable`."""
    clock = asyncio.get_running_loop().time
    began, tell_at = clock(), 0.0
    while True:
        try:
            value = await attempt()
        except ServerUnavailable as error:
            if clock() >= tell_at:
                log.warning("waiting for %s: %.300s", name, error)
                tell_at = clock() + TELL_SECONDS
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            if tell_at:
                log.info("%s answers, after %.0f s", name, clock() - began)
            return value


async def unless_told(stop: asyncio.Event, opening: Coroutine[Any, Any, T]) -> T | None:
    """What `opening` returns; None if `stop` comes while it still waits for a server."""
    task, told = asyncio.create_task(opening), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return None if task.cancelled() else task.result()
