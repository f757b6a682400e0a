"""A timer for what seldom takes too long: beginning anew costs an assignment, where a timeout would cost a timer each.

A gateway does so for every chunk and every client.
"""

import asyncio
from collections.abc import Callable


class IdleTimer:
    """Calls `overdue` once `since` lies `seconds` back, and again after as long; None: there is nothing to wait for."""

    def __init__(self, seconds: float, overdue: Callable[[], object], since: float | None = None) -> None:
        self.since = since
        self._seconds = seconds
        self._overdue = overdue
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(seconds, self._look)

    def begin(self) -> None:
        """It begins now."""
        self.since = self._loop.time()

    def close(self) -> None:
        """Call no more."""
        self._handle.cancel()

    def _look(self) -> None:
        left = self._seconds
        if self.since is not None:
            left = self.since + self._seconds - self._loop.time()
            if left <= 0:
                left = self._seconds
                self.since = self._loop.time()
                self._overdue()
        self._handle = self._loop.call_later(left, self._look)
