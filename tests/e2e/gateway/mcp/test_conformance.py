"""The conformance suite of MCP, `@modelcontextprotocol/conformance`, against `/mcp` (docs/mcp-server.md).

Collected where `MCP_CONFORMANCE` names a directory in which npm has installed it: `make mcp-conformance`.
"""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path

import pytest

from tests.e2e.gateway.mcp.official import Door
from tests.support.tenants import Tenant

HERE = Path(__file__).parent
REVISIONS = ["2025-11-25", "2026-07-28"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("revision", REVISIONS)
async def test_only_what_is_expected_to_fails(operator: Door, tenant: Tenant, revision: str, tmp_path: Path) -> None:
    await tenant.agent("player")
    modules = Path(os.environ["MCP_CONFORMANCE"]) / "node_modules"
    suite = modules / "@modelcontextprotocol/conformance/dist/index.js"
    asked = ["--spec-version", revision, "--expected-failures", str(HERE / f"conformance-{revision}.yml")]
    running = await asyncio.create_subprocess_exec(
        *(str(modules / ".bin/node"), "--import", str(HERE / "bearer.mjs"), str(suite), "server"),
        *("--url", f"{operator.url}/mcp", "-o", str(tmp_path), "--suite", "all", *asked),
        env={**os.environ, "TOKEN": str(operator.token), "MODULES": str(modules)},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    told, _ = await running.communicate()
    assert running.returncode == 0, told.decode()[-6000:]
