"""Two servers from PyPI, as docs/mcp.md has them; they are not among what the tests install."""

import shutil

import pytest

from tests.e2e.mcp.conftest import House
from tests.support.paths import ROOT

PROGRAMS = ("mcp-server-time", "mcp-server-git")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None]


@pytest.mark.long
@pytest.mark.skipif(bool(MISSING), reason=f"not on the PATH: {', '.join(MISSING)} (pip install {' '.join(PROGRAMS)})")
async def test_two_servers_from_pypi_answer_in_one_step(house: House) -> None:
    added = await house.cli("add", "time", "--", "mcp-server-time", "--local-timezone", "UTC")
    assert "time__get_current_time" in added.out, added.err
    added = await house.cli("add", "git", "--tool", "git_log", "--", "mcp-server-git", "--repository", str(ROOT))
    assert "MCP server git: 1 tools" in added.out, added.err
    agent = await house.agent("time__get_current_time", "git__git_log")
    async with house.served("time", "git"):
        [time, log] = await house.play(
            agent,
            ("time__get_current_time", {"timezone": "Europe/Berlin"}),
            ("git__git_log", {"repo_path": str(ROOT), "max_count": 1}),
        )
    assert time["result"]["value"]["timezone"] == "Europe/Berlin"
    assert "Commit:" in log["result"]["value"]
