"""One run of a tool's function, bounded in time.

An async function runs as a task and is cancelled at its timeout. A sync function runs in a daemon thread, which cannot
be cancelled: `outcome` returns at the timeout all the same, and `ended` when the thread has ended. A hung thread does
not keep the process alive. While a function waits for a person its time stands still. Costs one task, and one thread
for a sync function.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from turnstile.sdk.tools.spec import ToolFunction

_LOOK_SECONDS = 1.0
"""How often at most is looked whether a person has answered: a run may take so much longer than it may."""


@dataclass(frozen=True, slots=True)
class FunctionReturned:
    """The function returned."""

    value: object


@dataclass(frozen=True, slots=True)
class FunctionRaised:
    """The function raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The function did not end in time."""


Finished: TypeAlias = FunctionReturned | FunctionRaised
Outcome: TypeAlias = Finished | TimedOut


class RunTime:
    """The time that a run may take, from `begin` on. It stands still while the run waits for people."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._since = time.monotonic()
        self._waits = 0

    def begin(self) -> None:
        """From now on."""
        self._since = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._left if self._waits else self._left - (time.monotonic() - self._since)

    @property
    def stands_still(self) -> bool:
        """Whether the run waits for a person."""
        return self._waits > 0

    @contextlib.contextmanager
    def standing_still(self) -> Generator[None]:
        """Not counted, by however many at once."""
        self._left = self.left
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self._since = time.monotonic()


class ToolRun:
    """A function that was started. Create it in a running event loop."""

    def __init__(self, function: ToolFunction, arguments: dict[str, object]) -> None:
        self._cancellable = inspect.iscoroutinefunction(function)
        self._task = asyncio.create_task(_call(function, arguments), name=f"tool {function.__name__}")

    async def outcome(self, time_left: RunTime) -> Outcome:
        """Wait for the outcome, until no time is left; an async function is cancelled then."""
        while not self._task.done() and (left := time_left.left) > 0:
            await asyncio.wait({self._task}, timeout=max(left, _LOOK_SECONDS) if time_left.stands_still else left)
        if not self._task.done():
            if self._cancellable:
                self._task.cancel()
            return TimedOut()
        if self._task.cancelled():
            return FunctionRaised(RuntimeError("the tool cancelled itself"))
        return self._task.result()

    async def ended(self) -> None:
        """Return when neither task nor thread runs any more; never raises."""
        await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Cancel the task; a thread runs on, and its result is dropped."""
        self._task.cancel()


async def _call(function: ToolFunction, arguments: dict[str, object]) -> Finished:
    try:
        if inspect.iscoroutinefunction(function):
            return FunctionReturned(await function(**arguments))
        finished = await _in_thread(partial(function, **arguments))
        if isinstance(finished, FunctionReturned) and inspect.isawaitable(finished.value):
            return FunctionReturned(await finished.value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 -- anything a tool raises becomes its result
        return FunctionRaised(error)
    return finished


def _in_thread(work: Callable[[], object]) -> asyncio.Future[Finished]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Finished] = loop.create_future()
    context = contextvars.copy_context()

    def settle(finished: Finished) -> None:
        if not future.done():
            future.set_result(finished)

    def body() -> None:
        try:
            finished: Finished = FunctionReturned(context.run(work))
        except BaseException as error:  # noqa: BLE001 -- the outcome carries it to the event loop
            finished = FunctionRaised(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service ended before the thread
            loop.call_soon_threadsafe(settle, finished)

    threading.Thread(target=body, name="turnstile-tool", daemon=True).start()
    return future
