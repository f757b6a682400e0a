"""Reads the usage and cost of models, and the models that profiles name. Decides nothing."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from turnstile.ledger.queries import Connection, query
from turnstile.schema.api import UsageLine
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId

Grouping = Literal["agent", "model", "day"]


class TurnUsage(Tolerant):
    """The tokens of a turn's models, as far as they were counted; of its committed steps, all attempts included."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Of the prompts."""
    reasoning_tokens: int
    """Of the completions."""


class ProfileModel(Tolerant):
    """The model that a profile names."""

    project_id: ProjectId
    profile_name: str
    model: str


async def sum_usage(
    conn: Connection,
    project: ProjectId,
    grouping: Grouping,
    *,
    channel: ChannelId | None = None,
    since: datetime | None = None,
    turns: Sequence[AgentTurnId] | None = None,
) -> list[UsageLine]:
    """One line per agent, model or day, and one for all, last; only the latter if there was no attempt.

    Of one `channel`, of attempts `since` then, of these `turns` alone, if they are given.
    """
    return await query("sum_usage").all_as(
        conn,
        UsageLine,
        project_id=project,
        channel_id=channel,
        grouping=grouping,
        since=since,
        turns=None if turns is None else list(turns),
    )


async def sum_turn_usage(
    conn: Connection, project: ProjectId, turn: AgentTurnId, *, after_step: int = 0, until_step: int | None = None
) -> TurnUsage:
    """The sum of its steps, of those after one and up to another if these are given; nothing if it has none."""
    named = {"project_id": project, "agent_turn_id": turn, "after_step": after_step, "until_step": until_step}
    return await query("sum_turn_usage").one_as(conn, TurnUsage, **named)


async def list_profile_models(conn: Connection, project: ProjectId | None = None) -> list[ProfileModel]:
    """The models that profiles of the project, or of all projects, name."""
    return await query("list_profile_models").all_as(conn, ProfileModel, project_id=project)
