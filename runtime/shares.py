"""For which project a process works just now, and shares of what projects have in common.

A door says it once it knows whose token asks; what is awaited or started from there is done for that project. Only the
id is kept, in the context of the task.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar

_ASKS: ContextVar[str] = ContextVar("turnstile_asks", default="")
"""Holds a value of the current task, not of the module."""


def asks(project: str) -> None:
    """Say that what follows in this task is done for a project."""
    _ASKS.set(project)


class Shares:
    """At most so many at a time of each project, in order; further ones wait. Who asks for none has no share to keep.

    Holds a semaphore for each project that has one in use or waits for one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._gates: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def mine(self) -> AsyncGenerator[None]:
        """A place of the project's share for the block."""
        if not (project := _ASKS.get()):
            yield
            return
        gate, users = self._gates.get(project, (asyncio.Semaphore(self._most), 0))
        self._gates[project] = gate, users + 1
        try:
            async with gate:
                yield
        finally:
            gate, users = self._gates[project]
            if users == 1:
                del self._gates[project]
            else:
                self._gates[project] = gate, users - 1
