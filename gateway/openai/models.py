"""`/openai/v1/models`: whom a client may ask, as models (protocol §14.4)."""

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from turnstile.gateway.addressed import Target, target_of
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.openai.targets import find_target
from turnstile.ledger.access.addressees import list_addressees
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import ProjectId

MOST_MODELS: Final = 10_000
"""OpenAI's list has no pages."""


class ModelEntry(BaseModel):
    """A model, in OpenAI's words."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The models."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


@dataclass(frozen=True, slots=True)
class Models:
    """The handlers, over one ledger."""

    pool: Pool

    async def list(self, call: Call[object, object]) -> Answer:
        """The first `MOST_MODELS` of each kind, by name."""
        project = call.principal.project_id
        addressees = await self.pool.run(lambda conn: list_addressees(conn, project, row_limit=MOST_MODELS))
        return Answer(ModelList(data=[_entry(project, target_of(a)) for a in addressees]))

    async def get(self, call: Call[object, object]) -> Answer:
        """One model."""
        project = call.principal.project_id
        return Answer(_entry(project, await find_target(self.pool, project, call.path["model"])))


def _entry(project: ProjectId, target: Target) -> ModelEntry:
    return ModelEntry(id=target.named, created=int(target.since.timestamp()), owned_by=project)
