"""`turnstile mcp add`, `accept` and `remove`: the file of servers, and the rows of their tools in a project."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from turnstile.cli.output import clean
from turnstile.cli.session import Session
from turnstile.embedded import DEFAULT_DATA, find_data
from turnstile.processes.mcp.beside_up import FILE
from turnstile.processes.mcp.server_file import ServerFile
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.tools import ToolRow
from turnstile.schema.validation import describe_faults
from turnstile.schema.wire.roster_requests import (
    ToolPutRequest,
    ToolRemoveRequest,
)
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.mcp.mcp_connection import Listing, McpUnavailable, connected
from turnstile.sdk.mcp.mcp_server import McpServer, row_name, server_name, tool_key
from turnstile.sdk.mcp.tool_pins import RemoteTool

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `mcp add`."""

    command: list[str]
    url: str | None
    oauth: tuple[str | None, Path | None, str | None, str | None]
    """The id, secret's file, scope and issuer of an OAuth client."""
    transport: str | None
    protocol: str | None
    env: list[str]
    headers: list[str]
    tools: list[str] | None
    timeout: float
    concurrency: int
    repeat: str

    def entry(self) -> McpServer:
        """As an entry of the file; raises `BadRequest`."""
        try:
            headers = dict(header.split("=", 1) for header in self.headers)
            value: JsonObject = {
                "command": [*self.command],
                "cwd": str(Path.cwd()) if self.command else None,
                "env": [*self.env],
                "url": self.url,
                "oauth": self._oauth(),
                "transport": self.transport,
                "protocol": self.protocol,
                "headers": {**headers},
                "tools": None if self.tools is None else [*self.tools],
                "timeout_seconds": self.timeout,
                "concurrency": self.concurrency,
                "repeat": self.repeat,
            }
            return McpServer.model_validate(value)
        except ValidationError as error:
            raise BadRequest(describe_faults(error, McpServer, most=1)) from None
        except ValueError:
            raise BadRequest("a --header is HEADER=env:NAME") from None

    def _oauth(self) -> JsonObject | None:
        client, file, scope, issuer = self.oauth
        if self.oauth == (None, None, None, None):
            return None
        if client is None or file is None:
            raise BadRequest("an OAuth client is named by --oauth-client-id ID and --oauth-client-secret-file FILE")
        secret = str(file.absolute())
        return {"client_id": client, "client_secret_file": secret, "scope": scope, "issuer": issuer}


def file_of(session: Session, servers: Path | None) -> ServerFile:
    """The file of servers that a command works on."""
    if servers is not None:
        return ServerFile(servers.absolute())
    data = session.options.data or find_data(None) or DEFAULT_DATA
    return ServerFile(data.absolute() / FILE)


def entry_of(file: ServerFile, name: str) -> McpServer:
    """The server of this name; raises `BadRequest`."""
    servers = file.read()
    if name not in servers:
        raise BadRequest(f"{file.path} has no MCP server {name}; it has {', '.join(servers) or 'none'}")
    return servers[name]


async def listing_of(session: Session, name: str, entry: McpServer) -> Listing:
    """The tools of a server; raises `McpUnavailable`, and prints what its program wrote."""
    return (await _met(session, name, entry))[1]


async def _met(session: Session, name: str, entry: McpServer) -> tuple[McpServer, Listing]:
    """A server's entry with what was found out about it, and its tools; raises as `listing_of` does."""
    try:
        async with connected(name, entry, os.environ) as connection:
            return connection.entry, await connection.listing()
    except McpUnavailable as error:
        if error.said:
            session.out.remark(f"{name} said:\n{clean(error.said)}")
        raise


async def add_server(session: Session, servers: Path | None, name: str, options: Wanted) -> None:
    """`turnstile mcp add`."""
    file, entry = file_of(session, servers), options.entry()
    server_name(name)
    if entry.tools is not None:
        entry = entry.model_copy(update={"tools": tuple(tool_key(name, tool) for tool in entry.tools)})
    before = file.read().get(name)
    if before is not None:
        entry = entry.model_copy(update={"pins": before.pins})
    entry, listing = await _met(session, name, entry)
    chosen = {tool: spec for tool, spec in listing.tools.items() if entry.allows(tool)}
    if missing := sorted(set(entry.tools or ()) - set(chosen)):
        raise BadRequest(f"{name} has no tool {', '.join(missing)} that can be used")
    async with session.bridge() as client:
        await session.await_bridge(client)
        await _put(client, name, entry, chosen.values())
        await _remove(client, name, set(entry.pins.get(session.project, {})) - set(chosen))
    file.put(name, entry.with_pins(session.project, {tool: spec.digest for tool, spec in chosen.items()}))
    _told(session, name, entry, chosen, listing.left_out)


async def accept_tools(session: Session, servers: Path | None, name: str, tools: Collection[str]) -> None:
    """`turnstile mcp accept`."""
    file = file_of(session, servers)
    entry = entry_of(file, name)
    listing = await listing_of(session, name, entry)
    offered = {tool: spec for tool, spec in listing.tools.items() if entry.allows(tool)}
    pins = dict(entry.pins.get(session.project, {}))
    tools = [tool_key(name, tool) for tool in tools]
    if unknown := sorted(set(tools) - set(offered) - set(pins)):
        raise BadRequest(f"{name} has no tool {', '.join(unknown)} that can be used")
    named = set(tools) or {*offered, *pins}
    chosen = {tool: spec for tool, spec in offered.items() if tool in named}
    gone = named - set(chosen)
    rows = await rows_of(session)
    async with session.bridge() as client:
        changes = {tool: changes_of(rows.get(row_name(name, tool)), spec, name, entry) for tool, spec in chosen.items()}
        await _put(client, name, entry, chosen.values())
        await _remove(client, name, gone)
    kept = {tool: pin for tool, pin in pins.items() if tool not in gone}
    file.put(name, entry.with_pins(session.project, kept | {tool: spec.digest for tool, spec in chosen.items()}))
    document: JsonObject = {"server": name, "accepted": [*chosen], "removed": [*sorted(gone)], "changes": {**changes}}
    session.out.result(document, "\n".join(_changed_lines(name, changes, gone)) or f"{name} has no tools")


async def remove_server(session: Session, servers: Path | None, name: str) -> None:
    """`turnstile mcp remove`."""
    file = file_of(session, servers)
    entry = entry_of(file, name)
    async with session.bridge() as client:
        await session.await_bridge(client)
        removed = sorted(entry.pins.get(session.project, {}))
        await _remove(client, name, removed)
    left = entry.with_pins(session.project, {})
    if left.pins:
        file.put(name, left)
    else:
        file.remove(name)
    stays = f"; the server stays for {', '.join(left.pins)}" if left.pins else ""
    document: JsonObject = {"server": name, "removed": [*removed], "projects": [*left.pins]}
    session.out.result(document, f"{name}: {len(removed)} tools removed from {session.project}{stays}")


async def rows_of(session: Session) -> dict[str, ToolRow]:
    """The project's tools by name."""
    rows = await session.listed(verbs.TOOL_LIST, lambda reply: (reply.tools, reply.next))
    return {row.tool_name: row for row in rows}


def changes_of(row: ToolRow | None, now: RemoteTool, server: str, entry: McpServer) -> JsonObject:
    """What a tool's row says, and would say, where that differs; empty if it does not."""
    after = now.definition(server, entry).model_dump(mode="json", exclude_defaults=True)
    before: Mapping[str, JsonValue] = {} if row is None else row.model_dump(mode="json", exclude_defaults=True)
    named = sorted({*before, *after} - {"tool_name", "after_execution"})
    return {
        key: {"before": before.get(key), "after": after.get(key)} for key in named if before.get(key) != after.get(key)
    }


async def _put(client: BridgeClient, name: str, entry: McpServer, tools: Collection[RemoteTool]) -> None:
    for tool in tools:
        await client.call(verbs.TOOL_PUT, ToolPutRequest(tool=tool.definition(name, entry)))


async def _remove(client: BridgeClient, name: str, tools: Collection[str]) -> None:
    for tool in tools:
        try:
            request = ToolRemoveRequest(tool_name=row_name(name, tool))
            await client.call(verbs.TOOL_REMOVE, request)
        except Refused as error:
            if error.code != "unknown_tool":
                raise


def _told(
    session: Session, name: str, entry: McpServer, tools: Mapping[str, RemoteTool], left_out: Mapping[str, str]
) -> None:
    document: JsonObject = {"server": name, "tools": [row_name(name, tool) for tool in tools], "left_out": {**left_out}}
    lines = [f"MCP server {name}: {len(tools)} tools"]
    for tool, spec in tools.items():
        again = "" if spec.repeatable or entry.repeat == "unsafe" else "  (may do something twice: --repeat)"
        original = "" if spec.called == tool else f"  ({clean(spec.called)} at the server)"
        lines.append(f"  {row_name(name, tool)}{original}  {clean(spec.description.splitlines()[0])[:80]}{again}")
    lines += [f"  left out: {tool}: {clean(reason)}" for tool, reason in left_out.items()]
    session.out.result(document, "\n".join(lines))


def _changed_lines(name: str, changes: Mapping[str, JsonObject], gone: Collection[str]) -> list[str]:
    lines: list[str] = []
    for tool, changed in changes.items():
        lines.append(f"{row_name(name, tool)}: {'accepted anew' if changed else 'as before'}")
        for key, change in changed.items():
            match change:
                case {"before": before, "after": after}:
                    lines += [f"  {key}", f"  - {_shown(before)}", f"  + {_shown(after)}"]
                case _:
                    pass
    return [*lines, *(f"{row_name(name, tool)}: gone, and removed" for tool in sorted(gone))]


def _shown(value: JsonValue) -> str:
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, sort_keys=True))
