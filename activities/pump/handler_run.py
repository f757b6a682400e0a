"""One run of a handler: bounded in time, and what it says when it fails kept out of everything (protocol §9).

Guarantees: `run_handler` ends at most `_GRACE_SECONDS` after the deadline, also where a handler does not hear that it
is to end; what it still does then changes nothing. What a handler raises, whatever it is, becomes `HandlerFailed`,
which holds its type and where, without a word of it. It cannot bound a handler that blocks the event loop: that holds
up its whole process, which then misses its heartbeats; the log names it (`turnstile.telemetry.loop_watch`).

`InHand` keeps what is handled through that: the engine takes the process for dead and offers the message again, and the
new attempt waits for what is in hand here instead of finding it begun by a dead one.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any

from turnstile.activities.cancellation import is_given_up
from turnstile.schema.pump.threads import MessageId

_GRACE_SECONDS = 1.0
_FRAMES = 5


class HandlerFailed(Exception):
    """A handler raised; the message is its type and the innermost places of a stranger's code."""


class InHand:
    """The messages that this process handles, each in one task, however many attempts of the engine wait for it."""

    def __init__(self) -> None:
        self._tasks: dict[MessageId, asyncio.Task[None]] = {}

    async def settle(self, message: MessageId, handling: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the message's handling, begun here if it is not in hand; raises what that raises.

        An attempt that is cancelled takes it along, unless only its heartbeats were missed.
        """
        task = self._tasks.get(message)
        if task is None:
            task = self._tasks[message] = asyncio.create_task(handling(), name=f"message {message}")
            task.add_done_callback(_silence)
            task.add_done_callback(lambda _: self._tasks.pop(message, None))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not is_given_up():
                task.cancel()
                await asyncio.wait({task})
            raise


async def run_handler(handling: Awaitable[object], seconds: float, name: str) -> object:
    """What the handler returns; raises `HandlerFailed`, or `TimeoutError` at its deadline. `name` is its listener's."""
    task = await let_run(handling, seconds, f"the handler of {name}")
    if task.cancelled():
        raise HandlerFailed("CancelledError, its own")
    if (error := task.exception()) is not None:
        raise HandlerFailed(_told(error))
    return task.result()


async def let_run(handling: Awaitable[object], seconds: float, name: str) -> asyncio.Task[object]:
    """The handler as a task of this name, which is done; raises `TimeoutError` at its deadline."""
    # A context of its own: ours holds the ids of the thread, which a handler is not to know (protocol §9.1).
    task = asyncio.create_task(_contained(handling), name=name, context=Context())
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


def _silence(task: asyncio.Task[Any]) -> None:
    """Nobody is to log the words of an error that came too late."""
    if not task.cancelled():
        task.exception()
