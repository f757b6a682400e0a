"""MCP servers in processes apart: beside `turnstile up`, killed in mid-call, and beside others that misbehave."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.mcp.conftest import SERVERS, House
from tests.e2e.mcp.test_mcp_pins import NOTHING, listed
from tests.support.conditions import until
from tests.support.processes.stack import SCRIPTS
from tests.support.tools import calling
from tests.turnstile.support import launch, processes_of, read_until, turnstile, until_gone
from turnstile.schema.ids import AgentId

PROFILE = """
name: sitter
system_prompt_template: You sit.
allowed_tools: [desk__sit]
llm_config: {model: scripted/player}
"""
SAFE = {"content": [{"type": "text", "text": "sat"}]}


@pytest.mark.long
async def test_up_serves_what_is_added_and_a_kill_in_mid_call_is_one_answer(tmp_path: Path) -> None:
    data, notes, plan = tmp_path / "data", tmp_path / "notes", tmp_path / "plan.json"
    plan.write_text(json.dumps({"tools": listed(sit="Sit."), "calls": {"sit": "hang"}}))
    scripts = ", ".join(json.dumps(str(script)) for script in SCRIPTS)
    (tmp_path / "config.toml").write_text(f"[model]\nscripts = [{scripts}]\n")
    (tmp_path / "sitter.yaml").write_text(PROFILE)
    rough = (sys.executable, str(SERVERS / "rough_server.py"), "--notes", str(notes), "--plan", str(plan))

    def said() -> list[str]:
        return notes.read_text().splitlines() if notes.exists() else []

    async def cli(*words: str) -> Any:
        ran = await turnstile(*words, cwd=tmp_path)
        assert ran.code == 0, ran.err
        return ran

    up = await launch("up", "--data", data, cwd=tmp_path)
    try:
        await read_until(up.stdout, "serves", 60)
        await cli("profile", "put", "sitter.yaml", "--data", str(data))
        await cli("agent", "add", "ada", "--profile", "sitter", "--data", str(data))
        await cli("mcp", "add", "desk", "--data", str(data), "--", *rough)
        asking = json.dumps({"steps": [calling(("desk__sit", NOTHING))]})
        waiting = asyncio.create_task(cli("enqueue", "ada", asking, "--wait", "--data", str(data)))

        async def called() -> bool:
            return "call sit" in said()

        await until(called, 60, "the server is called")
        [serve] = [pid for pid, command in await processes_of(data) if "mcp serve" in command]
        plan.write_text(json.dumps({"tools": listed(sit="Sit."), "calls": {"sit": SAFE}}))
        os.kill(serve, signal.SIGKILL)
        ended = await asyncio.wait_for(waiting, 120)
        assert '"value":"sat"' in ended.out.replace(" ", "").replace("\\", "")
        assert said().count("call sit") == 2  # the second run of the same call
    finally:
        up.send_signal(signal.SIGTERM)
        await up.wait()
    await until_gone(data)
    await until_gone(plan)


@pytest.mark.long
async def test_servers_that_misbehave_harm_nobody_else(house: House) -> None:
    bad = ["flood of messages", "endless line", "die", "no JSON", "stop reading", "flood of progress"]
    for number, what in enumerate(bad):
        await house.rough(f"bad{number}", listed(go="Go."), {"go": what}, "--timeout", "8")
    await house.rough("good", listed(look="Look."), {"look": {"content": [{"type": "text", "text": "fine"}]}})
    names = [f"bad{number}" for number in range(len(bad))]
    victim = await house.agent(*(f"{name}__go" for name in names), agent=AgentId("victim"))
    async with house.served("good", *names):
        turn = await house.start(victim, *((f"{name}__go", NOTHING) for name in names))
        agent = await house.agent("good__look")
        for _ in range(5):  # while the others do their worst
            [found] = await house.play(agent, ("good__look", NOTHING))
            assert found["result"] == {"value": "fine"}
        ended = await house.tenant.ended(turn, 60)
    failed = {code for _, code, _ in ended.results()}
    assert len(ended.results()) == len(bad)
    assert failed <= {"tool_timeout", "mcp_disconnected"}
