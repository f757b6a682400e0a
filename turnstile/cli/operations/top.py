"""`turnstile top`: the system's status, live."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


async def top(
    session: "Session",
    once: Annotated[bool, typer.Option("--once", help="Show the status once and exit.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.2, max=3600)] = 2.0,
) -> None:
    """Show agents, inbox, the turns of the last minute, repairs, workers, threads and limited models of all projects.

    q or Ctrl-C ends it. With --json each update is one line, with --once --json one document.
    """
    from turnstile.cli.operations.status_screen import watch_status
    from turnstile.ledger.operations.monitor import look_around

    async with session.ledger() as pool:
        if once and session.out.as_json:
            session.out.document(await pool.run(look_around))
        else:
            await watch_status(session, pool, interval, once=once)
