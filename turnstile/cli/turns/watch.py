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
    from turnstile.cli.turns.lookup import require_of_client, turn_of_client
    from turnstile.cli.turns.watching import find_turn_or_agent, watch_agent, watch_turn
    from turnstile.schema.ids import AgentId

    async with session.client() as client:
        turn = await (turn_of_client if session.gateway is None else require_of_client)(session, client, target)
        watched = await find_turn_or_agent(session, client, target) if turn is None else (client, turn)
        if watched is not None:
            await watch_turn(session, *watched)
            return
    await watch_agent(session, AgentId(target))
