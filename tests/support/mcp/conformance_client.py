"""The client that the conformance suite of MCP runs, made of ours: lists the tools of a server and calls each once.

Its last argument is the server's address. A person who answers takes the defaults.
"""

import asyncio
import json
import os
import sys
from typing import Any, cast

import mcp_types as types

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import TurnstileError
from turnstile.sdk.mcp.mcp_connection import connected
from turnstile.sdk.mcp.mcp_results import result_of
from turnstile.sdk.mcp.mcp_server import McpServer
from turnstile.sdk.mcp.mcp_tools import answer_content
from turnstile.sdk.mcp.tool_pins import RemoteTool

CONTEXT = "MCP_CONFORMANCE_CONTEXT"
"""The variable in which a scenario says which calls it wants."""
VALUES: JsonObject = {"number": 5, "integer": 5, "string": "text", "boolean": True, "array": [], "object": {}}


async def takes_defaults(params: types.ElicitRequestParams) -> types.ElicitResult:
    """A person who agrees."""
    if isinstance(params, types.ElicitRequestURLParams):
        return types.ElicitResult(action="accept")
    return types.ElicitResult(
        action="accept", content=answer_content(cast("JsonObject", dict(params.requested_schema)), {})
    )


async def unheard(progress: float, total: float | None, message: str | None) -> None:
    """Hears no progress."""


def arguments_of(tool: RemoteTool) -> JsonObject:
    """Any arguments that the tool takes."""
    fields = tool.parameters.get("properties")
    return {
        name: VALUES.get(str(field.get("type")), 1)
        for name, field in (fields.items() if isinstance(fields, dict) else ())
        if isinstance(field, dict)
    }


async def main(url: str) -> None:
    """Connect, list, and call."""
    entry = McpServer(url=url, timeout_seconds=20, connect_seconds=15)
    async with connected("conformance", entry, os.environ) as connection:
        listing = await connection.listing()
        asked: list[dict[str, Any]] = json.loads(os.environ.get(CONTEXT, "{}")).get("toolCalls") or []
        wanted = [(each["name"], each["arguments"]) for each in asked]
        for name, arguments in wanted or [(tool.name, arguments_of(tool)) for tool in listing.tools.values()]:
            try:
                calling = connection.call(name, arguments, meta={}, ask=takes_defaults, progress=unheard)
                result_of(entry, listing.tools[name], await calling)
            except TurnstileError as error:
                sys.stderr.write(f"{name}: {error.code}: {error}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
