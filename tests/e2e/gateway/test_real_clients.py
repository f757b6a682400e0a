"""Clients of other people, each in a process of its own with the packages of the day: every answer comes whole.

Collected where `REAL_CLIENTS` names a directory in which `make real-clients` has installed them.
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from tests.support.gateway import serving, token_of
from tests.support.paths import TESTS
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from tests.support.tools import Command, definition
from turnstile.ledger.roster import put_tool

COUNT = 100
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
    command = (str(CLIENTS[script]), str(TESTS / "clients" / script), url, token, agent, str(COUNT))
    given = {**os.environ, "MODULES": str(WHERE / "node_modules"), "PYTHONPATH": ""}
    running = await asyncio.create_subprocess_exec(*command, env=given, stdout=PIPE, stderr=PIPE)
    out, errors = await running.communicate()
    assert running.returncode == 0, errors.decode()[-4000:]
    told = json.loads(out.decode().strip().splitlines()[-1])
    assert told["whole"] == told["asked"] == COUNT, (told, errors.decode()[-2000:])
