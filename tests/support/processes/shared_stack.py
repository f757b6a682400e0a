"""The stack that runs in this process for one module of tests after another."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # much is imported there, which most tests do not need
    from tests.support.processes.stack import Stack

MODULES = 6
"""That one stack serves: audits and the safety net read more with every turn, of which nothing is vacuumed."""


class SharedStack:
    """At most one: two stacks on the session's servers would answer each other's verbs."""

    def __init__(self) -> None:
        self._opened: Stack | None = None
        self._served = 0
        self._resources = AsyncExitStack()

    async def get(self, running: "Callable[[], AbstractAsyncContextManager[Stack]]") -> "Stack":
        """The running stack, for one module more; it is opened where there is none."""
        if self._served >= MODULES:
            await self.close()
        if self._opened is None:
            self._opened = await self._resources.enter_async_context(running())
        self._served += 1
        return self._opened

    async def close(self) -> None:
        """End it, if it runs."""
        self._opened, self._served = None, 0
        await self._resources.aclose()
