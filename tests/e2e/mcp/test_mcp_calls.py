"""Calls of MCP servers' tools: added, served, called by agents (protocol §17.1).

Two servers from PyPI, as docs/mcp.md has them, are not among what the tests install.
"""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml

from tests.e2e.mcp.conftest import SERVERS, House
from tests.sdk.tools.test_mcp_reached import listening
from tests.support.paths import ROOT
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.schema.ids import AgentId
from turnstile.schema.profiles import Profile


@asynccontextmanager
async def over_http(house: House, *options: str) -> AsyncGenerator[str]:
    """The address of the kind server over HTTP."""
    async with listening(SERVERS / "kind_server.py", "--notes", str(house.notes), *options) as url:
        yield f"{url}/{'sse' if '--sse' in options else 'mcp'}"


async def test_a_server_that_is_added_answers_the_calls_of_agents(house: House) -> None:
    added = await house.add("kind")
    assert "MCP server kind: 6 tools" in added.out
    agent = await house.agent("kind__add", "kind__echo", "kind__fail", "kind__picture")
    async with house.served("kind"):
        nothing = dict[str, Any]()
        calls = ("kind__add", {"a": 2, "b": 3}), ("kind__echo", {"text": "hi"}), ("kind__fail", nothing)
        [sum_, echo, fail, picture] = await house.play(agent, *calls, ("kind__picture", nothing))
    assert sum_["result"] == {"value": {"result": 5}}
    assert echo["result"] == {"value": "hi"}
    assert (fail["status"], fail["error"]["code"]) == ("failed", "tool_error")
    assert "broken" in fail["error"]["message"]
    assert picture["result"]["value"] == "This is it:"
    assert picture["result"]["content"] == [{"type": "image", "mime_type": "image/png", "bytes": 64}]


@pytest.mark.long
@pytest.mark.parametrize("generation", ["2026-07-28", "2025-11-25"])
async def test_both_generations_of_the_protocol_are_spoken_over_http(house: House, generation: str) -> None:
    async with over_http(house, *(["--sessions"] if generation == "2025-11-25" else [])) as url:
        ran = await house.cli("add", "web", "--url", url, "--tool", "add")
        assert ran.code == 0, ran.err
        tested = await house.cli("test", "web", "add", '{"a": 1, "b": 1}', "--json")
        assert (tested.json()["protocol"], tested.json()["result"]) == (generation, {"value": {"result": 2}})
        agent = await house.agent("web__add")
        async with house.served("web"):
            [found] = await house.play(agent, ("web__add", {"a": 20, "b": 1}))
    assert found["result"] == {"value": {"result": 21}}


async def test_a_server_of_the_older_transport_is_added_as_what_it_is(house: House) -> None:
    async with over_http(house, "--sse") as url:
        ran = await house.cli("add", "old", "--url", url, "--protocol", "2025-06-18", "--tool", "add")
        assert ran.code == 0, ran.err
        written = yaml.safe_load(house.file.read_text())["old"]
        assert (written["transport"], written["protocol"]) == ("sse", "2025-06-18")
        agent = await house.agent("old__add")
        async with house.served("old"):
            [found] = await house.play(agent, ("old__add", {"a": 20, "b": 1}))
    assert found["result"] == {"value": {"result": 21}}


async def test_a_server_that_wants_a_token_is_added_by_its_oauth_client(house: House) -> None:
    secret = house.file.with_name("secret")
    secret.write_text("s3cret\n")
    given = ("--secret", "s3cret", "--notes", str(house.notes))
    async with listening(SERVERS / "guarded_server.py", *given) as url:
        refused = await house.cli("add", "guarded", "--url", f"{url}/mcp")
        assert refused.code != 0
        assert "--header" in refused.err
        assert "--oauth-client-secret-file" in refused.err
        half = await house.cli("add", "guarded", "--url", f"{url}/mcp", "--oauth-client-id", "kernel")
        assert "--oauth-client-secret-file" in half.err
        named = ("--oauth-client-id", "kernel", "--oauth-client-secret-file", secret)
        ran = await house.cli("add", "guarded", "--url", f"{url}/mcp", *named)
        assert ran.code == 0, ran.err
        written = yaml.safe_load(house.file.read_text())["guarded"]["oauth"]
        assert written == {"client_id": "kernel", "client_secret_file": str(secret), "issuer": url}
        agent = await house.agent("guarded__add")
        async with house.served("guarded"):
            [found] = await house.play(agent, ("guarded__add", {"a": 20, "b": 1}))
    assert found["result"] == {"value": {"result": 21}}
    assert "s3cret" not in house.file.read_text() + ran.out + ran.err


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


async def test_a_server_tool_is_an_agent(house: House) -> None:
    schema = {"type": "object", "properties": {"instruction": {"type": "string"}}, "additionalProperties": False}
    tool = {"name": "look", "description": "Look.", "inputSchema": schema}
    await house.rough("desk", [tool], {"look": {"content": [{"type": "text", "text": "fine"}]}})
    [target] = house.tenant.stack.settings.worker.worker_targets
    profile = Profile(name="desk", worker_target=target, run_by="desk__look")
    await put_profile(house.tenant.pool, house.tenant.project, profile)
    await add_agent(house.tenant.pool, house.tenant.project, AgentId("desk"), "desk")
    async with house.served("desk"):
        ended = await house.tenant.turn(AgentId("desk"), "hello", result_fields=[{"name": "value"}])
    fields = {"fields": [{"name": "value", "value": "fine"}]}
    assert (ended.view.status, ended.deliverable()) == ("success", fields)
