"""`turnstile watch`: prints the events of an agent or a turn live."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from turnstile.cli.session import Session


async def watch(
    session: "Session",
    target: Annotated[
        str, typer.Argument(help="An agent, until Ctrl-C, or a turn, until it ends.", metavar="AGENT|TURN")
    ],
) -> None:
    """Print streamed text and events live. With --json every event is one line."""
    from turnstile.cli.turns.lookup import described_turn, find_turn, has_agent, require_agent
    from turnstile.cli.turns.watching import watch_agent, watch_turn
    from turnstile.schema.ids import AgentId

    agent = AgentId(target)
    async with session.ledger_if_installed() as pool:
        if pool is None:
            turn = await described_turn(session, target)
        elif await has_agent(pool, session.project, agent):
            turn = None
        elif (turn := await find_turn(pool, session.project, target)) is None:
            await require_agent(pool, session.project, agent)
        if turn is not None:
            await watch_turn(session, pool, turn)
            return
    await watch_agent(session, agent)
