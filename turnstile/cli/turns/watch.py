"""`turnstile watch`: prints the events of an agent or a turn live."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


async def watch(
    session: "Session",
    target: Annotated[
        str, typer.Argument(help="An agent (watched until Ctrl-C), or a turn (until it ends).", metavar="AGENT|TURN")
    ],
) -> None:
    """Print streamed text and events live. With --json every event is one line.

    Through a gateway only turns can be watched, and only their text is shown. Watching an agent needs NATS.
    """
    from turnstile.cli.turns.lookup import find_turn, has_agent, require_agent, require_of_client, turn_of_client
    from turnstile.cli.turns.watching import watch_agent, watch_by_client, watch_turn
    from turnstile.schema.ids import AgentId

    agent = AgentId(target)
    async with session.ledger_beside_client() as pool:
        if pool is None:
            async with session.client() as client:
                find = turn_of_client if session.gateway is None else require_of_client
                if (view := await find(session, client, target)) is not None:
                    await watch_by_client(session, client, view)
                    return
        elif not await has_agent(pool, session.project, agent):
            if (turn := await find_turn(pool, session.project, target)) is not None:
                await watch_turn(session, pool, turn)
                return
            await require_agent(pool, session.project, agent)
    await watch_agent(session, agent)
