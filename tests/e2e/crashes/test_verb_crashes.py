"""A bridge that is killed after each commit of the verbs that make conversations, boxes and the roster.

Whoever asked repeats the request, as any client would; it was done once, and what it began goes on.
"""

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.budgets import test_spending_crashes
from tests.e2e.crashes import (
    test_conversation_crashes,
    test_decision_crashes,
    test_faults,
    test_tree_crashes,
)
from tests.e2e.durability import test_era
from tests.e2e.people import test_steering_crashes
from tests.e2e.pump import test_agents_talk_crashes, test_pump_crashes
from tests.support.faults.points import HASTY
from tests.support.faults.table import PASSED
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes
from tests.support.tenants import Tenant
from tests.support.tools import definition
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.stack(HASTY)

_OF_PLAYS = ("question.", "receiver.", "push.", "deletion.", "schedule.", "file.", "call.stepped")
_POINTS_OF_PLAYS = {each for each in Fault if each.startswith(_OF_PLAYS)}
"""`tests/e2e/durability/test_fault_deaths.py` kills there."""
PROFILE: JsonObject = {"name": "crew", "instances": True, "llm_config": {"model": "scripted/chat"}}
PARTS: list[JsonObject] = [{"text": "I am Ada."}, {"text": "Hello Ada.", "type": "task.deliverable"}]
TURN: JsonObject = {"profile_name": "crew", "instruction": "hi", "conversation_id": "c1", "correlation_id": "k1"}
AGENT: JsonObject = {"agent_id": "alice"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose bridge dies at a point, and what its repeat is answered."""

    point: Fault
    verb: str
    arguments: JsonObject
    repeat: Mapping[str, object]


DONE = {"status": "accepted", "duplicate": True}
STORED = {"status": "accepted", "created": False}
ASKED = (
    Asked(Fault.PROFILE_STORED, "profile.put", {"profile": PROFILE}, STORED),
    Asked(Fault.TOOL_STORED, "tool.put", {"tool": definition("search").model_dump(mode="json")}, STORED),
    Asked(Fault.TOOL_REMOVED, "tool.remove", {"tool_name": "search"}, {"error_code": "unknown_tool"}),
    Asked(Fault.AGENT_CHANGED, "agent.put", {**AGENT, "profile_name": "crew"}, DONE),
    Asked(Fault.AGENT_PUBLISHED, "agent.pause", AGENT, DONE),
    Asked(Fault.ENQUEUE_COMMITTED, "enqueue", {**AGENT, "instruction": "wait", "correlation_id": "k0"}, DONE),
    Asked(Fault.AGENT_CHANGED, "agent.resume", AGENT, DONE),
    Asked(Fault.AGENT_CHANGED, "agent.retire", AGENT, DONE),
    Asked(Fault.ENQUEUE_COMMITTED, "enqueue", TURN, DONE),
    Asked(Fault.ENQUEUE_PUBLISHED, "enqueue", {**TURN, "correlation_id": "k2", "instruction": "two"}, DONE),
    Asked(Fault.RERUN_COMMITTED, "rerun", {"correlation_id": "r1"}, DONE),
    Asked(Fault.RERUN_PUBLISHED, "rerun", {"correlation_id": "r2"}, DONE),
    Asked(Fault.BOX_MADE, "box_make", {"parts": [*PARTS], "correlation_id": "b1"}, {**DONE, "cards": 2}),
)


async def twice(tenant: Tenant, asked: Asked) -> JsonObject:
    """The answer to the repeat of a request that nothing happened to."""
    await tenant.client.request(asked.verb, asked.arguments, timeout=30)
    return await tenant.client.request(asked.verb, asked.arguments, timeout=30)


async def killed(tenant: Tenant, processes: Processes, asked: Asked, struck: Path) -> JsonObject:
    """The answer to the repeat of a request whose bridge was killed at the point."""
    bridge = processes.bridge
    await bridge.stop()
    bridge.env = {"TURNSTILE_FAULTS": f"{asked.point}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
    await bridge.start()
    first = asyncio.create_task(tenant.client.request(asked.verb, asked.arguments, timeout=30))
    assert await bridge.died() == -signal.SIGKILL, asked
    assert (struck / asked.point).exists()
    first.cancel()
    bridge.env = {}
    await bridge.start()
    return await tenant.client.request(asked.verb, asked.arguments, timeout=30)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param({Fault.TOOL_STORED, Fault.AGENT_PUBLISHED, Fault.RERUN_COMMITTED, Fault.BOX_MADE}, id="some"),
        pytest.param({each.point for each in ASKED}, id="every-point", marks=pytest.mark.long),
    ],
)
async def test_what_a_verb_did_is_done_once_wherever_its_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: set[Fault]
) -> None:
    """Where it is not killed, each request is made twice all the same."""
    [target] = apart.stack.settings.worker.worker_targets
    [put, *others] = ASKED
    answers: list[JsonObject] = []
    put = replace(put, arguments={"profile": {**PROFILE, "worker_target": target}})
    for number, asked in enumerate((put, *others)):
        struck = tmp_path / str(number)
        struck.mkdir()
        if asked.verb == "rerun":
            turn = AgentTurnId(next(str(each["agent_turn_id"]) for each in answers if each.get("conversation_id")))
            await apart.ended(turn, timeout=60)
            asked = replace(asked, arguments={**asked.arguments, "agent_turn_id": turn})  # noqa: PLW2901 -- known only now
        dies = asked.point in points
        answers.append(await (killed(apart, processes, asked, struck) if dies else twice(apart, asked)))
        assert {name: answers[-1][name] for name in asked.repeat} == asked.repeat, (asked, answers[-1])
    turns = [AgentTurnId(str(reply["agent_turn_id"])) for reply in answers if "agent_turn_id" in reply]
    said = [(await apart.ended(turn, timeout=60)).deliverable() for turn in turns]
    assert said == [
        *("You said: wait (before that: nothing)", "You said: hi (before that: nothing)"),
        "You said: two (before that: hi)",
        *["You said: hi (before that: nothing)"] * 2,
    ]
    assert await apart.count("state.conversations", "turn_count = 2") == 1
    assert await apart.count("resource.project_agents", "metadata ->> 'instance_of' = 'crew'") == 1
    edges = await apart.rows(
        "SELECT e.action, count(*) FROM state.identity_edges e WHERE e.project_id = $1 GROUP BY 1", apart.project
    )
    assert {row["action"]: row["count"] for row in edges} == dict.fromkeys(
        ("add", "pause", "resume", "retire", "ensure"), 1
    )
    made = await apart.rows("SELECT FROM boxes WHERE tenant_id = $1 AND request_digest IS NOT NULL", apart.project)
    assert len(made) == 1
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


def test_every_point_has_a_test_that_fails_there() -> None:
    """Killed, but for verbs of one statement and no message.

    `tests/e2e/turns/test_boxes.py` and `tests/ledger/budgets/test_grants.py` throw there.
    """
    killed = {each.point for each in ASKED} | set(test_faults.POINTS)
    killed |= {*test_steering_crashes.IN_WORKER, *test_steering_crashes.IN_BRIDGE}
    killed |= {*test_conversation_crashes.POINTS, *test_conversation_crashes.WAY_POINTS}
    killed |= {*test_tree_crashes.POINTS, *test_pump_crashes.POINTS, *test_decision_crashes.POINTS}
    killed |= {Fault.THREAD_SENT, test_agents_talk_crashes.POINT, *test_decision_crashes.CALL_POINTS}
    killed |= {*test_spending_crashes.POINTS, *test_era.POINTS}
    plays = ("tool_asks", "pushed", "deleted", "scheduled", "files")
    killed |= _POINTS_OF_PLAYS & {point for play in plays for point in PASSED[play]}
    thrown = {Fault.BOX_FORKED, Fault.BOX_REPLACED, Fault.CONVERSATION_PUT, Fault.BUDGET_RAISED, Fault.PROJECT_LIMITED}
    assert set(Fault) - killed == thrown
