"""Finds agents and turns named on the command line; raises `Refused` with the protocol's code if there is none."""

import re
from typing import TYPE_CHECKING

from turnstile.cli.session import Session
from turnstile.ledger.turns.views import describe_turn, find_turns
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

_WHOLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CANDIDATES = 5
"""Turns listed in the error if the beginning of an id fits several."""


async def has_agent(pool: "Pool", project: ProjectId, agent: AgentId) -> bool:
    """Whether the project has such an agent."""
    from turnstile.ledger.roster import list_agents  # noqa: PLC0415 -- needs the extra [server]

    return any(row.agent_id == agent for row in await list_agents(pool, project))


async def require_agent(pool: "Pool", project: ProjectId, agent: AgentId | None) -> None:
    """Raise `Refused` (`unknown_agent`) if an agent is given that the project does not have."""
    if agent is not None and not await has_agent(pool, project, agent):
        raise Refused("unknown_agent", f"project {project} has no agent {agent!r}")


async def find_turn(pool: "Pool", project: ProjectId, turn: str) -> TurnView | None:
    """The turn with this id, or the only one whose id begins with it; None if there is none.

    Raises `Refused` (`ambiguous_turn`) if several ids begin with it.
    """
    exact = await pool.run(lambda conn: describe_turn(conn, project, AgentTurnId(turn)))
    if exact is not None or not turn:
        return exact
    turns = await pool.run(lambda conn: find_turns(conn, project, turn, row_limit=_CANDIDATES + 1))
    if len(turns) > 1:
        candidates = [*turns[:_CANDIDATES], *(["…"] if len(turns) > _CANDIDATES else [])]
        raise Refused("ambiguous_turn", "\n".join((f"several turns begin with {turn!r}", *candidates)))
    return await pool.run(lambda conn: describe_turn(conn, project, turns[0])) if turns else None


async def require_turn(pool: "Pool", project: ProjectId, turn: str) -> TurnView:
    """Like `find_turn`, but raises `Refused` (`unknown_turn`) if there is none."""
    view = await find_turn(pool, project, turn)
    if view is None:
        raise Refused("unknown_turn", f"project {project} has no turn {turn!r}")
    return view


async def turn_of_client(session: Session, client: Client, turn: str) -> Turn | None:
    """The turn with this whole id, without the ledger; None if the id is shortened or unknown."""
    if not _WHOLE.fullmatch(turn):
        return None
    try:
        return await session.patiently(lambda: client.turn(turn))
    except Refused as error:
        if error.code != "unknown_turn":
            raise
        return None


async def require_of_client(session: Session, client: Client, turn: str) -> Turn:
    """Like `turn_of_client`, but raises `Refused` (`unknown_turn`) if there is none."""
    view = await turn_of_client(session, client, turn)
    if view is None:
        raise Refused("unknown_turn", f"there is no turn {turn!r}; over a gateway it is found by its whole id")
    return view


async def whole_id(session: Session, turn: str) -> str:
    """The whole id of the turn, for a client; only a shortened id needs the ledger.

    Raises as `require_turn` does.
    """
    if _WHOLE.fullmatch(turn) or session.gateway is not None:
        return turn
    async with session.ledger() as pool:
        return (await require_turn(pool, session.project, turn)).agent_turn_id
