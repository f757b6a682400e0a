"""The operators' verbs on the roster, from the outside (protocol §6)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.tenants import ALICE, CHANNEL, Tenant, turn_of
from tests.support.tools import calling, definition, hand_of
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.serving.micro_service import RequestPayload, VerbRequest, handlers_of
from turnstile.bridge.verbs.roster_verbs import RosterVerbs
from turnstile.runtime.faults import Fault, FaultStruckError
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.wire import headers

TOOL = definition("search").model_dump(mode="json")
PROFILE: JsonObject = {"name": "helper", "llm_config": {"model": "scripted/echo"}}
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
    verbs = handlers_of(RosterVerbs(tenant.pool, NatsPublisher(tenant.stack.conn), answer_tokens=1000))
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{point}=throw")
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    asked: JsonObject = {"agent_id": agent}
    request = VerbRequest("agent.resume", tenant.project, CHANNEL, RequestPayload(asked), {}, "request")
    with pytest.raises(FaultStruckError):
        await verbs["agent.resume"](request)
    assert (await verbs["agent.resume"](request)).model_dump()["duplicate"]
    assert (await tenant.ended(turn)).view.status == "success"


async def test_an_agent_is_made_by_wire_and_answers(tenant: Tenant) -> None:
    """Profile, agent and turn, with nothing but NATS."""
    [target] = tenant.stack.settings.worker.worker_targets
    client = tenant.client
    put = [
        await client.request("profile.put", {"profile": {**PROFILE, "worker_target": target}}, headers=OPERATOR)
        for _ in range(2)
    ]
    assert [each["created"] for each in put] == [True, False]
    agent: JsonObject = {"agent_id": ALICE, "profile_name": "helper", "tags": ["new"]}
    made = [await client.request("agent.put", agent) for _ in range(2)]
    assert [(each["created"], each["duplicate"], each["worker_target"]) for each in made] == [
        (True, False, target),
        (False, True, target),
    ]
    assert (await tenant.turn(ALICE)).deliverable() == "You said: hello"
    changed = await client.request("agent.put", {**agent, "tags": ["old"], "display_name": "Alice"})
    assert (changed["created"], changed["duplicate"]) == (False, False)
    [line] = _lines(await client.request("agent.list", {}), "agents")
    assert (line["agent_id"], line["display_name"], line["status"]) == (ALICE, "Alice", "active")
    [line] = _lines(await client.request("profile.list", {}), "profiles")
    assert (line["name"], line["agents"]) == ("helper", 1)
    actions = await tenant.rows(
        "SELECT action FROM state.identity_edges WHERE project_id = $1 ORDER BY created_at", tenant.project
    )
    assert [action["action"] for action in actions] == ["add", "change"]


def _lines(reply: JsonObject, name: str) -> list[dict[str, Any]]:
    assert reply["status"] == "accepted", reply
    lines: Any = reply[name]
    return lines


async def test_lists_have_pages(tenant: Tenant) -> None:
    await tenant.agents("echo", 5)
    seen: list[str] = []
    after: str | None = None
    while True:
        asked: JsonObject = {"limit": 2, **({"after": after} if after else {})}
        reply = await tenant.client.request("agent.list", asked)
        seen += [line["agent_id"] for line in _lines(reply, "agents")]
        if reply["next"] is None:
            break
        after = str(reply["next"])
    assert seen == [f"agent-{number}" for number in range(5)]
    for number in range(3):
        await tenant.client.request("tool.put", {"tool": definition(f"tool_{number}").model_dump(mode="json")})
    first = await tenant.client.request("tool.list", {"limit": 2})
    rest = await tenant.client.request("tool.list", {"after": str(first["next"])})
    names = [line["tool_name"] for reply in (first, rest) for line in _lines(reply, "tools")]
    assert (names, rest["next"]) == (["tool_0", "tool_1", "tool_2"], None)


@pytest.mark.parametrize(
    ("verb", "arguments", "code"),
    [
        ("profile.put", {}, "bad_request"),
        ("profile.put", {"profile": {"name": "x"}}, "bad_request"),
        ("profile.put", {"profile": {**PROFILE, "worker_target": "svc1_x"}}, "bad_request"),
        ("profile.put", {"profile": {**PROFILE, "memory": {"max_context_tokens": 3}}}, "memory_too_small"),
        ("profile.list", {"limit": 0}, "bad_request"),
        ("tool.put", {"tool": {**TOOL, "tool_name": "submit_result"}}, "bad_request"),
        ("tool.put", {"tool": {**TOOL, "target_subject": "cg.v1r4.other.>"}}, "bad_request"),
        ("tool.remove", {"tool_name": "nothing"}, "unknown_tool"),
        ("agent.put", {"agent_id": "a.b", "profile_name": "alice-profile"}, "bad_request"),
        ("agent.put", {"agent_id": "new", "profile_name": "nobody"}, "unknown_profile"),
        ("agent.put", {"agent_id": "new", "profile_name": "alice-profile", "worker_target": "svc1__"}, "bad_request"),
        ("agent.put", {"agent_id": "new", "profile_name": "alice-profile", "worker_target": "a.b"}, "bad_request"),
        ("agent.put", {"agent_id": "new", "profile_name": "x", "metadata": {"instance_of": "x"}}, "bad_request"),
    ],
)
async def test_what_is_not_put(tenant: Tenant, verb: str, arguments: JsonObject, code: str) -> None:
    await tenant.agent("echo")
    reply = await tenant.client.request(verb, arguments)
    assert (reply["status"], reply["error_code"]) == ("rejected", code), reply
    assert await tenant.count("resource.project_agents") == 1


async def test_a_call_of_a_tool_that_is_removed_is_described_and_answered(tenant: Tenant) -> None:
    """Whoever removes a tool takes nothing from turns that know it, whatever comes first."""
    async with hand_of(tenant, definition("search")) as hand:
        turn = await hand.suspended(calling("search"))
        [command] = await hand.heard()
        removed, *told = await asyncio.gather(
            tenant.client.request("tool.remove", {"tool_name": "search"}),
            *(tenant.client.request("describe", {"tool_call_id": command.call}) for _ in range(5)),
        )
        assert removed["status"] == "accepted"
        again = await tenant.client.request("describe", {"tool_call_id": command.call})
        assert [each["call"] for each in told] == [again["call"]] * 5
        await hand.report(command.call)
        assert (await hand.ended(turn)).view.status == "success"


STORING: list[tuple[str, JsonObject, Fault, JsonObject]] = [
    ("profile.put", {"profile": PROFILE}, Fault.PROFILE_STORED, {"created": False}),
    ("tool.put", {"tool": TOOL}, Fault.TOOL_STORED, {"created": False}),
    ("agent.put", {"agent_id": "new", "profile_name": "alice-profile"}, Fault.AGENT_CHANGED, {"duplicate": True}),
]


@pytest.mark.parametrize(("verb", "arguments", "point", "repeat"), STORING)
async def test_what_fails_after_its_commit_is_done(
    tenant: Tenant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    arguments: JsonObject,
    point: Fault,
    repeat: JsonObject,
) -> None:
    await tenant.agent("echo")
    verbs = handlers_of(RosterVerbs(tenant.pool, NatsPublisher(tenant.stack.conn), answer_tokens=1000))
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{point}=throw,{Fault.TOOL_REMOVED}=throw")
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(tmp_path))
    request = VerbRequest(verb, tenant.project, CHANNEL, RequestPayload(arguments), {}, "request")
    with pytest.raises(FaultStruckError):
        await verbs[verb](request)
    reply = (await verbs[verb](request)).model_dump()
    assert reply["status"] == "accepted"
    assert {name: reply[name] for name in repeat} == repeat
    if verb == "tool.put":
        removing = VerbRequest(
            "tool.remove", tenant.project, CHANNEL, RequestPayload({"tool_name": "search"}), {}, "request"
        )
        with pytest.raises(FaultStruckError):
            await verbs["tool.remove"](removing)
        with pytest.raises(Refused, match="no tool"):
            await verbs["tool.remove"](removing)
