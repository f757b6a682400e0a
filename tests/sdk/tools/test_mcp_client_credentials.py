"""MCP servers that want a token are asked by the OAuth client of their entry; its secret is said to nobody else."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest
import yaml
from mcp.client.auth import OAuthFlowError

from tests.sdk.tools.test_mcp_hostile import nobody, unheard
from tests.sdk.tools.test_mcp_reached import listening
from tests.support.paths import TESTS
from turnstile.processes.mcp.server_file import ServerFile
from turnstile.schema.errors import TurnstileError
from turnstile.sdk.mcp.client_credentials import ClientCredentials
from turnstile.sdk.mcp.mcp_connection import McpConnection, connected
from turnstile.sdk.mcp.mcp_results import result_of
from turnstile.sdk.mcp.mcp_server import McpServer

GUARDED = TESTS / "support" / "mcp" / "guarded_server.py"
SECRET = "s3cret-of-the-kernel"


def entry_of(url: str, directory: Path, *, secret: str = SECRET, scope: str | None = None) -> McpServer:
    """The guarded server, with the client's secret in a file."""
    file = directory / "secret"
    file.write_text(f"{secret}\n")
    oauth = {"client_id": "kernel", "client_secret_file": str(file), "scope": scope}
    return McpServer.model_validate({"url": f"{url}/mcp", "oauth": oauth})


async def added(connection: McpConnection) -> object:
    """What a call comes to."""
    tools = (await connection.listing()).tools
    answer = await connection.call("add", {"a": 1, "b": 2}, meta={}, ask=nobody, progress=unheard)
    return result_of(connection.entry, tools["add"], answer)["value"]


@pytest.mark.parametrize("scope", [None, "tools more"])
async def test_a_token_is_asked_for_as_often_as_it_ends_and_its_issuer_is_kept(
    tmp_path: Path, scope: str | None
) -> None:
    notes = tmp_path / "notes"
    async with listening(GUARDED, "--secret", SECRET, "--notes", str(notes)) as url:
        async with connected("guarded", entry_of(url, tmp_path, scope=scope), os.environ) as connection:
            assert await added(connection) == {"result": 3}
            await asyncio.sleep(2.5)  # the token's time
            assert await added(connection) == {"result": 3}
            entry = connection.entry
        assert entry.oauth is not None
        assert entry.oauth.issuer == url
        async with connected("guarded", entry, os.environ) as connection:
            assert await added(connection) == {"result": 3}
    asked = notes.read_text().splitlines()
    assert set(asked) == {f"token kernel client_credentials {scope or 'tools'}"}
    assert 3 <= len(asked) <= 5  # a busy machine may outlast a token once more; nine requests are sent
    file = ServerFile(tmp_path / "mcp.yaml")
    file.put("guarded", entry)
    assert SECRET not in file.path.read_text()
    assert file.read()["guarded"] == entry
    assert yaml.safe_load(file.path.read_text())["guarded"]["oauth"]["client_secret_file"] == str(tmp_path / "secret")


async def test_a_secret_that_is_wrong_is_an_error_that_does_not_say_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening(GUARDED, "--secret", SECRET, "--notes", str(tmp_path / "notes")) as url:
        with pytest.raises(TurnstileError, match=r"OAuth client") as failed:
            async with connected("guarded", entry_of(url, tmp_path, secret="wr0ng"), os.environ):
                pass
    assert failed.value.code == "mcp_unavailable"
    assert "401" in str(failed.value)
    assert "wr0ng" not in f"{failed.value!r} {caplog.text}"


async def test_a_secret_goes_to_no_other_authorization_server_than_the_one_that_is_named(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    async with listening(GUARDED, "--secret", SECRET, "--notes", str(notes)) as url:
        entry = entry_of(url, tmp_path)
        assert entry.oauth is not None
        named = entry.oauth.model_copy(update={"issuer": "https://login.example"})
        with pytest.raises(TurnstileError, match="OAuth client"):
            async with connected("guarded", entry.model_copy(update={"oauth": named}), os.environ):
                pass
    assert notes.read_text() == ""


@pytest.mark.parametrize("content", [None, "", b"\xff"])
async def test_a_secret_that_cannot_be_read_is_named_by_its_file(tmp_path: Path, content: str | bytes | None) -> None:
    entry, file = entry_of("http://127.0.0.1:1", tmp_path), tmp_path / "secret"
    file.unlink()
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TurnstileError, match=str(file)):
        async with connected("guarded", entry, os.environ):
            pass


async def test_a_server_that_wants_a_token_says_how_to_name_an_oauth_client(tmp_path: Path) -> None:
    async with listening(GUARDED, "--secret", SECRET, "--notes", str(tmp_path / "notes")) as url:
        entry = McpServer.model_validate({"url": f"{url}/mcp"})
        with pytest.raises(TurnstileError, match=r"401.*--header Authorization=env:NAME.*--oauth-client-id"):
            async with connected("guarded", entry, os.environ):
                pass


def test_an_entry_has_one_kind_of_credentials(tmp_path: Path) -> None:
    oauth = {"client_id": "kernel", "client_secret_file": str(tmp_path / "secret")}
    headers = {"authorization": "env:TOKEN"}
    for entry in (
        {"url": "https://x.example/mcp", "oauth": oauth, "headers": headers},
        {"command": ["x"], "oauth": oauth},
        {"url": "https://x.example/mcp", "oauth": {"client_id": "kernel", "client_secret": "in the file"}},
    ):
        with pytest.raises(ValueError, match=r"oauth|OAuth"):
            McpServer.model_validate(entry)


async def asked_without_metadata(credentials: ClientCredentials) -> AsyncGenerator[httpx2.Request]:
    """The requests of a call to a server that wants a token, and says nothing of itself."""
    flow = credentials.async_auth_flow(httpx2.Request("POST", "http://mcp.example/mcp"))
    request = await anext(flow)
    while True:
        yield request
        request = await flow.asend(httpx2.Response(401 if request.url.path == "/mcp" else 404, request=request))


async def test_a_secret_is_not_sent_without_https_beyond_the_host(tmp_path: Path) -> None:
    oauth = entry_of("http://mcp.example", tmp_path).oauth
    assert oauth is not None
    requests = asked_without_metadata(ClientCredentials("http://mcp.example/mcp", oauth))
    with pytest.raises(OAuthFlowError, match="without https"):
        _ = [request async for request in requests]
