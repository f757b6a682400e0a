"""Each call once: commands that come again, replicas that die, a bridge that is away, a service that is told to end."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.sdk.tools.stack import Call, Played, Stack, eventually
from turnstile.schema.wire.subjects import CMD_STREAM, EVT_STREAM
from turnstile.sdk.tools.service import ToolService

REPLICA = Path(__file__).with_name("replica.py")


class Gated:
    """A tool whose calls wait at a gate, with as many replicas as a test wants."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.runs: list[str] = []
        self.gate = asyncio.Event()

    @property
    def call(self) -> Call:
        return Call(f"gated_{self.target}")

    def replica(self, name: str = "only", *, drain_seconds: float = 10) -> ToolService:
        service = ToolService(ack_wait_seconds=2, drain_seconds=drain_seconds)

        @service.tool(target=self.target, suffix="gated", name=f"gated_{self.target}", timeout_seconds=20)
        async def gated() -> str:
            """Wait at the gate."""
            self.runs.append(name)
            await self.gate.wait()
            return name

        return service


@asynccontextmanager
async def playing(stack: Stack, tool: Gated) -> AsyncGenerator[asyncio.Task[Played]]:
    """A turn whose call has started to run."""
    agent = await stack.register(*tool.replica().definitions())
    before = len(tool.runs)
    turn = asyncio.create_task(stack.play(agent, tool.call))
    await eventually(lambda: len(tool.runs) > before)
    yield turn


async def until_settled(stack: Stack, tool: Gated) -> None:
    async with asyncio.timeout(25):
        while await stack.unsettled(tool.target, "gated"):  # noqa: ASYNC110 -- the server sets no event
            await asyncio.sleep(0.05)


async def test_a_command_repeated_while_its_call_runs_or_afterwards_runs_nothing(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.overheard() as heard, stack.serving(tool.replica()) as [running]:
        async with playing(stack, tool) as turn:
            [command] = heard
            await stack.repeat(command, 1)
            await eventually(lambda: running.counts.duplicates == 1)
            tool.gate.set()
            assert (await turn).result["result"] == "only"
        await stack.repeat(command, 2)
        await eventually(lambda: running.counts.duplicates == 2)
        await until_settled(stack, tool)
    async with stack.serving(tool.replica("another")) as [running]:  # it knows nothing of the call, the ledger does
        await stack.repeat(command, 3)
        await eventually(lambda: running.counts.duplicates == 1)
    assert tool.runs == ["only"]


async def test_a_long_call_is_kept_from_the_other_replicas(stack: Stack, target: str) -> None:
    """Longer than the consumer's ack_wait (2 s), and than the safety net waits before it repeats (3 s)."""
    tool = Gated(target)
    async with stack.overheard() as heard, stack.serving(tool.replica("a"), tool.replica("b")) as [a, b]:
        async with playing(stack, tool) as turn:
            other = b if tool.runs == ["a"] else a
            for number in range(100, 104):  # some of them reach the replica that does not run it
                await stack.repeat(heard[0], number)
            await eventually(lambda: a.counts.duplicates + b.counts.duplicates == 4)
            await eventually(lambda: len(heard) > 5, timeout=25)  # the net's own
            info = await stack.conn.js.consumer_info("cg_cmd_v1r4", f"turnstile_tool_{target}_gated")
            assert info.num_redelivered == 0, "it was kept from redelivery"
            tool.gate.set()
            await turn
        await until_settled(stack, tool)
        assert other.counts.succeeded == 0
    assert len(tool.runs) == 1


async def test_a_replica_killed_in_mid_call_leaves_it_to_another(stack: Stack, target: str, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    arguments = (stack.endpoints.nats_url, target, str(file))
    definition = ToolService()
    definition.tool(target=target, suffix="work", name=f"work_{target}")(_documented)
    agent = await stack.register(*definition.definitions())
    first = start(*arguments, "hang")
    turn = asyncio.create_task(stack.play(agent, Call(f"work_{target}")))
    await eventually(lambda: file.exists() and file.read_text().endswith("\n"))
    second = start(*arguments)
    first.kill()
    first.wait()
    played = await turn
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=25) == 0
    assert played.result["result"] == second.pid
    lines = [line.split() for line in file.read_text().splitlines()]
    assert [int(pid) for pid, _ in lines] == [first.pid, second.pid]


def start(*arguments: str) -> "subprocess.Popen[bytes]":
    """A replica as a process."""
    return subprocess.Popen([sys.executable, REPLICA, *arguments])


async def _documented() -> None:
    """Work."""


async def test_a_service_that_is_told_to_end_ends_its_calls_and_takes_no_more(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.serving(tool.replica("a")) as [a], playing(stack, tool) as turn:
        a.stop.set()
        await asyncio.sleep(0.2)
        late_agent = await stack.register(*tool.replica().definitions())
        late = asyncio.create_task(stack.play(late_agent, tool.call))
        await asyncio.sleep(0.3)
        assert tool.runs == ["a"]
        tool.gate.set()
        await a.task
        assert (await turn).result["result"] == "a"
        async with stack.serving(tool.replica("b")):
            assert (await late).result["result"] == "b"


async def test_calls_that_outlast_the_drain_are_given_back(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.serving(tool.replica("a", drain_seconds=0.1)) as [a], playing(stack, tool) as turn:
        await a.end()
        assert not turn.done()
        tool.gate.set()
        async with stack.serving(tool.replica("b")):
            assert (await turn).result["result"] == "b"
    assert tool.runs == ["a", "b"]


async def test_without_a_bridge_calls_are_put_off_and_reports_kept_in_the_stream(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.overheard() as heard, stack.serving(tool.replica("a")) as [a]:
        async with playing(stack, tool) as turn:
            await stack.stop_bridge()
            try:
                tool.gate.set()
                await eventually(lambda: a.counts.succeeded == 1)
                assert not turn.done()
            finally:
                await stack.start_bridge()
            assert (await turn).result["result"] == "a"
        assert await stack.unsettled(target, "gated") == 0
        unknown = {**(heard[0].headers or {}), "CG-Tool-Call-Id": "call_unknown", "Nats-Msg-Id": f"x-{target}"}
        await stack.conn.store(heard[0].subject, heard[0].data, headers=unknown)
        await eventually(lambda: a.counts.refused == 1)
        await until_settled(stack, tool)
    assert tool.runs == ["a"]


async def test_commands_that_are_none_are_refused_and_never_come_again(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.overheard() as heard, stack.serving(tool.replica("a")) as [a]:
        async with playing(stack, tool) as turn:
            given = heard[0].headers or {}
            subject, data = heard[0].subject, heard[0].data
            without = {name: value for name, value in given.items() if name != "CG-Tool-Call-Id"}
            bad = [
                (b"no json", given),
                (data.replace(b"{", b'{"agent_turn_id": "t", ', 1), given),  # a control field in the payload
                (data, without),
            ]
            for number, (payload, sent) in enumerate(bad):
                await stack.conn.store(subject, payload, headers={**sent, "Nats-Msg-Id": f"bad-{target}-{number}"})
            await eventually(lambda: a.counts.refused == 3)
            # the call of another tool, sent to this one
            other = Gated(f"{target}x")
            other_agent = await stack.register(*other.replica().definitions())
            elsewhere = asyncio.create_task(stack.play(other_agent, other.call))
            await eventually(lambda: len(heard) == 5)
            await stack.conn.store(
                subject, heard[4].data, headers={**(heard[4].headers or {}), "Nats-Msg-Id": f"m-{target}"}
            )
            await eventually(lambda: a.counts.refused == 4)
            other.gate.set()
            tool.gate.set()
            await turn
        async with stack.serving(other.replica()):
            await elsewhere
        await until_settled(stack, tool)
    assert tool.runs == ["a"]


async def test_streams_deleted_under_a_running_call(stack: Stack, target: str) -> None:
    """The call is answered, and the next one finds streams and consumer declared again."""
    tool = Gated(target)
    async with stack.serving(tool.replica()):
        async with playing(stack, tool) as turn:
            for stream in (CMD_STREAM, EVT_STREAM):
                await stack.conn.js.delete_stream(stream)
            tool.gate.set()
            assert (await turn).result["result"] == "only"
        agent = await stack.register(*tool.replica().definitions())
        assert (await stack.play(agent, tool.call)).result["result"] == "only"
    assert tool.runs == ["only", "only"]
