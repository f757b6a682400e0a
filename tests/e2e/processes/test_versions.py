"""A rolling upgrade under load: from workers without versions to a build and to the next; sleeping turns move along."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import TurnstileProcess
from tests.support.processes.stack import Config, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.doctor.examine import examine
from turnstile.processes.run import run_bridge
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, uuid7
from turnstile.temporal.versions import list_builds, set_current
from turnstile.workflows.options import turn_workflow_id

log = logging.getLogger(__name__)
CONFIG: Config = {**HASTY, "tools": {"suspend_timeout_seconds": 600.0}}
SLEEPERS, BUSY = 5, 6
BUILDS = ("", "one", "two")
"""The first workers have no version."""


@pytest.fixture
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One whose turns sleep long; its bridge is in this process."""
    async with stacks.open(CONFIG) as opened, running_here(opened, run_bridge):
        yield opened


@pytest.fixture
async def workers(stack: Stack, hatching: Hatchery, tmp_path: Path) -> AsyncIterator[list[TurnstileProcess]]:
    """One of each build; none runs yet."""
    deployment, made = f"d-{uuid7()}", list[TurnstileProcess]()
    for build in BUILDS:
        directory = tmp_path / f"build-{build}"
        directory.mkdir()
        config = directory / "config.toml"
        config.write_text(stack.config.read_text())
        made.append(TurnstileProcess("worker", config, hatching))
        if build:
            said = {"TURNSTILE__WORKER__DEPLOYMENT_NAME": deployment, "TURNSTILE__WORKER__BUILD_ID": build}
            made[-1].env = said
    yield made
    for each in made:
        await each.remove()


@asynccontextmanager
async def load(tenant: Tenant) -> AsyncGenerator[list[AgentTurnId]]:
    """Turns of some agents, one after the other of each, for as long as the block lasts; then all of them ended."""
    turns: list[AgentTurnId] = []
    over = asyncio.Event()

    async def work(number: int) -> None:
        agent = await tenant.agent("slow", AgentId(f"busy-{number}"))
        while not over.is_set():
            turns.append(turn_of(await tenant.enqueue(agent)))
            await tenant.ended(turns[-1], timeout=60)

    async with asyncio.TaskGroup() as group:
        for number in range(BUSY):
            group.create_task(work(number))
        yield turns
        over.set()


async def build_of(stack: Stack, turn: AgentTurnId) -> str:
    """Which build ran the turn's last workflow task."""
    found = await stack.temporal.get_workflow_handle(turn_workflow_id(turn)).describe()
    info = found.raw_description.workflow_execution_info.versioning_info
    return info.deployment_version.build_id


async def doctors_word(stack: Stack, deployment: str, build: str) -> tuple[str, str]:
    """What `turnstile doctor` says of the workers' version, asked with the settings of this build."""
    worker = stack.settings.worker.model_copy(update={"deployment_name": deployment, "build_id": build})
    checks = await examine(stack.settings.model_copy(update={"worker": worker}), None, ())
    [check] = [c for c in checks if c.name == "worker version"]
    return check.status, check.says


@pytest.mark.long
async def test_turns_move_on_to_the_next_build(stack: Stack, workers: list[TurnstileProcess]) -> None:
    tenant = new_tenant(stack)
    deployment = workers[1].env["TURNSTILE__WORKER__DEPLOYMENT_NAME"]
    asleep: list[AgentTurnId] = []
    assert await doctors_word(stack, deployment, "one") == ("warn", "no build is current")
    with pytest.raises(Refused) as refused:
        await set_current(stack.temporal, deployment, "one")
    assert refused.value.code == "unknown_build"
    assert await list_builds(stack.temporal, deployment) == []

    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", SLEEPERS * len(BUILDS), allowed_tools=["search"])
        await workers[0].start()
        async with load(tenant) as busy:
            for number, build in enumerate(BUILDS):
                if number:
                    await workers[number].start()
                    await set_current(stack.temporal, deployment, build, patience_seconds=20)
                    assert await workers[number - 1].stop() == 0
                    assert await doctors_word(stack, deployment, build) == ("ok", f"{deployment}.{build} runs turns")
                own = agents[number * SLEEPERS : (number + 1) * SLEEPERS]
                asleep += [await Hand(tenant, agent, hand.commands).start(calling("search")) for agent in own]
                for turn in asleep[-SLEEPERS:]:
                    await hand.called(call_of(turn))
            assert await tenant.count("state.agent_state_head", "status = 'suspended'") == len(asleep)
            assert [await build_of(stack, turn) for turn in asleep[::SLEEPERS]] == list(BUILDS)
            for turn in asleep:
                await hand.report(call_of(turn))
            ended = [await tenant.ended(turn, timeout=60) for turn in asleep]
    assert {each.view.status for each in ended} == {"success"}
    assert {await build_of(stack, turn) for turn in asleep} == {"two"}
    log.info("%d turns while the workers were changed twice, and %d that slept", len(busy), len(asleep))
    outcomes = await tenant.rows("SELECT status FROM state.turn_outcomes")
    assert Counter(outcome["status"] for outcome in outcomes) == {"success": len(busy) + len(asleep)}
    assert await tenant.task_events() == dict.fromkeys([*busy, *asleep], 1)
    restarted = await tenant.rows("SELECT count(*) AS n FROM state.repairs WHERE rule IN ('engine', 'running_reap')")
    assert restarted == [{"n": 0}]
    builds = {b.build_id: b.current for b in await list_builds(stack.temporal, deployment)}
    assert builds == {"one": False, "two": True}
    await set_current(stack.temporal, deployment, "", ignore_missing=True)
    await workers[0].start()
    assert await workers[2].stop() == 0
    assert (await tenant.turn(await tenant.agent("plain", AgentId("last")))).view.status == "success"
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)
