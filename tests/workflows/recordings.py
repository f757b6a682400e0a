"""Histories of the turn's shapes, recorded as JSON, and what replays them.

`python -m tests.workflows.recordings` records them anew on real servers; do that when a shape changes on purpose.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Interceptor, Replayer, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from schema.ids import AgentTurnId
from tests.support.conditions import until
from tests.support.process import Processes, processes_of
from tests.support.stack import open_stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.converters import DATA_CONVERTER
from turnstile.embedded import EmbeddedServers
from turnstile.plugin import turnstile_plugin
from workflows.agent_turn import AgentTurn

DIRECTORY = Path(__file__).parent / "histories"
_IDENTITY = re.compile(r"\bturnstile(-\w+)?@[\w.-]+?-[0-9a-f]{8}\b")
Shape = Callable[[Tenant, Processes], Awaitable[AgentTurnId]]


def recorded() -> list[WorkflowHistory]:
    """The recorded histories, by name."""
    return [WorkflowHistory.from_json(file.stem, file.read_text()) for file in sorted(DIRECTORY.glob("*.json"))]


async def replay(histories: Iterable[WorkflowHistory], *interceptors: Interceptor) -> dict[str, str]:
    """What went wrong in each that could not be replayed as it was; empty if all is well."""
    return await _failures(
        Replayer(workflows=[], plugins=[turnstile_plugin()], interceptors=list(interceptors)), histories
    )


async def replay_sandboxed(histories: Iterable[WorkflowHistory]) -> dict[str, str]:
    """The same inside the SDK's sandbox, where what is not deterministic fails."""
    runner: WorkflowRunner = SandboxedWorkflowRunner()
    replayer = Replayer(workflows=[AgentTurn], data_converter=DATA_CONVERTER, workflow_runner=runner)
    return await _failures(replayer, histories)


async def _failures(replayer: Replayer, histories: Iterable[WorkflowHistory]) -> dict[str, str]:
    async def each() -> AsyncGenerator[WorkflowHistory]:
        for history in histories:
            yield history

    results = await replayer.replay_workflows(each(), raise_on_replay_failure=False)
    return {run: repr(failure) for run, failure in results.replay_failures.items()}


def scrubbed(history: WorkflowHistory) -> str:
    """JSON without the names of the machine and the processes that made it."""
    text = json.dumps(history.to_json_dict(), indent=1, sort_keys=True)
    return _IDENTITY.sub("turnstile@recorder", text) + "\n"


async def _plain(tenant: Tenant, _: Processes) -> AgentTurnId:
    return (await tenant.run("plain")).view.agent_turn_id


async def _three_steps(tenant: Tenant, _: Processes) -> AgentTurnId:
    return (await tenant.run("three_steps")).view.agent_turn_id


async def _failed(tenant: Tenant, _: Processes) -> AgentTurnId:
    return (await tenant.run("breaks_late")).view.agent_turn_id


async def restart_worker_in_second_step(tenant: Tenant, processes: Processes) -> AgentTurnId:
    """A turn whose worker is killed while its model is asked for the second step."""
    directory = tenant.stack.directory / tenant.project
    directory.mkdir()
    agent = await tenant.agent("gated")
    turn = turn_of(await tenant.enqueue(agent, str(directory)))
    directory.joinpath("1").touch()

    async def asked() -> bool:
        return directory.joinpath("asked-2-1").exists()

    await until(asked, 20, "the second step asks")
    await processes.worker.kill()
    directory.joinpath("2").touch()
    await processes.worker.start()
    assert (await tenant.ended(turn)).view.status == "success"
    return turn


SHAPES: dict[str, Shape] = {
    "plain": _plain,
    "three-steps": _three_steps,
    "failed": _failed,
    "worker-restarted": restart_worker_in_second_step,
}


@asynccontextmanager
async def _running() -> AsyncGenerator[tuple[Tenant, Processes]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory) as stack,
            processes_of(stack.config) as processes,
        ):
            await processes.ensure()
            yield new_tenant(stack), processes


async def record() -> None:
    """Record every shape into `DIRECTORY`."""
    async with _running() as (tenant, processes):
        for name, shape in SHAPES.items():
            own = new_tenant(tenant.stack)
            history = await tenant.stack.history(await shape(own, processes))
            (DIRECTORY / f"{name}.json").write_text(scrubbed(history))


if __name__ == "__main__":
    asyncio.run(record())
