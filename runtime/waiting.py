"""Waiting without limit for a server that is down. Logs when a wait begins, every `LOG_SECONDS`, and when it ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from turnstile.schema.errors import ServerUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)
LOG_SECONDS: Final = 30.0
"""Between two log lines of one wait."""
_PAUSE_SECONDS = 0.5


async def await_server(name: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat `attempt` while it raises `ServerUnavailable`; returns what it returns."""
    clock = asyncio.get_running_loop().time
    began, tell_at = clock(), 0.0
    while True:
        try:
            value = await attempt()
        except ServerUnavailable as error:
            if clock() >= tell_at:
                log.warning("waiting for %s: %.300s", name, error)
                tell_at = clock() + LOG_SECONDS
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            if tell_at:
                log.info("%s answers, after %.0f s", name, clock() - began)
            return value


async def unless_stopped(stop: asyncio.Event, opening: Coroutine[Any, Any, T]) -> T | None:
    """Await `opening` and return its result; cancels it and returns None if `stop` is set first."""
    task, stopped = asyncio.create_task(opening), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def await_first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, or the time is over."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
