"""`turnstile listeners`: the listeners of the message pump, their peers and the XML schemas of their payloads."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session


def register(app: typer.Typer) -> None:
    """Add the command to the program's."""

    @command(app, "listeners")
    async def listeners(  # pyright: ignore[reportUnusedFunction] -- typer calls it
        session: "Session",
        xsd: Annotated[
            str | None, typer.Option("--xsd", help="Print the XSD of what this listener takes.", metavar="NAME")
        ] = None,
    ) -> None:
        """List the listeners that workers have declared, with their peers and how many live workers have each."""
        from turnstile.ledger.pump.thread_views import list_listeners
        from turnstile.schema.errors import Refused

        async with session.ledger() as pool:
            target = session.settings.pump.worker_target
            rows = await pool.run(lambda conn: list_listeners(conn, target, name=xsd, with_xsd=session.out.as_json))
        if xsd is None:
            session.out.records(
                f"listeners of {target}",
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
        if not rows:
            raise Refused("unknown_listener", f"no worker of {target} has declared a listener {xsd!r}")
        if session.out.as_json:
            session.out.document(rows[0])
        else:
            session.out.line((rows[0].xsd or "").rstrip())
