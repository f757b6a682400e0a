"""Learns which models answer fast, by profile: their steps may run as quick steps (ARCHITECTURE.md, quick steps).

It learns from answers in this process only, so a new process runs every profile's first steps with `run_step`.
"""

from collections import OrderedDict

from turnstile.schema.ids import BoxId

LEARNED_AFTER = 5
"""This many consecutive answers must have been fast before a model counts as fast."""
_KEPT = 10
"""The count's maximum. Each slower answer takes one back, so a fast model stays fast through a few of them."""
_MARGIN = 2
"""A fast answer takes less than `patience` divided by this."""
_REMEMBERED = 10_000
"""Profiles that are kept; the one that answered longest ago is dropped first."""


class FastModels:
    """Counts fast answers. `patience` is how many seconds a quick step waits for a model; 0 disables quick steps."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._fast: OrderedDict[BoxId, int] = OrderedDict()

    def is_quick(self, profile: BoxId) -> bool:
        """Whether the last answers of this profile's model were fast."""
        return self._fast.get(profile, 0) >= LEARNED_AFTER

    def record(self, profile: BoxId, seconds: float) -> None:
        """Count an answer, or a timeout, that took `seconds`; `patience` or more resets the count."""
        fast = self._fast.pop(profile, 0)
        if seconds >= self.patience:
            return
        fast = min(fast + 1, _KEPT) if seconds * _MARGIN < self.patience else max(fast - 1, 0)
        self._fast[profile] = fast
        if len(self._fast) > _REMEMBERED:
            self._fast.popitem(last=False)
