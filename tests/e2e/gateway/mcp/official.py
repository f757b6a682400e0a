"""The official client of MCP as tests use it, and messages that no such client sends."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import httpx
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent

SESSIONS, STATELESS = "legacy", "2026-07-28"
GENERATIONS = [SESSIONS, STATELESS]
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass(frozen=True)
class Door:
    """`/mcp` of a gateway, for one token, in one generation."""

    url: str
    token: str | None
    mode: str = STATELESS

    def of(self, mode: str) -> "Door":
        """In another generation."""
        return replace(self, mode=mode)

    @asynccontextmanager
    async def client(self, **more: Any) -> AsyncGenerator[Client]:
        """A client; a test enters and leaves it in one task."""
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        async with (
            create_mcp_http_client(headers) as web,
            Client(streamable_http_client(f"{self.url}/mcp", http_client=web), mode=self.mode, **more) as made,
        ):
            yield made

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What a tool answers a client that comes for this call alone."""
        async with self.client() as mcp:
            return told(await mcp.call_tool(name, arguments))

    @asynccontextmanager
    async def raw(self, **headers: str) -> AsyncGenerator[httpx.AsyncClient]:
        """HTTP without the protocol."""
        own = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        async with httpx.AsyncClient(base_url=self.url, headers={**ACCEPT, **own, **headers}, timeout=30) as made:
            yield made


def told(result: CallToolResult) -> dict[str, Any]:
    """What a tool answered."""
    return cast("dict[str, Any]", result.structured_content)


def text_of(result: CallToolResult) -> str:
    """Its text."""
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def request(method: str, params: dict[str, Any] | None = None, *, name: str | int = 1) -> str:
    """A request of a generation with sessions."""
    return json.dumps({"jsonrpc": "2.0", "id": name, "method": method, "params": params or {}})


def enveloped(method: str, params: dict[str, Any] | None = None, **meta: Any) -> tuple[dict[str, str], str]:
    """Headers and body of a request of the generation without."""
    own: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    given: dict[str, Any] = {**(params or {}), "_meta": {**own, **meta}}
    headers = {"mcp-protocol-version": STATELESS, "mcp-method": method}
    if "name" in given:
        headers["mcp-name"] = str(given["name"])
    return headers, request(method, given)
