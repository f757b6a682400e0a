"""One run of a handler: bounded in time, and without the text of its errors (protocol §9).

`run_handler` ends at most `_GRACE_SECONDS` after the deadline, even if the handler ignores its cancellation; a later
result of it is dropped. Any exception of a handler becomes `HandlerFailed`, which holds the type and lines, not the
message. A handler that blocks the event loop cannot be bounded: the whole process then stands still and misses its
heartbeats, and the log names the handler (`turnstile.telemetry.loop_watch`).
"""

import asyncio
import traceback
from collections.abc import Awaitable
from contextvars import Context
from typing import Any

_GRACE_SECONDS = 1.0
_FRAMES = 5


class HandlerFailed(Exception):
    """A handler raised; the message is the error's type and its innermost lines."""


async def run_handler(handling: Awaitable[object], seconds: float, name: str) -> object:
    """Run a handler and return its result; raises `HandlerFailed`, or `TimeoutError` at its deadline.

    `name` is the listener's.
    """
    task = await run_as_task(handling, seconds, f"the handler of {name}")
    if task.cancelled():
        raise HandlerFailed("CancelledError, its own")
    if (error := task.exception()) is not None:
        raise HandlerFailed(_type_and_lines(error))
    return task.result()


async def run_as_task(handling: Awaitable[object], seconds: float, name: str) -> asyncio.Task[object]:
    """Run a handler as a task called `name`; returns the finished task, raises `TimeoutError` after `seconds`."""
    # In an empty context: the current one holds the ids of the thread, which a handler must not see (protocol §9.1).
    task = asyncio.create_task(_contained(handling), name=name, context=Context())
    task.add_done_callback(ignore_error)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        in_time = task.done()
        if not in_time:
            task.cancel()
            await asyncio.wait({task}, timeout=_GRACE_SECONDS)
    if not in_time:
        raise TimeoutError
    return task


async def _contained(handling: Awaitable[object]) -> object:
    """Turn `SystemExit` and `KeyboardInterrupt`, which would end the event loop, into `HandlerFailed`."""
    try:
        return await handling
    except (SystemExit, KeyboardInterrupt) as error:
        raise HandlerFailed(_type_and_lines(error)) from None


def _type_and_lines(error: BaseException) -> str:
    if isinstance(error, HandlerFailed):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return f"{type(error).__name__} at " + ", ".join(f"{frame.name}:{frame.lineno}" for frame in frames)


def ignore_error(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging the error of a task that nobody awaits any more."""
    if not task.cancelled():
        task.exception()
