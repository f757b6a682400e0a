"""The worker targets that a bridge serves: shared ones always, one of one process while this process has it (§8)."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager


class ServedTargets:
    """Claims and the rules of the safety net read `now` each time that they look; only `serving` changes it."""

    def __init__(self, targets: Iterable[str]) -> None:
        self._now = tuple(targets)

    def now(self) -> tuple[str, ...]:
        """The targets that are served at this moment."""
        return self._now

    @contextmanager
    def serving(self, worker_target: str) -> Generator[None]:
        """Serve one more target for as long as the block lasts."""
        self._now = (*self._now, worker_target)
        try:
            yield
        finally:
            self._now = tuple(each for each in self._now if each != worker_target)
