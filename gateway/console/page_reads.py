"""What every page reads, each at most so often: how many questions wait for a person, and the labels of tokens."""

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from turnstile.gateway.console.rendering import MOST_COUNTED
from turnstile.ledger.access.tokens import list_token_labels
from turnstile.ledger.people.interrupt_views import count_open_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal
from turnstile.schema.ids import ChannelId, ProjectId

KNOWN_SECONDS: Final = 1.0
LABELS_KNOWN_SECONDS: Final = 15.0
_REMEMBERED: Final = 1000


class OpenQuestions:
    """The counts of one gateway, each remembered for a moment."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: OrderedDict[tuple[ProjectId, ChannelId | None], tuple[int, float]] = OrderedDict()

    async def count(self, principal: Principal) -> int:
        """How many a session sees, at most one more than are shown."""
        key = principal.project_id, principal.channel_id
        found, until = self._known.get(key, (0, 0.0))
        if time.monotonic() < until:
            return found
        project, channel = key
        found = await self._pool.run(
            lambda conn: count_open_interrupts(conn, project, channel=channel, most=MOST_COUNTED + 1)
        )
        self._known[key] = (found, time.monotonic() + KNOWN_SECONDS)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found


class TokenLabels:
    """The labels of the tokens of each project, so that pages can say who `token.0f3c…` is."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: OrderedDict[ProjectId, tuple[Mapping[str, str], float]] = OrderedDict()

    async def of(self, principal: Principal) -> Mapping[str, str]:
        """Labels by what the ledger calls their tokens, of the session's project."""
        project = principal.project_id
        found, until = self._known.get(project, ({}, 0.0))
        if time.monotonic() < until:
            return found
        lines = await self._pool.run(lambda conn: list_token_labels(conn, project))
        found = {line.sender: line.label for line in lines}
        self._known[project] = (found, time.monotonic() + LABELS_KNOWN_SECONDS)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found
