"""What models cost, and which models profiles name. Reads only, decides nothing."""

from datetime import datetime
from typing import Literal

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import ProjectId

Grouping = Literal["agent", "model", "day"]


class UsageLine(Tolerant):
    """Sums over attempts, failed ones included; `name` is None in the line of all. A day is one of UTC."""

    name: str | None
    turns: int
    steps: int
    attempts: int
    failed_attempts: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    response_cost: float | None
    """In US dollars, of the attempts whose price is known; None if none is."""
    estimated_attempts: int
    """Attempts whose tokens were counted here, because the provider did not say."""
    unknown_attempts: int
    """Attempts of which nothing is known: failed, or lost with their worker."""


class ProfileModel(Tolerant):
    """The model a profile names."""

    project_id: ProjectId
    profile_name: str
    model: str


async def sum_usage(
    conn: Connection, project: ProjectId, grouping: Grouping, *, since: datetime | None = None
) -> list[UsageLine]:
    """One line per agent, model or day, and one of all; that one alone if there was no attempt."""
    rows = await query("sum_usage").many(conn, project_id=project, grouping=grouping, since=since)
    return [UsageLine.model_validate(dict(row)) for row in rows]


async def list_profile_models(conn: Connection, project: ProjectId | None = None) -> list[ProfileModel]:
    """The models that profiles of the project, or of all projects, name."""
    rows = await query("list_profile_models").many(conn, project_id=project)
    return [ProfileModel.model_validate(dict(row)) for row in rows]
