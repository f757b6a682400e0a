"""`provision_agent` from a model's call to the roster, with v1r4's answers (protocol §12)."""

from typing import Any

import pytest

from tests.support.delegation import CHIEF, answer, chief_says, result, staff
from tests.support.tenants import Ended, Tenant
from tests.support.tools import calling
from turnstile.schema.base import JsonObject
from turnstile.schema.states import TurnStatus

pytestmark = pytest.mark.shared_stack


async def provisioned(tenant: Tenant, **arguments: Any) -> Ended:
    return await chief_says(tenant, calling(("provision_agent", {"action": "ensure", "agent_id": "new", **arguments})))


async def agent(tenant: Tenant, name: str = "new") -> dict[str, Any]:
    [row] = await tenant.rows(
        "SELECT a.*, p.name AS profile FROM resource.project_agents a JOIN resource.profiles p"
        " ON p.profile_box_id = a.profile_box_id::text WHERE a.project_id = $1 AND a.agent_id = $2",
        tenant.project,
        name,
    )
    return row


async def test_an_agent_is_made_once_and_then_found(tenant: Tenant) -> None:
    await staff(tenant)
    made = await provisioned(tenant, profile_name="Worker", metadata={"desk": 7}, display_name="New one")
    assert (answer(made).status, made.view.status) == (TurnStatus.SUCCESS, "success")
    assert result(made) == {"status": "accepted", "agent_id": "new", "roster_updated": True}
    row = await agent(tenant)
    assert (row["profile"], row["tags"], row["display_name"]) == ("worker", '["associate"]', "New one")
    assert row["metadata"] == '{"desk": 7, "profile_name": "worker"}'
    again = await provisioned(tenant, profile_name="worker", metadata={"desk": 7})
    assert result(again) == {"status": "accepted", "agent_id": "new", "roster_updated": False}
    changed = await provisioned(tenant, metadata={"floor": 2})
    assert result(changed)["roster_updated"] is True
    edges = await tenant.rows(
        "SELECT action, source_agent_id FROM state.identity_edges WHERE project_id = $1 AND target_agent_id = 'new'"
        " ORDER BY created_at",
        tenant.project,
    )
    assert [tuple(edge.values()) for edge in edges] == [("add", CHIEF), ("change", CHIEF)]
    assert (await tenant.turn("new", '{"steps": [{"text": "here"}]}')).deliverable() == "here"  # pyright: ignore[reportArgumentType]


async def test_a_derived_agent_belongs_to_its_source(tenant: Tenant) -> None:
    await staff(tenant)
    derived: JsonObject = {"action": "derive", "agent_id": "twin", "derived_from": CHIEF, "profile_name": "worker"}
    made = await provisioned(tenant, **derived)
    assert result(made)["status"] == "accepted"
    row = await agent(tenant, "twin")
    assert (row["owner_agent_id"], row["display_name"]) == (CHIEF, "worker")
    assert row["metadata"] == '{"derived_from": "chief", "profile_name": "worker"}'
    other = await provisioned(tenant, **{**derived, "derived_from": "new"})
    assert result(other) == {"status": "rejected", "error_code": "derived_agent_conflict"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"profile_name": "nobody"}, "not_found"),
        ({"profile_box_id": "0190b8a0-0000-7000-8000-000000000001"}, "profile_not_found"),
        ({}, "missing_profile_name"),
        ({"action": "derive"}, "missing_derived_from"),
        ({"action": "derive", "derived_from": "chief"}, "missing_derived_profile_name"),
        ({"profile_name": "secret"}, "auth_failed"),
        ({"agent_id": "old", "profile_name": "other"}, "existing_agent_profile_mutation_forbidden"),
        ({"agent_id": "old", "owner_agent_id": "me"}, "existing_agent_owner_mutation_forbidden"),
        ({"agent_id": "old", "worker_target": "elsewhere"}, "existing_agent_worker_target_mutation_forbidden"),
        ({"agent_id": "new", "profile_name": "worker", "worker_target": "svc1_tally_main"}, "auth_failed"),
        ({"agent_id": "old", "tags": ["x"]}, "existing_agent_tags_mutation_forbidden"),
        ({"action": "derive", "agent_id": "old", "derived_from": "a", "profile_name": "other"}, "profile_mismatch"),
    ],
)
async def test_refusals_are_v1r4s(tenant: Tenant, arguments: JsonObject, code: str) -> None:
    await staff(tenant, policy={"target_profiles": ["worker", "other", "chief"]})
    await tenant.profile("secret", "player")
    await tenant.profile("other", "player")
    await provisioned(tenant, agent_id="old", profile_name="worker")
    before = await tenant.count("resource.project_agents")
    ended = await provisioned(tenant, **arguments)
    assert (result(ended), ended.view.status) == ({"status": "rejected", "error_code": code}, "success")
    assert await tenant.count("resource.project_agents") == before


async def test_no_policy_is_no(tenant: Tenant) -> None:
    await staff(tenant, policy=None)
    assert result(await provisioned(tenant, profile_name="worker"))["error_code"] == "auth_failed"
