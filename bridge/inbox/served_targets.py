"""The worker targets that a bridge serves: its shared ones, and exclusive ones while it holds their locks (§8)."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager


class ServedTargets:
    """The targets served now; claims and the safety net's rules read them at each use, only `serving` changes them."""

    def __init__(self, targets: Iterable[str]) -> None:
        self._now = tuple(targets)

    def now(self) -> tuple[str, ...]:
        """The targets that are served now."""
        return self._now

    @contextmanager
    def serving(self, worker_target: str) -> Generator[None]:
        """Serve one more target during the block."""
        self._now = (*self._now, worker_target)
        try:
            yield
        finally:
            self._now = tuple(t for t in self._now if t != worker_target)
