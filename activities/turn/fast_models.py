"""How fast models answer, by profile: which steps may be tried as quick ones (ARCHITECTURE.md, quick steps).

Learned from answers in this process alone, so that whoever starts anew asks `run_step` first.
"""

from collections import OrderedDict

from turnstile.schema.ids import BoxId

LEARNED_AFTER = 5
"""So many answers on end must have been fast."""
_KEPT = 10
"""A model that was fast so often on end stays so for some answers that were slower: this process was busy, perhaps."""
_MARGIN = 2
"""By how much faster than a quick step's patience a fast answer is."""
_REMEMBERED = 10_000
"""Profiles; the one asked longest ago is forgotten first."""


class FastModels:
    """Counts fast answers. `patience` is how long a quick step waits for a model, in seconds; 0: never."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._fast: OrderedDict[BoxId, int] = OrderedDict()

    def is_quick(self, profile: BoxId) -> bool:
        """Whether the model of this profile's box has answered fast of late."""
        return self._fast.get(profile, 0) >= LEARNED_AFTER

    def took(self, profile: BoxId, seconds: float) -> None:
        """Learn from an answer, or from a wait in vain: that, or an answer as late, forgets all before it."""
        fast = self._fast.pop(profile, 0)
        if seconds >= self.patience:
            return
        fast = min(fast + 1, _KEPT) if seconds * _MARGIN < self.patience else max(fast - 1, 0)
        self._fast[profile] = fast
        if len(self._fast) > _REMEMBERED:
            self._fast.popitem(last=False)
