"""Deletions: a conversation, or an end user with all their turns, and everything that only they reach (protocol §6).

Guarantees: from the commit of a request on nothing new of what it names is admitted (`being_deleted`). Then any bridge
works on it, a bounded piece a transaction: turns that run are stopped first, and what ended goes as retention removes
it. A killed bridge leaves a state from which the next one goes on, and nobody sees half a turn. When it is done, its
row names nobody. Never deletes what others reach: a box that another turn names, and the cards in it.
"""

from typing import Final, Literal

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ConversationId, ProjectId, uuid7
from turnstile.schema.wire.deletion_requests import Deletion

ROWS: Final = 100
"""Turns or boxes that one transaction removes."""
_REFUSALS: Final = {
    "unknown_conversation": "the channel has no such conversation",
    "unknown_end_user": "no turn of the project is of this end user",
    "conversation_changed": "the conversation has a later turn than the one that was seen: look at it again",
    "ambiguous": "several agents have a conversation with this id: send agent_id",
}


class RequestedDeletion(Tolerant):
    """A deletion that was requested, and whether one of the same was running."""

    verdict: str
    deletion_id: str


class RunningDeletion(Tolerant):
    """A deletion that is not done."""

    deletion_id: str
    project_id: ProjectId


class AdvancedDeletion(Tolerant):
    """How far a deletion came with a piece of work, and the turns that must end before it goes on."""

    phase: Literal["over", "waits", "stops", "removes", "done"]
    live: tuple[AgentTurnId, ...]


class TextFound(Tolerant):
    """A table with rows that hold a text, and their number."""

    table_name: str
    found: int


async def request_deletion(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    caller: str,
    *,
    conversation: ConversationId | None = None,
    agent: AgentId | None = None,
    seen: AgentTurnId | None = None,
    end_user: str | None = None,
) -> RequestedDeletion:
    """Begin to delete a conversation of the channel, or an end user of the project; a repeat finds the running one.

    `seen` is the last turn of the conversation that the caller knows. Raises `Refused` (unknown_conversation,
    unknown_end_user, conversation_changed, ambiguous).
    """
    requested = await query("request_deletion").one_as(
        conn,
        RequestedDeletion,
        project_id=project,
        channel_id=channel,
        conversation_id=conversation,
        agent_id=agent,
        seen_turn_id=seen,
        end_user=end_user,
        caller=caller,
        deletion_id=uuid7(),
    )
    if requested.verdict not in ("accepted", "duplicate"):
        raise Refused(requested.verdict, _REFUSALS[requested.verdict])
    return requested


async def list_running_deletions(conn: Connection, *, row_limit: int) -> list[RunningDeletion]:
    """Deletions that are not done, the one that was worked on longest ago first."""
    return await query("list_running_deletions").all_as(conn, RunningDeletion, row_limit=row_limit)


async def advance_deletion(conn: Connection, deletion: str, *, row_limit: int = ROWS) -> AdvancedDeletion:
    """Do the next piece of a deletion in one transaction; safe to run at once, and again."""
    return await query("advance_deletion").one_as(conn, AdvancedDeletion, deletion_id=deletion, row_limit=row_limit)


async def get_deletion(conn: Connection, project: ProjectId, deletion: str) -> Deletion | None:
    """A deletion of the project."""
    return await query("get_deletion").opt_as(conn, Deletion, project_id=project, deletion_id=deletion)


async def find_text(pool: Pool, project: ProjectId, text: str) -> list[TextFound]:
    """Every table of the catalogue in which a row of the project holds this text in any column; reads them whole."""
    return await pool.run(lambda conn: query("find_text").all_as(conn, TextFound, project_id=project, text=text))
