"""What every page reads, each at most so often: how many questions wait for a person, and the labels of tokens."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Final, Generic, TypeVar

from turnstile.gateway.console.rendering import MOST_COUNTED
from turnstile.ledger.access.tokens import list_token_labels
from turnstile.ledger.people.interrupt_views import count_open_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal
from turnstile.schema.ids import ChannelId, ProjectId

KNOWN_SECONDS: Final = 1.0
LABELS_KNOWN_SECONDS: Final = 15.0
_REMEMBERED: Final = 1000

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Remembered(Generic[Key, Value]):
    """What was read, by a key, for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: OrderedDict[Key, tuple[Value, float]] = OrderedDict()

    async def get(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        """What is remembered, else what `read` returns."""
        known = self._known.get(key)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        value = await read()
        self._known[key] = (value, time.monotonic() + self._seconds)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return value


class OpenQuestions:
    """The counts of one gateway, each remembered for a moment."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known = _Remembered[tuple[ProjectId, ChannelId | None], int](KNOWN_SECONDS)

    async def count(self, principal: Principal) -> int:
        """How many a session sees, at most one more than are shown."""
        project, channel = principal.project_id, principal.channel_id

        async def read() -> int:
            return await self._pool.run(
                lambda conn: count_open_interrupts(conn, project, channel=channel, most=MOST_COUNTED + 1)
            )

        return await self._known.get((project, channel), read)


class TokenLabels:
    """The labels of the tokens of each project, so that pages can say who `token.0f3c…` is."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known = _Remembered[ProjectId, Mapping[str, str]](LABELS_KNOWN_SECONDS)

    async def of(self, principal: Principal) -> Mapping[str, str]:
        """Labels by what the ledger calls their tokens, of the session's project."""
        project = principal.project_id

        async def read() -> Mapping[str, str]:
            lines = await self._pool.run(lambda conn: list_token_labels(conn, project))
            return {line.sender: line.label for line in lines}

        return await self._known.get(project, read)
