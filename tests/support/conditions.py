"""Waiting for conditions that lie in servers and other processes, which set no event here."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T | None]], timeout: float, what: str, *, pause: float = 0.02) -> T:
    """The first answer of `look` that is true; raises `AssertionError` naming `what` after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not (found := await look()):
        if loop.time() > deadline:
            raise AssertionError(f"after {timeout:g} s still not: {what}")
        await asyncio.sleep(pause)
    return found
