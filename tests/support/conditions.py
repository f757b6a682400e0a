"""Polling for conditions in servers and other processes, which cannot set an event in the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]], timeout: float, what: str, *, pause: float = 0.02) -> T:
    """Call `look` until its result is true, and return it; raises `AssertionError` naming `what` after `timeout` s."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not (found := await look()):
        if loop.time() > deadline:
            raise AssertionError(f"after {timeout:g} s still not: {what}")
        await asyncio.sleep(pause)
    return found
