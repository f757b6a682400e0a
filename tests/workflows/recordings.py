"""Histories of the shapes of turns and conversations, recorded as JSON, and what replays them.

`python -m tests.workflows.recordings [NAME ...]` records them anew on real servers, all or those that are named; do
that when a shape changes on purpose.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Interceptor, Replayer, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from tests.support.conditions import until
from tests.support.ledger.calls import TOOL, result_card, write_card, written_report
from tests.support.processes.clocks import of_postgres, right_clock
from tests.support.processes.process import Processes, processes_of
from tests.support.processes.stack import QUICK, Config, open_stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import call_of, calling, definition, hand_of
from tests.workflows.cast import Count, Hold, Question
from turnstile.embedded import EmbeddedServers, temporal_server
from turnstile.ledger.pump.thread_views import find_thread, list_thread_replies
from turnstile.ledger.roster import add_agent
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, uuid7
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.threads import ThreadId, thread_workflow_id
from turnstile.schema.wire.inbox import SendReply
from turnstile.temporal.converters import DATA_CONVERTER
from turnstile.temporal.plugin import turnstile_plugin
from turnstile.workflows.agent_turn import AgentTurn
from turnstile.workflows.message_thread import MessageThread
from turnstile.workflows.options import turn_workflow_id

DIRECTORY = Path(__file__).parent / "histories"
HASTY: Config = {
    **QUICK,
    "tools": {"suspend_timeout_seconds": 1.5},
    "pump": {"listeners": ["tests.workflows.cast"], "worker_target": "cast"},
}
EARLY_SHAPE = "looked-early"
BEHIND = timedelta(seconds=3)
_IDENTITY = re.compile(r"\bturnstile(-\w+)?@[\w.-]+?-[0-9a-f]{8}\b")
Shape = Callable[[Tenant, Processes], Awaitable[AgentTurnId]]
ThreadShape = Callable[[Tenant, Processes], Awaitable[ThreadId]]


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
    workflows: list[type] = [AgentTurn, MessageThread]
    replayer = Replayer(workflows=workflows, data_converter=DATA_CONVERTER, workflow_runner=runner)
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

    await until(asked, 25, "the second step asks")
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

        await until(deferred, 25, "the report is deferred")
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


async def _send(tenant: Tenant, to: str, payload: Payload, thread: ThreadId | None = None) -> ThreadId:
    asked: JsonObject = {"to": to, "payload": payload.to_xml().decode(), "thread_id": thread}
    reply = SendReply.model_validate(await tenant.client.request("send", asked))
    assert reply.thread_id is not None, reply
    return reply.thread_id


async def _over(tenant: Tenant, thread: ThreadId, *answers: str) -> ThreadId:
    """The thread, once it has ended with these answers."""

    async def ended() -> bool:
        found = await tenant.pool.run(lambda conn: find_thread(conn, tenant.project, thread))
        return found is not None and found.status == "ended"

    await until(ended, 25, "the thread is over")
    replies = await tenant.pool.run(lambda conn: list_thread_replies(conn, thread, row_limit=9))
    assert [reply.payload and reply.payload.removeprefix("<done><text>").split("<")[0] for reply in replies] == [
        answer or None for answer in answers
    ]
    return thread


async def _held(tenant: Tenant, thread: ThreadId | None = None) -> tuple[ThreadId, Path]:
    """A message whose handler waits for the file."""
    file = tenant.stack.directory / f"{tenant.project}-{uuid7()}"
    thread = await _send(tenant, "holder", Hold(file=str(file)), thread)

    async def held() -> bool:
        return file.with_suffix(".held").exists()

    await until(held, 25, "the handler waits")
    return thread, file


async def _counted(tenant: Tenant, _: Processes) -> ThreadId:
    return await _over(tenant, await _send(tenant, "counter", Count(left=2)), "counted")


async def _agent_asked(tenant: Tenant, _: Processes) -> ThreadId:
    await tenant.agent("plain", AgentId("sage"))
    return await _over(tenant, await _send(tenant, "asker", Question(text="why?")), "answered")


async def _agent_late(tenant: Tenant, _: Processes) -> ThreadId:
    """No worker serves the agent: its deadline passes."""
    await tenant.profile("idle", "plain")
    await add_agent(tenant.pool, tenant.project, AgentId("mute"), "idle", worker_target="nobody")
    return await _over(tenant, await _send(tenant, "asker", Question(text="riddle")), "timeout")


async def _handler_let_go(tenant: Tenant, _: Processes) -> ThreadId:
    """Two requests in one segment: the answer to one ends the other, whose handler is canceled."""
    thread, _never = await _held(tenant)
    thread, file = await _held(tenant, thread)
    file.touch()
    return await _over(tenant, thread, "let go", "")


async def _woken_while_it_runs(tenant: Tenant, _: Processes) -> ThreadId:
    """Messages to other listeners while a handler waits; the wake of the safety net among them."""
    thread, file = await _held(tenant)
    for left in (0, 1):
        await _send(tenant, "counter", Count(left=left), thread)
    await tenant.stack.temporal.get_workflow_handle(thread_workflow_id(thread)).signal("wake", [])

    async def counted() -> bool:
        replies = await tenant.pool.run(lambda conn: list_thread_replies(conn, thread, row_limit=9))
        return len(replies) == 2

    await until(counted, 25, "the others are answered")
    file.touch()
    return await _over(tenant, thread, "counted", "counted", "let go")


async def _handler_restarted(tenant: Tenant, processes: Processes) -> ThreadId:
    thread, file = await _held(tenant)
    await processes.worker.kill()
    file.touch()
    await processes.worker.start()
    return await _over(tenant, thread, "let go")


async def _long(tenant: Tenant, _: Processes) -> ThreadId:
    """Goes on in a new history while one message waits for its agent."""
    await tenant.profile("idle", "plain")
    await add_agent(tenant.pool, tenant.project, AgentId("mute"), "idle", worker_target="nobody")
    thread = await _send(tenant, "asker", Question(text="riddle"))
    await _send(tenant, "counter", Count(left=3), thread)
    return await _over(tenant, thread, "counted", "timeout")


THREAD_SHAPES: dict[str, ThreadShape] = {
    "thread-counted": _counted,
    "thread-agent-asked": _agent_asked,
    "thread-agent-late": _agent_late,
    "thread-handler-let-go": _handler_let_go,
    "thread-woken-while-it-runs": _woken_while_it_runs,
    "thread-handler-restarted": _handler_restarted,
}
LONG_SHAPES: dict[str, ThreadShape] = {"thread-long": _long}
"""On an engine that finds a history of `LONG` events long; each of its runs is recorded."""
LONG = 40


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


async def _runs(tenant: Tenant, thread: ThreadId) -> list[WorkflowHistory]:
    """The histories of a thread's workflow, the first run's first."""
    name, client = thread_workflow_id(thread), tenant.stack.temporal
    last = client.get_workflow_handle(name)
    await last.result()
    found: list[WorkflowHistory] = []
    run = (await last.fetch_history()).events[0].workflow_execution_started_event_attributes.first_execution_run_id
    while run:
        history = await client.get_workflow_handle(name, run_id=run).fetch_history()
        found.append(history)
        run = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


def _keep(name: str, history: WorkflowHistory) -> None:
    (DIRECTORY / f"{name}.json").write_text(scrubbed(history))


async def record(*names: str) -> None:
    """Record shapes into `DIRECTORY`: these, or all."""
    async with _running() as (tenant, processes):
        for name, shape_of in SHAPES.items():
            if not names or name in names:
                _keep(name, await tenant.stack.history(await shape_of(new_tenant(tenant.stack), processes)))
        for name, talk in THREAD_SHAPES.items():
            if not names or name in names:
                own = new_tenant(tenant.stack)
                [history] = await _runs(own, await talk(own, processes))
                _keep(name, history)


async def record_early() -> None:
    """Record a turn whose ledger's clock is behind Temporal's: its timer fires, and its deadline is not reached."""
    with tempfile.TemporaryDirectory() as name:
        clock = right_clock(Path(name) / "postgres.clock")
        with of_postgres(clock):
            async with _running() as (tenant, _), hand_of(tenant) as hand:
                turn = await hand.suspended(calling("search"))
                clock.shift(-BEHIND)
                await hand.ended(turn)
                _keep(EARLY_SHAPE, await tenant.stack.history(turn))


async def record_long() -> None:
    """Record the shapes of threads that go on in new histories, by the number of the run."""
    for name, talk in LONG_SHAPES.items():
        async with _running() as (tenant, processes):
            for number, history in enumerate(await _runs(tenant, await talk(tenant, processes)), 1):
                _keep(f"{name}-{number}", history)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    if not wanted or set(wanted) - {*LONG_SHAPES, EARLY_SHAPE}:
        asyncio.run(record(*wanted))
    if not wanted or EARLY_SHAPE in wanted:
        asyncio.run(record_early())
    if not wanted or set(wanted) & set(LONG_SHAPES):
        temporal_server.DYNAMIC_CONFIG += (f"limit.historyCount.suggestContinueAsNew={LONG}",)
        asyncio.run(record_long())
