"""Worker and bridge are killed (-9) around steers: each is new to one step of its turn, in the order of acceptance.

The model notes each request, so a step that is tried again is seen to ask with the same.
"""

import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.faults.points import GUESS, HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes
from tests.support.tenants import ALICE, Tenant, turn_of
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, uuid7

pytestmark = pytest.mark.stack(HASTY)

IN_WORKER = (Fault.STEP_BEGUN, Fault.MODEL_ANSWERED, Fault.STEP_COMMITTED, Fault.TURN_STEERED, Fault.STEP_PUBLISHED)
IN_BRIDGE = (Fault.STEER_COMMITTED, Fault.STEER_PUBLISHED)
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Steered:
    """A turn that is steered, and where its model notes what it is asked."""

    tenant: Tenant
    turn: AgentTurnId
    notes: Path

    async def say(self, text: str, **fields: Any) -> str:
        """Say it until a bridge accepts it; returns the steer's id."""
        asked: JsonObject = {"agent_turn_id": self.turn, "text": text, "correlation_id": uuid7(), **fields}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    reply = await self.tenant.client.request("steer", asked, timeout=1)
                except ServerUnavailable:
                    reply = JsonObject(status="error")
                if reply["status"] == "accepted":
                    return str(reply["steer_id"])
                assert reply["status"] == "error", reply
                await asyncio.sleep(0.1)

    async def asked(self, step: int) -> None:
        """Wait until the model was asked in this step."""

        async def noted() -> bool:
            return any(self.notes.glob(f"{step}-*"))

        await until(noted, PATIENCE_SECONDS, f"step {step} asks")

    def requests(self) -> dict[int, list[str]]:
        """What users say in the requests of each step; every attempt of a step has asked with the same."""
        found: dict[int, set[str]] = {}
        for note in self.notes.iterdir():
            messages = [text for role, text in json.loads(note.read_text()) if role == "user"]
            found.setdefault(int(note.name.partition("-")[0]), set()).add(json.dumps(messages))
        assert {step: len(each) for step, each in found.items()} == dict.fromkeys(found, 1)
        return {step: json.loads(each.pop()) for step, each in found.items()}

    async def heard(self, *texts: str) -> None:
        """The turn has ended well; each of these is new to one step, in this order, and stays."""
        ended = await self.tenant.ended(self.turn, PATIENCE_SECONDS)
        assert (ended.view.status, {steer.status.value for steer in ended.view.steers or ()}) == (
            "success",
            {"applied"},
        )
        told = [" ".join(said) for _, said in sorted(self.requests().items())]
        steps = zip(["", *told[:-1]], told, strict=True)
        new = [[text for text in texts if text in now and text not in before] for before, now in steps]
        assert [text for step in new for text in step] == list(texts), new
        assert all(text in told[-1] for text in texts)
        assert sum(card.type == "task.steer" for card in ended.cards) == len(texts)
        assert (await self.tenant.task_events())[self.turn] == 1


async def steered(tenant: Tenant, notes: Path, agent: AgentId = ALICE, guesses: int = 2) -> Steered:
    """A turn of some steps."""
    notes.mkdir()  # noqa: ASYNC240 -- one directory
    instruction = {"steps": [*[GUESS] * guesses, {"text": "so far"}, {"text": "so good"}], "notes": str(notes)}
    return Steered(tenant, turn_of(await tenant.enqueue(agent, json.dumps(instruction))), notes)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((Fault.TURN_STEERED,), id="steered"),
        pytest.param(IN_WORKER, id="every-point", marks=pytest.mark.long),
    ],
)
async def test_each_steer_is_asked_with_once_wherever_its_worker_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: Sequence[Fault]
) -> None:
    await apart.agent("noting")
    worker = processes.worker
    for point in points:
        await worker.stop()
        turn = await steered(apart, tmp_path / point.name, guesses=1)
        await turn.say("one steer")
        worker.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
        await worker.launch()
        if point is not Fault.STEP_BEGUN:
            await turn.asked(1)
        await turn.say("another steer")
        if point is Fault.TURN_STEERED:
            await turn.asked(2)
            await turn.say("a last steer", priority="when_idle")
        assert await worker.died() == -signal.SIGKILL, point
        assert (tmp_path / point).exists()
        if point is not Fault.TURN_STEERED:
            await turn.say("a last steer")
        worker.env = {}
        await worker.start()
        await turn.heard("one steer", "another steer", "a last steer")
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


async def test_a_steer_is_accepted_once_wherever_its_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path
) -> None:
    await apart.agent("noting")
    bridge, texts = processes.bridge, [f"steer at {point.name}" for point in IN_BRIDGE]
    await processes.worker.stop()
    turn = await steered(apart, tmp_path / "notes")
    for point, text in zip(IN_BRIDGE, texts, strict=True):
        await bridge.stop()
        bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
        await bridge.start()
        saying = asyncio.create_task(turn.say(text))
        assert await bridge.died() == -signal.SIGKILL, point
        bridge.env = {}
        await bridge.start()
        await saying
    await processes.worker.start()
    await turn.heard(*texts)
    assert await apart.count("state.steers") == len(texts)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
async def test_steers_outlive_their_processes(apart: Tenant, processes: Processes, tmp_path: Path, seed: int) -> None:
    """Ten turns, and eight steers of each; worker, bridge or both are killed at random moments."""
    random = Random(seed)  # noqa: S311 -- a seed is what is wanted
    agents = await apart.agents("noting", 10)
    turns = [await steered(apart, tmp_path / agent, agent, guesses=8) for agent in agents]
    texts = [f"steer {number} of many" for number in range(8)]

    async def talk(turn: Steered, pauses: list[float]) -> None:
        for text, pause in zip(texts, pauses, strict=True):
            await turn.say(text)
            await asyncio.sleep(pause)

    talking = [asyncio.create_task(talk(turn, [random.uniform(0, 0.4) for _ in texts])) for turn in turns]
    for _ in range(5):
        await asyncio.sleep(random.uniform(0.1, 1))
        for victim in random.choice([[processes.worker], [processes.bridge], [processes.worker, processes.bridge]]):
            await victim.kill()
            await victim.launch()
    await asyncio.gather(*talking)
    for turn in turns:
        await turn.heard(*texts)
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
