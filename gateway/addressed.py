"""Whom a request from outside is for: an agent by its id, or `profile:NAME`, whose instances run the turns."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from turnstile.ledger.access.addressees import Addressee, find_agent, find_profile
from turnstile.ledger.pool import Pool
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import ProjectId

PROFILE: Final = "profile:"
TARGET_LIMIT: Final = 256
"""Characters of a name."""
GONE: Final = frozenset({"unknown_agent", "unknown_profile", "unknown_project", "agent_inactive", "no_instances"})
"""Codes of an enqueue whose target takes no turns, or not any more."""


@dataclass(frozen=True, slots=True)
class AddressedTarget:
    """Whom a turn is for."""

    named: str
    """As its clients name it."""
    name: str
    is_profile: bool
    since: datetime
    """When it was made; of a profile, when it was last put."""

    def fields(self) -> JsonObject:
        """What an enqueue says of it."""
        return {"profile_name" if self.is_profile else "agent_id": self.name}


def target_of(addressee: Addressee) -> AddressedTarget:
    """An addressee, as its clients name it."""
    named = PROFILE + addressee.name if addressee.is_profile else addressee.name
    return AddressedTarget(named, addressee.name, addressee.is_profile, addressee.since)


async def look_up(pool: Pool, project: ProjectId, named: str) -> AddressedTarget | None:
    """The agent or profile of this name that takes turns; None if there is none."""
    if len(named) > TARGET_LIMIT or not named.isprintable():
        return None
    find = find_profile if named.startswith(PROFILE) else find_agent
    addressee = await pool.run(lambda conn: find(conn, project, named.removeprefix(PROFILE)))
    return None if addressee is None else target_of(addressee)
