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
from tests.support.calls import TOOL, result_card, write_card, written_report
from tests.support.conditions import until
from tests.support.process import Processes, processes_of
from tests.support.stack import QUICK, Config, open_stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.converters import DATA_CONVERTER
from turnstile.embedded import EmbeddedServers
from turnstile.plugin import turnstile_plugin
from workflows.agent_turn import AgentTurn
from workflows.options import turn_workflow_id

DIRECTORY = Path(__file__).parent / "histories"
HASTY: Config = {**QUICK, "tools": {"suspend_timeout_seconds": 1.5}}
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


async def _tools(tenant: Tenant, _: Processes) -> AgentTurnId:
    """Three calls, answered one by one, so that parts of them are applied while the others wait."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search", "search"))
        for index, left in enumerate((2, 1, 0)):
            await hand.report(call_of(turn, index))
            if left:
                await hand.until_head(waiting_tool_count=left)
        assert (await hand.ended(turn)).view.status == "success"
    return turn


async def _tool_ends(tenant: Tenant, _: Processes) -> AgentTurnId:
    async with hand_of(tenant, definition("close", after_execution="terminate")) as hand:
        turn = await hand.suspended(calling("close"))
        await hand.report(call_of(turn), {"n": 1})
        assert (await hand.ended(turn)).deliverable() == {"n": 1}
    return turn


async def _timeout(tenant: Tenant, _: Processes) -> AgentTurnId:
    async with hand_of(tenant, definition("silent")) as hand:
        ended = await hand.ended(await hand.suspended(calling("silent", "silent")))
        assert [status for status, _, _ in ended.results()] == ["timeout"] * 2
    return ended.view.agent_turn_id


async def _late_card(tenant: Tenant, _: Processes) -> AgentTurnId:
    """All calls rang, and one of their cards appeared late."""
    async with hand_of(tenant, definition(TOOL, options={"suspend_timeout_seconds": 60})) as hand:
        turn = await hand.suspended(calling(TOOL))
        ref, call = await hand.ref(turn), call_of(turn)
        made = result_card(ref, call)
        await written_report(tenant.pool, ref, call, made.card_id)

        async def deferred() -> bool:
            [row] = await hand.inbox(call)
            return row["status"] == "deferred"

        await until(deferred, 10, "the report is deferred")
        await write_card(tenant.pool, made, tenant.project)
        assert (await hand.ended(turn)).view.status == "success"
    return turn


async def _stopped_asleep(tenant: Tenant, _: Processes) -> AgentTurnId:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        await tenant.client.request("stop", {"agent_turn_id": turn})
        assert (await hand.ended(turn)).view.error_code == "stopped"
    return turn


async def _stopped_in_mid_stream(tenant: Tenant, _: Processes) -> AgentTurnId:
    async with hand_of(tenant) as hand:
        turn = await hand.start({"text": "words " * 500, "chunks": 500, "delay_seconds": 0.02})
        await hand.until_head(status="running")
        await tenant.client.request("stop", {"agent_turn_id": turn})
        assert (await hand.ended(turn)).view.error_code == "stopped"
    return turn


async def _canceled_by_hand(tenant: Tenant, _: Processes) -> AgentTurnId:
    """What the Web UI's "Request Cancellation" makes of a sleeping turn."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        await tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn)).cancel()
        assert (await hand.ended(turn)).view.error_code == "stopped"
    return turn


async def _stopped_while_its_worker_died(tenant: Tenant, processes: Processes) -> AgentTurnId:
    async with hand_of(tenant) as hand:
        turn = await hand.start({"text": "words " * 5000, "chunks": 5000, "delay_seconds": 0.02})
        await hand.until_head(status="running")
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await processes.worker.kill()
        await processes.worker.start()
        assert (await hand.ended(turn)).view.error_code == "stopped"
    return turn


SHAPES: dict[str, Shape] = {
    "plain": _plain,
    "three-steps": _three_steps,
    "failed": _failed,
    "worker-restarted": restart_worker_in_second_step,
    "tools": _tools,
    "tool-ends": _tool_ends,
    "timeout": _timeout,
    "late-card": _late_card,
    "stopped-asleep": _stopped_asleep,
    "stopped-in-mid-stream": _stopped_in_mid_stream,
    "canceled-by-hand": _canceled_by_hand,
    "stopped-while-its-worker-died": _stopped_while_its_worker_died,
}


@asynccontextmanager
async def _running() -> AsyncGenerator[tuple[Tenant, Processes]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory, HASTY) as stack,
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
