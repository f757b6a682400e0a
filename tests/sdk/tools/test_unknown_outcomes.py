"""A tool that must not run a call twice, and dies in the middle of one: a person is asked (docs/tools.md)."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.sdk.tools.conftest import COMMAND_RETRY_SECONDS
from tests.sdk.tools.stack import Call, Played, Stack, eventually
from tests.sdk.tools.test_once import start
from tests.support.conditions import until
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.schema.people.interrupt_requests import InterruptListReply
from turnstile.schema.people.interrupts import Interrupt, InterruptReason, InterruptStatus
from turnstile.sdk.tools.service import ToolService

MODES = ("hang", "unsafe")


async def _documented() -> None:
    """Work."""


async def questions(stack: Stack, agent: AgentId) -> Sequence[Interrupt]:
    """What people are asked about the agent's calls."""
    reply = await stack.client.request("interrupt.list", {"agent_id": agent})
    return InterruptListReply.model_validate(reply).interrupts


@dataclass
class Died:
    """A turn whose tool was killed with SIGKILL after it had begun the call, and what the tool did."""

    stack: Stack
    agent: AgentId
    arguments: tuple[str, ...]
    file: Path
    turn: "asyncio.Task[Played]"
    first: "subprocess.Popen[bytes]"

    @property
    def runs(self) -> list[int]:
        """The processes that have run the call, as they wrote themselves before its effect."""
        return [int(line.split()[0]) for line in self.file.read_text().splitlines()]

    async def asked(self) -> Interrupt:
        """The open question about the call."""

        async def there() -> Interrupt | None:
            found = await questions(self.stack, self.agent)
            return found[0] if found else None

        return await until(there, 25, "a person is asked")

    async def decide(self, **fields: JsonValue) -> JsonObject:
        """Decide about it, as a person who looked at it."""
        asked = await self.asked()
        payload = {"interrupt_id": asked.interrupt_id, "action_digest": asked.action_digest, **fields}
        return await self.stack.client.request("decide", payload, caller=Caller("ada"))


@asynccontextmanager
async def died(stack: Stack, target: str, tmp_path: Path, *, options: JsonObject | None = None) -> AsyncGenerator[Died]:
    """Such a turn; processes that are left at the end are killed."""
    file = tmp_path / "runs"
    service = ToolService()
    service.tool(target=target, suffix="work", name=f"work_{target}", repeat="unsafe")(_documented)
    [definition] = service.definitions()
    if options is not None:
        values = definition.model_dump(mode="json", exclude_defaults=True)
        definition = definition.model_validate({**values, "options": {**values["options"], **options}})
    agent = await stack.register(definition)
    arguments = (stack.endpoints.nats_url, target, str(file))
    first = start(*arguments, *MODES)
    turn = asyncio.create_task(stack.play(agent, Call(f"work_{target}"), timeout=40))
    await eventually(lambda: file.exists() and file.read_text())
    first.kill()
    first.wait()
    yield Died(stack, agent, arguments, file, turn, first)


async def test_a_call_that_began_is_not_run_again_and_a_person_says_what_became_of_it(
    stack: Stack, target: str, tmp_path: Path
) -> None:
    """Its command comes again to another replica, and the safety net looks: the effect is there once."""
    async with died(stack, target, tmp_path) as call:
        second = start(*call.arguments, "unsafe")
        try:
            asked = await call.asked()
            assert (asked.reason, asked.status) == (InterruptReason.CONFIRMATION, InterruptStatus.OPEN)
            assert "Nobody knows whether it was done" in asked.message
            assert asked.action_digest is not None
            assert (await call.decide(decision="edit", arguments={}))["error_code"] == "decision_not_allowed"
            assert (await call.decide(decision="respond", response="it was done"))["status"] == "accepted"
            played = await call.turn
        finally:
            second.kill()
            second.wait()
        assert played.result["result"] == {"value": "it was done"}
        assert call.runs == [call.first.pid]


async def test_a_person_may_have_it_sent_again(stack: Stack, target: str, tmp_path: Path) -> None:
    async with died(stack, target, tmp_path) as call:
        await call.asked()  # found by the net alone: no replica is left
        second = start(*call.arguments, "unsafe")
        try:
            assert (await call.decide(decision="approve"))["status"] == "accepted"
            played = await call.turn
        finally:
            second.kill()
            second.wait()
        assert played.result["result"] == second.pid
        assert call.runs == [call.first.pid, second.pid]


@pytest.mark.long
async def test_where_nobody_may_be_asked_it_failed(stack: Stack, target: str, tmp_path: Path) -> None:
    async with died(stack, target, tmp_path, options={"repeat_ask": False}) as call:
        played = await call.turn
        assert (played.error.code, call.runs) == ("outcome_unknown", [call.first.pid])


@pytest.mark.long
async def test_a_rejected_one_failed(stack: Stack, target: str, tmp_path: Path) -> None:
    async with died(stack, target, tmp_path) as call:
        assert (await call.decide(decision="reject", message="look at the bank first"))["status"] == "accepted"
        played = await call.turn
        assert (played.error.message, call.runs) == ("look at the bank first", [call.first.pid])


async def test_one_that_is_run_is_not_asked_about(stack: Stack, target: str) -> None:
    """For longer than the net waits, and its command comes again."""
    service, gate, runs = ToolService(ack_wait_seconds=2), asyncio.Event(), list[str]()

    @service.tool(target=target, suffix="slow", name=f"slow_{target}", repeat="unsafe", timeout_seconds=30)
    async def slow() -> str:
        """Wait."""
        runs.append("run")
        await gate.wait()
        return "done"

    agent = await stack.register(*service.definitions())
    async with stack.overheard() as heard, stack.serving(service) as [running]:
        turn = asyncio.create_task(stack.play(agent, Call(f"slow_{target}"), timeout=30))
        await eventually(lambda: runs)
        [command] = heard
        await stack.repeat(command, 1)
        await eventually(lambda: running.counts.duplicates == 1)
        await asyncio.sleep(COMMAND_RETRY_SECONDS + 1)  # longer than the net waits: it looks, and concludes nothing
        gate.set()
        played = await turn
        assert len(heard) == 2, "the net sends it to nobody"
    assert (played.result["result"], runs) == ("done", ["run"])
    assert not await questions(stack, agent)
