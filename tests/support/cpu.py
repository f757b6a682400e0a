"""What a call costs in CPU time, judged so that a busy machine changes nothing.

A neighbour on the machine, cold caches and a first use only ever add to a run: a call costs the least of several runs.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

T = TypeVar("T")

HELD_SECONDS = 0.05
"""The most CPU that one callback of a loop may take."""
RUNS = 10
PAUSE_SECONDS = 0.1
"""After the first run, and each time as much more: a neighbour's moment passes."""


@contextmanager
def no_collection() -> Generator[None]:
    """A collection of garbage would look at all that other tests left."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def cheap(limit: float, call: Callable[[], T], what: object = "it") -> T:
    """The result of the first run of `call` below `limit` seconds of this thread's CPU.

    Raises `AssertionError`, which names `what`, where none of `RUNS` runs is below it.
    """
    taken: list[float] = []
    for _ in range(RUNS):
        with no_collection():
            began = time.thread_time()
            result = call()
            taken.append(time.thread_time() - began)
        if taken[-1] < limit:
            return result
        time.sleep(PAUSE_SECONDS * len(taken))
    raise AssertionError(f"{what} takes {min(taken):.3f} s of CPU, and may take {limit:g}")


class Held:
    """The most CPU that one callback of the loop took since the last look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def cheap(self, call: Callable[[], Awaitable[T]], what: object = "it") -> T:
        """As `cheap`, for what holds the loop below `HELD_SECONDS` at a time."""
        taken: list[float] = []
        for _ in range(RUNS):
            await asyncio.sleep(0)  # what the test does itself is no hold
            self.seconds = 0.0
            result = await call()
            taken.append(self.seconds)
            if self.seconds < HELD_SECONDS:
                return result
            await asyncio.sleep(PAUSE_SECONDS * len(taken))
        raise AssertionError(f"{what} holds the loop for {min(taken):.3f} s of CPU, and may for {HELD_SECONDS:g}")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Measures each callback of the loop during the test."""
    most, run = Held(), asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        most.seconds = max(most.seconds, time.thread_time() - began)

    monkeypatch.setattr(asyncio.events.Handle, "_run", timed)
    with no_collection():
        yield most
