"""`/openai/v1/models`: whom a client may ask, as models (protocol §14.4)."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from turnstile.gateway.addressed import GONE, TARGET_LIMIT, AddressedTarget, look_up, target_of
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import UnknownModel
from turnstile.ledger.access.addressees import list_addressees
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import Refused
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
class ModelEndpoints:
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


def _entry(project: ProjectId, target: AddressedTarget) -> ModelEntry:
    return ModelEntry(id=target.named, created=int(target.since.timestamp()), owned_by=project)


async def find_target(pool: Pool, project: ProjectId, model: str) -> AddressedTarget:
    """The agent or profile of this name that takes turns; raises `UnknownModel`."""
    target = await look_up(pool, project, model)
    if target is None:
        raise _unknown_model(model)
    return target


@contextmanager
def known_model(model: str) -> Generator[None]:
    """Around an enqueue: a target that has gone meanwhile is an `UnknownModel`."""
    try:
        yield
    except Refused as error:
        if error.code not in GONE:
            raise
        raise _unknown_model(model) from None


def _unknown_model(model: str) -> UnknownModel:
    name = model if len(model) <= TARGET_LIMIT and model.isprintable() else "…"
    return UnknownModel(f"the model {name!r} does not exist: name an agent, or profile:NAME", "model")
