"""What *Agent worker* says of a process: it listens for its doorbells, believes the row and not the bell, and runs many
turns at once.
"""

import json
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from tests.e2e.conformance.observer import Observer, observing
from tests.support.processes.stack import QUICK, Config, Stack

DEAF: Config = {
    **QUICK,
    "bridge": {
        **QUICK["bridge"],
        "poll_interval_seconds": 60.0,
        "pending_wakeup_seconds": 60.0,
        "dispatched_retry_seconds": 60.0,
    },
}
"""The safety net looks once, as it starts, and not again before a test ends: only a doorbell brings a row."""
# A stack whose safety net does not help.
pytestmark = pytest.mark.stack(DEAF)
UNENDING = {"text": "It began thus, and", "chunks": 2, "delay_seconds": 3600}


@pytest.fixture
async def observer(here: Stack) -> AsyncIterator[Observer]:
    """An observer of a new project of the running system."""
    [target] = here.settings.worker.worker_targets
    async with observing(here.endpoints.nats_url, here.endpoints.database_url, target) as found:
        yield found


async def test_a_doorbell_brings_the_row_and_says_nothing_of_it(observer: Observer) -> None:
    """The row of a turn that no bridge was told of; then a doorbell whose words are all wrong but for the agent."""
    served, observer.target = observer.target, f"w-{uuid4()}"
    await observer.hire("ann")
    turn = await observer.enqueue("ann", {"text": "as the row says"})
    await observer.rows(
        "UPDATE resource.project_agents SET worker_target = $1 WHERE project_id = $2", served, observer.project
    )
    lies = {
        "CG-Agent-Id": "ann",
        "CG-Project-Id": "another",
        "CG-Channel-Id": "u_mallory",
        "CG-Turn-Id": "another-turn",
        "CG-Turn-Epoch": "7",
        "CG-Recursion-Depth": "19",
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
    }
    payload = {"agent_id": "ann", "inbox_id": "another-row", "reason": "stop", "metadata": {"message_type": "stop"}}
    subject = f"cg.v1r4.{observer.project}.public.cmd.agent.{served}.wakeup"
    await observer.nc.publish(subject, json.dumps(payload).encode(), headers=lies)
    event = await observer.task("ann", turn["agent_turn_id"])
    assert event["status"] == "success"
    head = await observer.head("ann")
    assert (head["status"], head["turn_epoch"]) == ("idle", 1)
    [task] = [each for each in observer.heard if each.subject == "evt.agent.ann.task"]
    assert (task.headers["CG-Turn-Epoch"], task.headers["CG-Recursion-Depth"]) == ("1", "0")
    assert turn["trace_id"] in task.headers["traceparent"]


async def test_one_process_runs_many_turns_at_once(observer: Observer) -> None:
    agents = [f"agent-{number}" for number in range(8)]
    for agent in agents:
        await observer.hire(agent, profile="slow")
    turns = {agent: await observer.enqueue(agent, UNENDING) for agent in agents}

    async def all_run() -> bool:
        [found] = await observer.rows(
            "SELECT count(*) AS n FROM state.agent_state_head WHERE project_id = $1 AND status = 'running'",
            observer.project,
        )
        return found["n"] == len(agents)

    await observer.until(all_run, 30)
    for agent, turn in turns.items():
        await observer.must("stop", {"agent_turn_id": turn["agent_turn_id"]})
        assert (await observer.task(agent, turn["agent_turn_id"]))["status"] == "canceled"
