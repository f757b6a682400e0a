"""MCP servers of the tests' own, added by the command line and served in this process."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import TESTS
from tests.support.tenants import ALICE, Ended, Tenant, turn_of
from tests.support.tools import call_of, calling
from tests.turnstile.support import Ran, turnstile
from turnstile.processes.mcp.tool_processes import McpProcess
from turnstile.schema.ids import AgentId, AgentTurnId

SERVERS = TESTS / "support" / "mcp"


@dataclass
class House:
    """A project, a file of servers, and who serves them."""

    tenant: Tenant
    file: Path
    notes: Path

    async def cli(self, *arguments: str | Path, **variables: str) -> Ran:
        """Run `turnstile mcp …`."""
        own = ("--config", self.tenant.stack.config, "--servers", self.file)
        project = () if arguments[0] == "test" else ("--project", self.tenant.project)
        words = [*arguments]
        place = words.index("--") if "--" in words else len(words)
        return await turnstile("mcp", *words[:place], *own, *project, *words[place:], cwd=self.file.parent, **variables)

    async def add(self, name: str, *options: str, server: str = "kind_server.py", given: tuple[str, ...] = ()) -> Ran:
        """Add a server of the tests' own, on stdin and stdout."""
        command = (sys.executable, str(SERVERS / server), "--notes", str(self.notes), *given)
        ran = await self.cli("add", name, *options, "--", *command)
        assert ran.code == 0, ran.err
        return ran

    def plan(self, name: str, tools: list[dict[str, Any]], calls: Mapping[str, object]) -> Path:
        """What the rough server of this name lists and answers from now on."""
        path = self.file.with_name(f"{name}.json")
        path.write_text(json.dumps({"tools": tools, "calls": calls}))
        return path

    async def rough(self, name: str, tools: list[dict[str, Any]], calls: Mapping[str, object], *options: str) -> None:
        """Add a server that does what its plan says."""
        await self.add(name, *options, server="rough_server.py", given=("--plan", str(self.plan(name, tools, calls))))

    async def agent(self, *tools: str, agent: AgentId = ALICE) -> AgentId:
        """An agent whose model is the script of its instruction, and that may call these tools."""
        return await self.tenant.agent("player", agent, allowed_tools=list(tools))

    async def start(self, agent: AgentId, *calls: tuple[str, dict[str, Any]]) -> AgentTurnId:
        """A turn that makes these calls in its first step."""
        reply = await self.tenant.enqueue(agent, json.dumps({"steps": [calling(*calls)]}))
        return turn_of(reply)

    async def play(self, agent: AgentId, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The contents of the results of these calls."""
        return results(await self.tenant.ended(await self.start(agent, *calls), 60))

    def said(self) -> list[str]:
        """What the servers wrote down."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    @asynccontextmanager
    async def served(self, *names: str) -> AsyncGenerator[McpProcess]:
        """The servers, served in this process; begins when the named ones are."""
        process = McpProcess(self.file, self.tenant.stack.endpoints.nats_url)
        stop, told, ready = asyncio.Event(), set[str](), asyncio.Event()

        def hears(name: str) -> None:
            told.add(name)
            if told.issuperset(names):
                ready.set()

        running = asyncio.create_task(process.run(stop, hears))
        try:
            if names:
                async with asyncio.timeout(30):
                    await ready.wait()
            yield process
        finally:
            stop.set()
            await running


def results(ended: Ended) -> list[dict[str, Any]]:
    """The contents of a turn's results, in the order of the calls of its first step."""
    found = {str(card.tool_call_id): card.content for card in ended.cards if card.type == "tool.result"}
    ordered = [found[call_of(ended.view.agent_turn_id, place)] for place in range(len(found))]
    return [content for content in ordered if isinstance(content, dict)]


@pytest.fixture
async def house(tenant: Tenant, tmp_path: Path) -> House:
    """A project with a file of servers, which is not there yet."""
    await tenant.profile("first", "player")
    return House(tenant, tmp_path / "mcp.yaml", tmp_path / "notes")
