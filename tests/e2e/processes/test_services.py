"""A service of its own (protocol §6, last): it consumes its inbox without workflows, and every turn ends once."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from temporalio.service import RPCError, RPCStatusCode

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.paths import ROOT
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.processes import exclusive_targets
from turnstile.processes.run import run_bridge
from turnstile.processes.services import Handler, Refused, ServiceTurn, serve_inbox
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ConfigError
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import Profile
from turnstile.workflows.options import turn_workflow_id

TALLY = ROOT / "examples" / "service" / "tally.py"
TARGET = "svc1_tally_main"
SUM = AgentId("sum")


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One whose bridge is in this process, and does not serve the service's target."""
    async with stacks.open(HASTY) as opened, running_here(opened, run_bridge):
        yield opened


@pytest.fixture
async def tenant(stack: Stack) -> AsyncIterator[Tenant]:
    """A project with agents of the service; what protocol §2 says holds when the test ends."""
    made = new_tenant(stack)
    profile = Profile.model_validate(yaml.safe_load(TALLY.with_suffix(".yaml").read_text()))
    await put_profile(made.pool, made.project, profile)
    for agent in (SUM, AgentId("other")):
        await add_agent(made.pool, made.project, agent, "tally")
    yield made
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


class Counting:
    """The example as a process."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.log = directory / "tally.log"
        self._command = [sys.executable, TALLY, "--config", stack.config]
        self._env = {**os.environ, "TALLY_FILE": str(directory / "tally.json")}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        """Another life."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env={**self._env, **environment}, stdout=log, stderr=log)

    async def died(self) -> int:
        """Its exit code, once it has one."""
        process = self._process
        assert process is not None

        async def over() -> bool:
            return process.poll() is not None

        await until(over, 30, f"the service ends: {self.log.read_text()[-2000:]}")
        return process.returncode

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self.died()

    def remove(self) -> None:
        """Gone."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def counting(stack: Stack, tmp_path: Path) -> Iterator[Counting]:
    """The example; not started yet."""
    made = Counting(stack, tmp_path)
    yield made
    made.remove()


@pytest.mark.long
async def test_the_example_counts_each_turn_once_though_it_is_killed(
    tenant: Tenant, counting: Counting, tmp_path: Path
) -> None:
    struck = tmp_path / "faults"
    struck.mkdir()
    counting.start(TURNSTILE_FAULTS="turn.finished=kill", TURNSTILE_FAULTS_DIR=str(struck))
    turns = [turn_of(await tenant.enqueue(SUM, text)) for text in ("3", "4", "many", "5")]
    assert await counting.died() == -signal.SIGKILL  # between the commit of the first end and its event
    assert await tenant.task_events() == {}
    counting.start()
    ended = [await tenant.ended(turn) for turn in turns]
    assert [each.view.status for each in ended] == ["success", "success", "failed", "success"]
    assert [ended[number].deliverable() for number in (0, 1, 3)] == [{"sum": 3}, {"sum": 7}, {"sum": 12}]
    assert ended[2].view.error_code == "not_a_number"
    assert await tenant.task_events() == dict.fromkeys(turns, 1)
    for turn in turns:
        with pytest.raises(RPCError) as unknown:
            await tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn)).describe()
        assert unknown.value.status is RPCStatusCode.NOT_FOUND
    assert await counting.stop() == 0


@asynccontextmanager
async def serving(stack: Stack, handler: Handler, *, crashes: bool = False) -> AsyncGenerator[None]:
    """A service in this process, that ends as it should, or in the middle of whatever it does."""
    stop = asyncio.Event()
    running = asyncio.create_task(
        serve_inbox(TARGET, handler, stop, settings=stack.settings, concurrency=2, deadline_seconds=1.5)
    )
    try:
        yield
    finally:
        if crashes:
            running.cancel()
            await asyncio.wait([running])
        else:
            stop.set()
            await running


async def test_a_turn_in_the_middle_is_done_again_and_stops_are_obeyed(
    tenant: Tenant, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive_targets, "LOCK_TIMES", replace(exclusive_targets.LOCK_TIMES, settle=0.1))
    heard: list[ServiceTurn] = []

    async def handle(turn: ServiceTurn) -> str:
        heard.append(turn)
        match turn.instruction:
            case "late":
                await asyncio.sleep(60)
            case "bug":
                raise RuntimeError("the words of an exception")
            case "wait" if turn.attempt == 1:
                await asyncio.Event().wait()
            case _:
                pass
        return f"{turn.instruction}\x00 at {turn.attempt}"

    async def has_begun(instruction: str) -> bool:
        return instruction in [each.instruction for each in heard]

    first = turn_of(await tenant.enqueue(SUM, "wait"))
    queued = turn_of(await tenant.enqueue(SUM, "next"))
    async with serving(stack, handle, crashes=True):
        await until(lambda: has_begun("wait"), 25, "the handler has the turn")
    assert await tenant.count("state.agent_state_head", "status = 'running'") == 1
    async with serving(stack, handle):
        assert (await tenant.ended(first)).deliverable() == "wait at 2"
        assert (await tenant.ended(queued)).deliverable() == "next at 1"
        stopped = turn_of(await tenant.enqueue(SUM, "wait"))
        bug, late = [turn_of(await tenant.enqueue(AgentId("other"), text)) for text in ("bug", "late")]
        await until(lambda: has_begun("late"), 25, "the late one has begun")
        assert await tenant.count("state.agent_state_head", "status = 'running'") == 2
        await tenant.client.request("stop", {"agent_turn_id": stopped})
        codes = [(await tenant.ended(turn)).view.error_code for turn in (stopped, bug, late)]
    assert codes == ["stopped", "service_error", "service_timeout"]
    assert await tenant.task_events() == dict.fromkeys([first, queued, stopped, bug, late], 1)
    assert await tenant.rows("SELECT error FROM state.turn_outcomes WHERE agent_turn_id = $1", bug) == [
        {"error": "RuntimeError"}
    ]


async def test_a_handler_that_leaves_wanted_fields_out_delivers_in_part(
    tenant: Tenant, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exclusive_targets, "LOCK_TIMES", replace(exclusive_targets.LOCK_TIMES, settle=0.1))
    whole: JsonObject = {"fields": [{"name": "sum", "value": 12}]}

    async def handle(turn: ServiceTurn) -> str | JsonObject:
        return whole if turn.instruction == "whole" else "12"

    async with serving(stack, handle):
        wanted = [{"name": "sum"}]
        part, full = [await tenant.turn(SUM, text, result_fields=wanted) for text in ("part", "whole")]
    assert (part.view.status, part.view.error_code, part.deliverable()) == ("partial", "result_fields_missing", "12")
    assert part.cards[-1].metadata.partial
    assert (full.view.status, full.view.error_code, full.deliverable()) == ("success", None, whole)
    assert full.cards[-1].metadata.partial is None


async def test_a_service_has_a_target_of_one_process(stack: Stack) -> None:
    async def refuse(_: ServiceTurn) -> str:
        raise Refused("never", "nobody asks")

    with pytest.raises(ConfigError, match="svc1_"):
        await serve_inbox("tally", refuse, asyncio.Event(), settings=stack.settings)
