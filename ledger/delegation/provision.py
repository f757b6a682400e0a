"""Provisions agents for turns (protocol §12): what v1r4's `provision_agent` does, with its refusals.

`judge` decides on what was read; one statement writes that, if it is still so. A repeat of a call finds what the call
did before. An agent that is there keeps its profile, owner, worker target and tags.
"""

import json
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Json

from turnstile.ledger.queries import Again, Connection, query
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.delegation.provision import ProvisionArguments, ProvisionRefused
from turnstile.schema.ids import AgentId, BoxId, ChannelId, ProjectId, StepId, ToolCallId, is_exclusive
from turnstile.schema.states import AgentStatus


class ProvisionProfile(Tolerant):
    """A profile of the project."""

    name: str
    profile_box_id: BoxId
    worker_target: str
    tags: list[str]


def _profile(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


_Profile = Annotated[ProvisionProfile | None, BeforeValidator(_profile)]


class Facts(Tolerant):
    """What a call to provision finds."""

    done: bool
    """Whether the call has written before: an earlier try, whose answer was lost."""
    found: bool
    status: AgentStatus | None
    agent_profile_box_id: BoxId | None
    owner_agent_id: AgentId | None
    worker_target: str | None
    tags: Json[list[str]]
    metadata: Json[JsonObject]
    display_name: str | None
    version: str | None
    source_profile_box_id: BoxId | None
    named_profile: _Profile
    boxed_profile: _Profile
    """Of the box that is named, else of the agent that is derived from, else of the agent that is there."""


@dataclass(frozen=True, slots=True)
class ProvisionCaller:
    """The call that asks, from its row."""

    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    step_id: StepId
    tool_call_id: ToolCallId
    trace_id: str
    policy: DelegationPolicy | None


@dataclass(frozen=True, slots=True)
class RosterRow:
    """An agent as it shall be."""

    profile_box_id: BoxId
    worker_target: str
    tags: list[str]
    display_name: str | None
    owner_agent_id: str | None
    metadata: JsonObject


def judge(arguments: ProvisionArguments, facts: Facts, policy: DelegationPolicy | None) -> RosterRow | None:
    """The row that the agent shall have; None if it is just so. Raises `ProvisionRefused` with v1r4's code."""
    profile = _target(arguments, facts, policy)
    if facts.found:
        return _changed(arguments, facts, profile)
    derives = arguments.action == "derive"
    if arguments.profile_name is None and arguments.profile_box_id is None:
        raise ProvisionRefused("missing_derived_profile_name" if derives else "missing_profile_name")
    if derives:
        name = arguments.display_name or arguments.profile_name
        return _row(arguments, profile, name, arguments.derived_from, {"derived_from": arguments.derived_from})
    return _row(arguments, profile, arguments.display_name, arguments.owner_agent_id, {})


def _target(arguments: ProvisionArguments, facts: Facts, policy: DelegationPolicy | None) -> ProvisionProfile:
    """The profile that the agent has or shall have, which the caller's policy allows."""
    if arguments.profile_name is not None and policy is not None and facts.named_profile is None:
        raise ProvisionRefused("not_found")
    judged = facts.named_profile or facts.boxed_profile
    profile = facts.boxed_profile if arguments.profile_box_id is not None else judged
    if profile is None and arguments.profile_box_id is not None:
        raise ProvisionRefused("profile_not_found")
    if profile is None and arguments.profile_name is None:
        raise ProvisionRefused(
            "missing_derived_profile_name" if arguments.action == "derive" else "missing_profile_name"
        )
    # a name and a box may name two profiles: both must be allowed
    if policy is None or not all(policy.allows(p.name, p.tags) for p in (judged, profile) if p is not None):
        raise ProvisionRefused("auth_failed")
    if profile is None:
        raise ProvisionRefused("not_found")
    return profile


def _row(
    arguments: ProvisionArguments,
    profile: ProvisionProfile,
    display_name: str | None,
    owner: str | None,
    more: JsonObject,
) -> RosterRow:
    if arguments.worker_target is not None and is_exclusive(arguments.worker_target):
        raise ProvisionRefused("auth_failed")  # a service's or a person's own process: an operator's profile names it
    tags = arguments.known_tags
    return RosterRow(
        profile_box_id=profile.profile_box_id,
        worker_target=arguments.worker_target or profile.worker_target,
        tags=profile.tags if tags is None else tags,
        display_name=display_name,
        owner_agent_id=owner,
        metadata={**arguments.metadata, **more, "profile_name": profile.name},
    )


def _changed(arguments: ProvisionArguments, facts: Facts, profile: ProvisionProfile) -> RosterRow | None:
    """The row of an agent that is there: only its name and its metadata change."""
    if facts.status is AgentStatus.INACTIVE:
        raise ProvisionRefused("agent_inactive")
    derives = arguments.action == "derive"
    if derives and arguments.profile_name is not None and profile.profile_box_id != facts.agent_profile_box_id:
        raise ProvisionRefused("profile_mismatch")
    if (arguments.profile_box_id or arguments.profile_name) and profile.profile_box_id != facts.agent_profile_box_id:
        raise ProvisionRefused("existing_agent_profile_mutation_forbidden")
    owner = None if derives else arguments.owner_agent_id
    if owner is not None and owner != facts.owner_agent_id:
        raise ProvisionRefused("existing_agent_owner_mutation_forbidden")
    if arguments.worker_target is not None and arguments.worker_target != facts.worker_target:
        raise ProvisionRefused("existing_agent_worker_target_mutation_forbidden")
    if arguments.tags is not None and arguments.known_tags != facts.tags:
        raise ProvisionRefused("existing_agent_tags_mutation_forbidden")
    metadata: JsonObject = {**facts.metadata, **arguments.metadata, "profile_name": profile.name}
    name = facts.display_name
    if derives:
        if metadata.setdefault("derived_from", arguments.derived_from) != arguments.derived_from:
            raise ProvisionRefused("derived_agent_conflict")
    elif arguments.display_name is not None:
        name = arguments.display_name
    if metadata == facts.metadata and name == facts.display_name:
        return None
    return RosterRow(
        profile_box_id=facts.agent_profile_box_id or profile.profile_box_id,
        worker_target=facts.worker_target or profile.worker_target,
        tags=facts.tags,
        display_name=name,
        owner_agent_id=facts.owner_agent_id,
        metadata=metadata,
    )


async def provision_agent(conn: Connection, caller: ProvisionCaller, arguments: ProvisionArguments) -> bool:
    """Make the agent, or change it; returns whether the roster was written by this call, now or before.

    Raises `ProvisionRefused`, or `Again` if the agent changed meanwhile.
    """
    named = {"project_id": caller.project_id, "agent_id": arguments.agent_id}
    facts = await query("provision_facts").one_as(
        conn,
        Facts,
        **named,
        profile_name=arguments.profile_name,
        profile_box_id=arguments.profile_box_id,
        derived_from=arguments.derived_from if arguments.action == "derive" else None,
        edge_id=f"provision-{caller.tool_call_id}",
    )
    if facts.done:
        return True
    row = judge(arguments, facts, caller.policy)
    if row is None:
        return False
    reply = await query("provision_agent").one(
        conn,
        **named,
        version=facts.version,
        profile_box_id=row.profile_box_id,
        worker_target=row.worker_target,
        tags=json.dumps(row.tags),
        display_name=row.display_name,
        owner_agent_id=row.owner_agent_id,
        metadata=json.dumps(row.metadata),
        edge_id=f"provision-{caller.tool_call_id}",
        channel_id=caller.channel_id,
        caller_agent_id=caller.agent_id,
        trace_id=caller.trace_id or None,
        parent_step_id=caller.step_id,
        edge_metadata=json.dumps({"sender": caller.agent_id}),
    )
    if reply["verdict"] == "again":
        raise Again
    return True
