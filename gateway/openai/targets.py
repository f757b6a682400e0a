"""What OpenAI's clients call a model: an agent by its id, or `profile:NAME`, whose instances run the turns."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from turnstile.gateway.http.problems import UnknownModel
from turnstile.ledger.access.addressees import Addressee, find_agent, find_profile
from turnstile.ledger.pool import Pool
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused, TurnstileError
from turnstile.schema.ids import ProjectId

PROFILE: Final = "profile:"
_LONGEST = 256
_GONE = frozenset({"unknown_agent", "unknown_profile", "unknown_project", "agent_inactive", "no_instances"})


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a turn is for."""

    model: str
    """As its clients name it."""
    name: str
    is_profile: bool
    since: datetime
    """When it was made; of a profile, when it was last put."""

    def fields(self) -> JsonObject:
        """What an enqueue says of it."""
        return {"profile_name" if self.is_profile else "agent_id": self.name}


def target_of(found: Addressee) -> Target:
    """An addressee, as a model."""
    model = PROFILE + found.name if found.is_profile else found.name
    return Target(model, found.name, found.is_profile, found.since)


async def find_target(pool: Pool, project: ProjectId, model: str) -> Target:
    """The agent or profile of this name that takes turns; raises `UnknownModel`."""
    if len(model) > _LONGEST or not model.isprintable():
        raise unknown_model(model)
    name = model.removeprefix(PROFILE)
    find = find_profile if model.startswith(PROFILE) else find_agent
    found = await pool.run(lambda conn: find(conn, project, name))
    if found is None:
        raise unknown_model(model)
    return target_of(found)


def unknown_model(model: str) -> UnknownModel:
    """The error for a model that is none."""
    shown = model if len(model) <= _LONGEST and model.isprintable() else "…"
    return UnknownModel(f"the model {shown!r} does not exist: name an agent, or profile:NAME", "model")


def told_of_model(error: TurnstileError, model: str) -> TurnstileError:
    """The error of an enqueue for this model; `UnknownModel` if the model has gone meanwhile."""
    return unknown_model(model) if isinstance(error, Refused) and error.code in _GONE else error
