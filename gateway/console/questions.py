"""How many questions wait for a person, as every page's navigation says. Counted at most so often."""

import time
from collections import OrderedDict
from typing import Final

from turnstile.gateway.console.rendering import MOST_COUNTED
from turnstile.ledger.people.interrupt_views import count_open_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal
from turnstile.schema.ids import ChannelId, ProjectId

KNOWN_SECONDS: Final = 1.0
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
