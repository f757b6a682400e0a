"""The operators' verbs on the roster, from the outside (protocol §6)."""

from pathlib import Path

import pytest

from tests.support.tenants import ALICE, CHANNEL, Tenant, turn_of
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.verbs.micro_service import Payload, VerbRequest
from turnstile.bridge.verbs.roster_verbs import RosterVerbs
from turnstile.runtime.faults import Fault, FaultStruckError
from turnstile.schema.base import JsonObject
from turnstile.schema.wire import headers

OPERATOR = {headers.SENDER: "ops"}


async def test_what_waits_for_a_paused_agent_runs_when_it_is_resumed(tenant: Tenant) -> None:
    agent = await tenant.agent("echo")
    paused = await tenant.client.request("agent.pause", {"agent_id": agent}, headers=OPERATOR)
    assert (paused["status"], paused["agent_status"], paused["duplicate"]) == ("accepted", "paused", False)
    reply = await tenant.enqueue(agent, "later")
    described: JsonObject = await tenant.client.request("describe", {"agent_turn_id": turn_of(reply)})
    turn = described["turn"]
    assert isinstance(turn, dict)
    assert (turn["status"], turn["queued_because"]) == ("queued", "agent_paused")
    resumed = await tenant.client.request("agent.resume", {"agent_id": agent}, headers=OPERATOR)
    assert (resumed["agent_status"], resumed["duplicate"]) == ("active", False)
    assert (await tenant.ended(turn_of(reply))).deliverable() == "You said: later"
    [edge, *_] = await tenant.rows(
        "SELECT action, metadata ->> 'sender' AS sender, channel_id, trace_id FROM state.identity_edges"
        " WHERE project_id = $1 AND action <> 'add' ORDER BY created_at",
        tenant.project,
    )
    assert (edge["action"], edge["sender"], edge["channel_id"], len(edge["trace_id"])) == ("pause", "ops", CHANNEL, 32)


async def test_a_retired_agent_is_asked_nothing(tenant: Tenant) -> None:
    agent = await tenant.agent("echo")
    for duplicate in (False, True):
        reply = await tenant.client.request("agent.retire", {"agent_id": agent})
        assert (reply["agent_status"], reply["duplicate"]) == ("retired", duplicate)
    refused = await tenant.ask({"agent_id": agent, "instruction": "hi"})
    assert refused.error_code == "agent_inactive"


@pytest.mark.parametrize("verb", ["agent.pause", "agent.resume", "agent.retire"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "bad_request"),
        ({"agent_id": "a.b"}, "bad_request"),
        ({"agent_id": ALICE, "status": "paused"}, "bad_request"),
        ({"agent_id": "nobody"}, "unknown_agent"),
    ],
)
async def test_what_is_refused(tenant: Tenant, verb: str, arguments: JsonObject, code: str) -> None:
    reply = await tenant.client.request(verb, arguments)
    assert (reply["status"], reply["error_code"]) == ("rejected", code)


@pytest.mark.parametrize("point", [Fault.AGENT_CHANGED, Fault.AGENT_PUBLISHED])
async def test_a_resume_that_fails_after_its_commit_is_done(
    tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: Fault
) -> None:
    """Its doorbell may be lost: the safety net rings for the turn. A repeat finds it done."""
    agent = await tenant.agent("echo")
    await tenant.client.request("agent.pause", {"agent_id": agent})
    turn = turn_of(await tenant.enqueue(agent))
    verbs = RosterVerbs(tenant.pool, NatsPublisher(tenant.stack.conn)).handlers()
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{point}=throw")
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    asked: JsonObject = {"agent_id": agent}
    request = VerbRequest("agent.resume", tenant.project, CHANNEL, Payload(asked), {}, "request")
    with pytest.raises(FaultStruckError):
        await verbs["agent.resume"](request)
    assert (await verbs["agent.resume"](request)).model_dump()["duplicate"]
    assert (await tenant.ended(turn)).view.status == "success"
