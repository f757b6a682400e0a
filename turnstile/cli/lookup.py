"""Names from the command line, looked up in the ledger; what is not there is `Refused` with the protocol's code."""

from ledger.pool import Pool
from ledger.roster import list_agents
from ledger.views import describe_turn
from schema.described import TurnView
from schema.errors import Refused
from schema.ids import AgentId, AgentTurnId, ProjectId


async def require_agent(pool: Pool, project: ProjectId, agent: AgentId) -> None:
    """Raise `Refused` (`unknown_agent`) if the project has no such agent."""
    if all(row.agent_id != agent for row in await list_agents(pool, project)):
        raise Refused("unknown_agent", f"project {project} has no agent {agent!r}")


async def find_turn(pool: Pool, project: ProjectId, turn: AgentTurnId) -> TurnView | None:
    """The turn, if the project has it."""
    return await pool.run(lambda conn: describe_turn(conn, project, turn))


async def require_turn(pool: Pool, project: ProjectId, turn: AgentTurnId) -> TurnView:
    """The turn; raises `Refused` (`unknown_turn`) if the project has none of this id."""
    view = await find_turn(pool, project, turn)
    if view is None:
        raise Refused("unknown_turn", f"project {project} has no turn {turn!r}")
    return view
