"""`turnstile mcp`: MCP servers as tools: add, list, test, accept and remove them, and serve their calls."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()

_Name = Annotated[str, typer.Argument(help="The server's name: letters, digits, - and single _.", metavar="NAME")]
_File = Annotated[
    Path | None,
    typer.Option("--servers", help="The file of servers, instead of mcp.yaml in the data directory.", metavar="FILE"),
]


@command(app, "add", project=True, channel=True)
async def add(
    session: "Session",
    name: _Name,
    program: Annotated[
        list[str] | None, typer.Argument(help="The program and its arguments, after --.", metavar="[-- COMMAND ARG...]")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of a server over HTTP.", metavar="URL")] = None,
    oauth_client_id: Annotated[
        str | None, typer.Option(help="With --url: the id of this host's OAuth client.", metavar="ID")
    ] = None,
    oauth_client_secret_file: Annotated[
        Path | None, typer.Option(help="File with the OAuth client's secret.", metavar="FILE")
    ] = None,
    oauth_scope: Annotated[
        str | None, typer.Option(help="Scope of the token; by default the one that the server names.", metavar="SCOPE")
    ] = None,
    oauth_issuer: Annotated[
        str | None,
        typer.Option(help="Authorization server that gets the secret; by default the server's own.", metavar="URL"),
    ] = None,
    transport: Annotated[
        str | None, typer.Option(help="With --url: http, or sse (HTTP+SSE of 2024-11-05). By default it is detected.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Protocol revision; by default the newest that both sides support.", metavar="DATE"),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="An environment variable to pass on; may be repeated.", metavar="NAME")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="A header whose value is in an environment variable; may be repeated.", metavar="HEADER=env:NAME"
        ),
    ] = None,
    tool: Annotated[list[str] | None, typer.Option(help="A tool to add, by default all; may be repeated.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a call may take.")] = 60.0,
    concurrency: Annotated[int, typer.Option(help="How many calls may run at once.")] = 8,
    repeat: Annotated[
        str, typer.Option(help="May a call be sent again: safe, unsafe, or hints (as the server says).")
    ] = "safe",
    servers: _File = None,
) -> None:
    """Add a server: connect to it, show its tools, and add each to the project as NAME__TOOL."""
    from turnstile.cli.mcp.server_changes import Wanted, add_server

    options = Wanted(
        command=program or [],
        url=url,
        oauth=(oauth_client_id, oauth_client_secret_file, oauth_scope, oauth_issuer),
        transport=transport,
        protocol=protocol,
        env=env or [],
        headers=header or [],
        tools=tool,
        timeout=timeout,
        concurrency=concurrency,
        repeat=repeat,
    )
    await add_server(session, servers, name, options)


@command(app, "list", project=True, channel=True)
async def show(
    session: "Session",
    servers: _File = None,
    check: Annotated[bool, typer.Option(help="Also ask each server for its tools.")] = True,
) -> None:
    """List the servers, and for each tool whether it is as accepted, changed, gone or new."""
    from turnstile.cli.mcp.server_report import list_servers

    await list_servers(session, servers, check=check)


@command(app, "test")
async def try_server(
    session: "Session",
    name: _Name,
    tool: Annotated[str | None, typer.Argument(help="A tool to call.")] = None,
    arguments: Annotated[str, typer.Argument(help="Its arguments, as a JSON object.")] = "{}",
    servers: _File = None,
) -> None:
    """Connect to a server and list its tools, or call one of them; nothing is stored."""
    from turnstile.cli.mcp.server_report import test_server

    await test_server(session, servers, name, tool, arguments)


@command(app, "accept", project=True, channel=True)
async def accept(
    session: "Session",
    name: _Name,
    tools: Annotated[list[str] | None, typer.Argument(help="Only these tools.", metavar="[TOOL...]")] = None,
    servers: _File = None,
) -> None:
    """Accept the tools of a server as they are now, and show what has changed."""
    from turnstile.cli.mcp.server_changes import accept_tools

    await accept_tools(session, servers, name, tools or [])


@command(app, "remove", project=True, channel=True)
async def remove(session: "Session", name: _Name, servers: _File = None) -> None:
    """Remove a server's tools from the project, and the server itself if no other project has accepted any."""
    from turnstile.cli.mcp.server_changes import remove_server

    await remove_server(session, servers, name)


@command(app, "serve", project=True, serves=True)
async def serve(
    session: "Session",
    names: Annotated[list[str] | None, typer.Argument(help="Only these servers.", metavar="[NAME...]")] = None,
    servers: _File = None,
) -> None:
    """Run the servers' tools until Ctrl-C, including those of servers that are added meanwhile."""
    from turnstile.cli.mcp.server_changes import file_of
    from turnstile.processes.mcp.tool_processes import McpProcess

    project = None if session.options.project is None else session.project
    process = McpProcess(file_of(session, servers).path, session.nats_url(), names or (), project)
    await process.run(session.stop, lambda name: session.out.remark(f"the tools of {name} are served"))
