"""One run of a handler: bounded in time, and what it says when it fails kept out of everything (protocol §9).

Guarantees: `run_handler` ends at most `_GRACE_SECONDS` after the deadline, also where a handler does not hear that it
is to end; what it still does then changes nothing. What a handler raises, whatever it is, becomes `HandlerFailed`,
which holds its type and where, without a word of it. It cannot bound a handler that blocks the event loop: that holds
up its whole process, which then misses its heartbeats.
"""

import asyncio
import traceback
from collections.abc import Awaitable

_GRACE_SECONDS = 1.0
_FRAMES = 5


class HandlerFailed(Exception):
    """A handler raised; the message is its type and the innermost places of a stranger's code."""


async def run_handler(handling: Awaitable[object], seconds: float, name: str = "handler") -> object:
    """What the handler returns; raises `HandlerFailed`, or `TimeoutError` at its deadline."""
    task = await let_run(handling, seconds, name)
    if task.cancelled():
        raise HandlerFailed("CancelledError, its own")
    if (error := task.exception()) is not None:
        raise HandlerFailed(_told(error))
    return task.result()


async def let_run(handling: Awaitable[object], seconds: float, name: str) -> asyncio.Task[object]:
    """The handler as a task of this name, which is done; raises `TimeoutError` at its deadline."""
    task = asyncio.create_task(_contained(handling), name=name)
    task.add_done_callback(_silence)
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
    """The loop itself would end with what asks for the end of the process."""
    try:
        return await handling
    except (SystemExit, KeyboardInterrupt) as error:
        raise HandlerFailed(_told(error)) from None


def _told(error: BaseException) -> str:
    if isinstance(error, HandlerFailed):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return f"{type(error).__name__} at " + ", ".join(f"{frame.name}:{frame.lineno}" for frame in frames)


def _silence(task: asyncio.Task[object]) -> None:
    """Nobody is to log the words of an error that came too late."""
    if not task.cancelled():
        task.exception()
