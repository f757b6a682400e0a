"""`turnstile listeners`: the listeners of the message pump, their peers and the XML schemas of their payloads."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


async def listeners(
    session: "Session",
    xsd: Annotated[
        str | None, typer.Option("--xsd", help="Print the XML schema (XSD) of this listener's payload.", metavar="NAME")
    ] = None,
) -> None:
    """List the listeners that workers have declared, with their peers and how many live workers have each."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.inbox import ListenerListRequest
    from turnstile.sdk.requests import parse_request

    request = parse_request(ListenerListRequest, {"listener": xsd, "xsd": session.out.as_json})
    rows = (await session.change(verbs.LISTENER_LIST, request)).listeners
    if xsd is None:
        session.out.records(
            f"listeners of {session.settings.pump.worker_target}",
            rows,
            {
                "name": lambda row: row.listener,
                "handled by": lambda row: f"agent {row.agent_id}" if row.agent_id else "handler",
                "takes": lambda row: row.root_tag,
                "peers": lambda row: ", ".join(row.peers) if row.is_agent else "any",
                "workers": lambda row: row.workers,
                "description": lambda row: row.description,
            },
            cut="description",
        )
        return
    session.out.result(rows[0], (rows[0].xsd or "").rstrip())
