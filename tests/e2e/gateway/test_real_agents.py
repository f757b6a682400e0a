"""Agents of other frameworks as agents in code, each a file of `examples/agents` with the packages of the day.

Collected where `REAL_CLIENTS` names a directory in which `make real-clients` has installed them.
"""

import asyncio
import json
import os
import random
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import turnstile
from tests.e2e.people.asking import Person, people
from tests.support.conditions import until
from tests.support.delegation import chief_says, fork, result, staff, task
from tests.support.gateway import token_of
from tests.support.paths import ROOT, TESTS
from tests.support.tenants import Tenant, turn_of
from turnstile.ledger.roster import add_agent, put_profile, put_tool
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.profiles import Profile
from turnstile.schema.tools import ToolDefinition

pytestmark = [pytest.mark.shared_stack, pytest.mark.long, pytest.mark.timeout(900)]
PYTHON = Path(os.environ.get("REAL_CLIENTS", ".")) / "venv/bin/python"
EXAMPLES = ["pydantic_ai_agent", "openai_agents_agent", "langgraph_agent"]
CLERK, CAREFUL = AgentId("clerk"), AgentId("careful")
NOTES, TURNS, KILLS = 4, 4, 10
"""Calls of `note` before a turn ends; turns that are asked at once; how often the process is killed."""


@dataclass
class ModelServer:
    """Chat completions: so many calls of `note`, then a text. Remembers when each request of a turn was made."""

    url: str = ""
    asked: dict[tuple[str, int], list[float]] = field(default_factory=dict[tuple[str, int], list[float]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers = [line]
                while (line := await reader.readline()).strip():
                    headers.append(line)
                size = next(int(h.split(b":")[1]) for h in headers if h.lower().startswith(b"content-length"))
                body = json.dumps(await self.answer(json.loads(await reader.readexactly(size)))).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                )
                writer.write(body)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        messages = request["messages"]
        said = next(m["content"] for m in messages if m["role"] == "user")
        text = said if isinstance(said, str) else said[0]["text"]
        notes = sum(m["role"] == "tool" for m in messages)
        self.asked.setdefault((text, notes + 1), []).append(time.time())
        await asyncio.sleep(0.05 + 0.04 * notes)
        call = {"id": f"call_{notes}", "type": "function"}
        call |= {"function": {"name": "note", "arguments": json.dumps({"text": f"note {notes}"})}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        if notes == NOTES:
            message = {"role": "assistant", "content": f"{notes} notes on {text}"}
        return {
            "id": "chat",
            "object": "chat.completion",
            "created": 1,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop" if notes == NOTES else "tool_calls"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50},
        }


@asynccontextmanager
async def model_server() -> AsyncGenerator[ModelServer]:
    server = ModelServer()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        yield server


@dataclass
class Agents:
    """The processes that run one example for one project."""

    tenant: Tenant
    example: str
    model: ModelServer

    async def start(self, *more: str, out: int = DEVNULL) -> Process:
        given = {**os.environ, "OPENAI_BASE_URL": self.model.url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
        nats = self.tenant.stack.endpoints.nats_url
        command = (str(TESTS / "clients/code_agent.py"), str(ROOT / "examples/agents" / f"{self.example}.py"))
        command += ("--nats", nats, "--project", self.tenant.project, *more)
        return await asyncio.create_subprocess_exec(str(PYTHON), *command, env=given, stdout=out, stderr=DEVNULL)

    async def register(self) -> None:
        """Its tool as it says, and agents of two profiles, of which one is approved."""
        out, _ = await (await self.start("--yaml", out=PIPE)).communicate()
        await put_tool(self.tenant.pool, self.tenant.project, ToolDefinition.model_validate(yaml.safe_load(out)))
        [target] = self.tenant.stack.settings.worker.worker_targets
        for agent, more in ((CLERK, {}), (CAREFUL, {"interrupt_on": {"clerk": True}})):
            profile = Profile.model_validate({"name": agent, "run_by": "clerk", "worker_target": target, **more})
            await put_profile(self.tenant.pool, self.tenant.project, profile)
            await add_agent(self.tenant.pool, self.tenant.project, agent, profile.name)


@pytest.mark.parametrize("example", EXAMPLES)
async def test_an_agent_of_a_framework_is_an_agent_of_the_project(example: str, url: str, tenant: Tenant) -> None:
    """Asked over HTTP, delegated to, approved, budgeted, stopped."""
    async with model_server() as model:
        agents = Agents(tenant, example, model)
        await agents.register()
        serving = await agents.start()
        try:
            token = await token_of(tenant.stack, tenant.project)
            async with turnstile.Client(url, token=token) as client:
                assert (await client.ask(CLERK, "cats").result(60)).value == "4 notes on cats"
            await staff(tenant)
            [part] = result(await chief_says(tenant, fork([task("clerk", "dogs")])))["results"]
            assert (part["status"], part["summary"]) == ("success", "4 notes on dogs")
            turn = turn_of(await tenant.enqueue(CAREFUL, "mice"))
            [interrupt] = await until(lambda: people(tenant).interrupts(agent_turn_id=turn), 25, "a person is asked")
            await Person(tenant, "ada").decides(interrupt, "approve")
            assert (await tenant.ended(turn)).deliverable() == "4 notes on mice"
            poor = await tenant.turn(CLERK, "owls", budget={"max_tokens": 120})
            assert (poor.view.status, poor.view.error_code) == ("failed", "budget_exhausted")
            assert len(model.asked) == 3 * (NOTES + 1) + 3, "of the poor turn three requests of 50 tokens"
            turn = turn_of(await tenant.enqueue(CLERK, "bats"))
            await until(lambda: _asked(model, "bats"), 25, "the model is asked")
            await tenant.client.request("stop", {"agent_turn_id": turn})
            assert (await tenant.ended(turn)).view.status == "canceled"
        finally:
            serving.terminate()
            assert await serving.wait() == 0


async def _asked(model: ModelServer, text: str) -> bool:
    return (text, 1) in model.asked


@pytest.mark.parametrize("example", EXAMPLES)
async def test_what_was_answered_and_recorded_is_not_asked_again_whenever_the_process_is_killed(
    example: str, tenant: Tenant, record_property: Callable[[str, str], None]
) -> None:
    dice = random.Random(example)  # noqa: S311 -- when it dies
    async with model_server() as model:
        agents = Agents(tenant, example, model)
        await agents.register()
        turns: dict[str, AgentTurnId] = {}
        for killed in range(KILLS):
            serving = await agents.start()
            for _ in range(TURNS // 2):  # there is always one under way
                text = f"text {len(turns)}"
                turns[text] = turn_of(await tenant.enqueue(CLERK, text))
            before = sum(map(len, model.asked.values()))

            async def some(least: int = before + dice.randint(1, 4)) -> bool:
                return sum(map(len, model.asked.values())) >= least

            await until(some, 60, f"requests before death {killed}")
            await asyncio.sleep(dice.uniform(0, 0.3))
            os.kill(serving.pid, signal.SIGKILL)
            await serving.wait()
        serving = await agents.start()
        try:
            for text, turn in turns.items():
                ended = await tenant.ended(turn)
                assert (ended.view.status, ended.deliverable()) == ("success", f"{NOTES} notes on {text}")
        finally:
            serving.terminate()
            await serving.wait()
        rows = await tenant.rows(
            "SELECT s.agent_turn_id, s.key, s.created_at FROM state.call_steps s WHERE s.project_id = $1"
            " AND s.key LIKE 'model/%'",
            tenant.project,
        )
        recorded: dict[str, list[float]] = {}
        for row in sorted(rows, key=lambda row: row["created_at"]):
            recorded.setdefault(row["agent_turn_id"], []).append(row["created_at"].timestamp())
        again = 0
        for text, turn in turns.items():
            assert len(recorded[turn]) == NOTES + 1
            for place, at in enumerate(recorded[turn], 1):
                asked = model.asked[text, place]
                again += len(asked) - 1
                assert all(moment < at for moment in asked), f"{text}, request {place}, was asked after its record"
        requests = sum(map(len, model.asked.values()))
        record_property("figures", f"{len(turns)} turns, {requests} requests, {again} of them again, before a record")
