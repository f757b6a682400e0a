"""Learns who answers fast: models by profile, tools by project and name (ARCHITECTURE.md, quick steps).

It learns from answers that this process saw, so a new process takes everybody for slow at first.
"""

from collections import OrderedDict

LEARNED_AFTER = 5
"""This many consecutive answers must have been fast before one counts as fast."""
_KEPT = 10
"""The count's maximum. Each slower answer takes one back, so who is fast stays so through a few of them."""
_MARGIN = 2
"""A fast answer takes less than `patience` divided by this."""
_REMEMBERED = 10_000
"""Keys that are kept; the one that answered longest ago is dropped first."""


class FastAnswers:
    """Counts fast answers by key. `patience` is how many seconds a step waits for one; with 0 nobody is fast."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._fast: OrderedDict[str, int] = OrderedDict()

    def is_quick(self, key: str) -> bool:
        """Whether the last answers were fast."""
        return self._fast.get(key, 0) >= LEARNED_AFTER

    def record(self, key: str, seconds: float) -> None:
        """Count an answer, or a timeout, that took `seconds`; `patience` or more resets the count."""
        fast = self._fast.pop(key, 0)
        if seconds >= self.patience:
            return
        fast = min(fast + 1, _KEPT) if seconds * _MARGIN < self.patience else max(fast - 1, 0)
        self._fast[key] = fast
        if len(self._fast) > _REMEMBERED:
            self._fast.popitem(last=False)
