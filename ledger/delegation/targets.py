"""Looks up whom a delegating call names, and what its caller may (protocol §12.1). Only reads, one round trip each."""

import json
from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import Json, ValidationError
from pydantic_core import to_json

from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.cards import box_cards
from turnstile.rules.turn_config import PROMPT_PROFILES, PromptProfile, PromptRoster
from turnstile.schema.base import STORED, JsonObject, Tolerant
from turnstile.schema.cards import CardType, JsonContent, readable_content
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ChannelId, ProjectId

Kind = Literal["profile", "agent"]


class Target(Tolerant):
    """A profile by its name, or an agent with its profile. What is not there is None."""

    kind: Kind
    ref: str
    agent_id: AgentId | None
    display_name: str | None
    output_box_id: BoxId | None
    """Where the agent's turn in hand writes, else where its last one did, of the caller's channel."""
    profile_box_id: BoxId | None
    profile_name: str | None
    worker_target: str | None
    """The profile's."""
    tags: Json[list[str]]
    """The profile's."""
    budget: Json[JsonObject] | None
    """What the profile lets a turn spend, as the ledger has it."""
    is_above: bool
    """Whether it is the caller's agent, or that of a turn which waits for the caller's, at any distance."""


async def find_targets(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    caller: AgentTurnId,
    references: Collection[tuple[Kind, str]],
) -> dict[tuple[Kind, str], Target]:
    """What these references of the turn that asks name, each of them."""
    named = to_json([{"kind": kind, "ref": ref} for kind, ref in references]).decode()
    arguments = {"project_id": project, "channel_id": channel, "agent_turn_id": caller, "wanted": named}
    targets = await query("find_targets").all_as(conn, Target, **arguments)
    return {(t.kind, t.ref): t for t in targets}


async def policy_of(conn: Connection, project: ProjectId, profile: BoxId) -> DelegationPolicy | None:
    """The policy of the profile in this box; None if it has none, or one that cannot be read."""
    policy = (await profile_data(conn, project, profile)).get("delegation_policy")
    try:
        return None if policy is None else DelegationPolicy.model_validate(policy, context=STORED)
    except ValidationError:
        return None


async def profile_data(conn: Connection, project: ProjectId, profile: BoxId) -> JsonObject:
    """The profile in this box as it was put, not validated; empty if there is none."""
    for card in reversed(await box_cards(conn, project, profile) or ()):
        content = readable_content(card) if card.type == CardType.PROFILE else None
        if isinstance(content, JsonContent) and isinstance(content.data, dict):
            return content.data
    return {}


def references(strategies: Sequence[tuple[str, str]]) -> set[tuple[Kind, str]]:
    """What tasks of these strategies and references name."""
    return {("profile" if strategy == "new" else "agent", ref) for strategy, ref in strategies}


async def read_prompt_roster(
    conn: Connection, project: ProjectId, agent: AgentId, policy: DelegationPolicy | None
) -> PromptRoster:
    """What the agent's system prompt may say of it and of whom it may ask; one round trip."""
    named = [] if policy is None else policy.target_profiles
    names = None if named is None else [name.lower() for name in named]
    arguments = {"project_id": project, "agent_id": agent, "names": names, "row_limit": PROMPT_PROFILES}
    row = await query("read_prompt_roster").one(conn, **arguments)
    profiles = [PromptProfile.model_validate(profile) for profile in json.loads(row["profiles"])]
    return PromptRoster(row["display_name"], profiles)
