"""Clients of other people, each in a process of its own with the packages of the day: every answer comes whole.

Collected where `REAL_CLIENTS` names a directory in which `make real-clients` has installed them.
"""

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from lab.support.proxy import Proxy
from tests.support.conditions import until
from tests.support.gateway import gateway_process, serving, token_of
from tests.support.paths import TESTS
from tests.support.processes.process import Processes
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from tests.support.tools import Command, definition
from turnstile.ledger.roster import put_tool

COUNT, SOME = 100, 12
WHERE = Path(os.environ.get("REAL_CLIENTS", "."))
NODE = WHERE / "node_modules/.bin/node"
CLIENTS = {
    "openai_agents.py": WHERE / "venv/bin/python",
    "openai_conversations.py": WHERE / "venv/bin/python",
    "a2a_stream.py": WHERE / "venv/bin/python",
    "adk_remote.py": WHERE / "venv/bin/python",
    "ai_sdk.mjs": NODE,
}


@pytest.fixture
async def url(here: Stack) -> AsyncIterator[str]:
    async with serving(here, requests_per_second=0.0) as address:
        yield address


@pytest.fixture
async def agent(tenant: Tenant) -> AsyncIterator[str]:
    """Ten agents of one profile whose tool answers at once; their ids as a pattern."""
    await put_tool(tenant.pool, tenant.project, definition())
    await tenant.agents("talks", 10, allowed_tools=["search"])
    answering = set[asyncio.Task[object]]()

    async def on_command(msg: Msg) -> None:
        call = Command(msg.subject, msg.data, dict(msg.headers or {})).call
        report = {"tool_call_id": call, "status": "success", "result": "found"}
        answering.add(asyncio.create_task(tenant.client.request("report", report)))

    subscription = await tenant.stack.conn.subscribe(f"cg.v1r4.{tenant.project}.*.cmd.tool.>", on_command)
    yield "agent-{}"
    await tenant.stack.conn.unsubscribe(subscription)
    await asyncio.gather(*answering)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", list(CLIENTS))
async def test_every_answer_comes_whole(script: str, url: str, agent: str, tenant: Tenant) -> None:
    token = await token_of(tenant.stack, tenant.project)
    await all_whole(CLIENTS[script], script, url, token, agent, COUNT)


async def all_whole(program: Path, script: str, url: str, token: str, agent: str, count: int) -> None:
    """Run a client; each of so many conversations comes whole."""
    command = (str(program), str(TESTS / "clients" / script), url, token, agent, str(count))
    given = {**os.environ, "MODULES": str(WHERE / "node_modules"), "PYTHONPATH": ""}
    running = await asyncio.create_subprocess_exec(*command, env=given, stdout=PIPE, stderr=PIPE)
    out, errors = await running.communicate()
    assert running.returncode == 0, errors.decode()[-4000:]
    told = json.loads(out.decode().strip().splitlines()[-1])
    assert told["whole"] == told["asked"] == count, (told, errors.decode()[-2000:])


TYPED = {
    "typed_openai_agents.py": WHERE / "venv/bin/python",
    "typed_pydantic_ai.py": WHERE / "venv/bin/python",
    "typed_langchain.py": WHERE / "venv/bin/python",
    "typed_instructor.py": WHERE / "venv/bin/python",
    "typed_ai_sdk.mjs": NODE,
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("killed", ["nothing", "gateway", "worker"])
@pytest.mark.parametrize("script", list(TYPED))
async def test_typed_answers_and_calls_of_functions_come_whole(
    script: str, killed: str, apart: Tenant, stack: Stack, processes: Processes
) -> None:
    """Also where a process dies in their middle: the clients repeat what broke, and get the same."""
    await apart.profile("typed", "player", instances=True)
    token, port = await token_of(stack, apart.project), 0
    proxy = Proxy(lambda: port)
    await proxy.start()

    async def some_ended() -> bool:
        return await apart.count("state.turn_outcomes") >= 5

    try:
        async with gateway_process(stack) as (pid, url):
            port = int(url.rpartition(":")[2])
            address = f"http://127.0.0.1:{proxy.port}"
            asking = asyncio.create_task(all_whole(TYPED[script], script, address, token, "profile:typed", SOME))
            await until(some_ended, 120, "some turns have ended")
            if killed == "worker":
                await processes.worker.kill()
                await processes.worker.start()
            if killed == "gateway":
                os.kill(pid, signal.SIGKILL)
                async with gateway_process(stack) as (_, another):
                    port = int(another.rpartition(":")[2])
                    await asking
            await asking
    finally:
        await proxy.close()
