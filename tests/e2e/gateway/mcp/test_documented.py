"""The program of docs/mcp-server.md, as it stands there."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from tests.e2e.gateway.mcp.official import Door
from tests.support.paths import ROOT
from tests.support.tenants import Tenant
from turnstile.schema.ids import AgentId

pytestmark = pytest.mark.shared_stack


@pytest.mark.long
async def test_the_program_of_the_page_prints_what_the_page_says(
    operator: Door, tenant: Tenant, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "mcp-server.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    [program] = [text for language, text in blocks if language == "python"]
    shown = next(text for language, text in blocks if language == "console").splitlines()[1:]
    await tenant.agent("mirror", AgentId("helper"))
    (tmp_path / "ask.py").write_text(program)
    given = {**os.environ, "TURNSTILE_URL": operator.url, "TURNSTILE_TOKEN": str(operator.token)}
    running = await asyncio.create_subprocess_exec(sys.executable, tmp_path / "ask.py", env=given, stdout=PIPE)
    told, _ = await running.communicate()
    lines = told.decode().splitlines()
    said = [line.partition(" ")[0] if line.startswith("success") else line for line in lines]
    assert said == [line.partition(" ")[0] if line.startswith("success") else line for line in shown]
    assert "Say hello" in lines[1]
