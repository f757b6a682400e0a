"""A rate-limited log: one line per kind and interval, which says how many were left out.

It never raises. It keeps one entry per kind, so kinds must be constants of the code, never input.
"""

import logging
import time


class LimitedLog:
    """Warnings of one logger, at most one per kind every `every` seconds."""

    def __init__(self, logger: logging.Logger, every: float = 5.0) -> None:
        self._logger = logger
        self._every = every
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, message: str, *args: object) -> None:
        """Log `message % args`, unless one of this kind was logged less than `every` seconds ago."""
        now = time.monotonic()
        if now < self._next.get(kind, 0.0):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._next[kind] = now + self._every
        if left_out := self._left_out.pop(kind, 0):
            self._logger.warning(f"{message} (and {left_out} more like it)", *args)  # noqa: G004 - `message` is the format
        else:
            self._logger.warning(message, *args)
