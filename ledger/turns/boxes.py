"""The verbs on boxes: `box_fork` and `box_replace` (protocol §6).

Guarantees: a fork copies its source's list at one moment, under an id by which a repeat finds it. Pointers are set only
to boxes of the agent's project that no other agent's turn writes at that moment; a later turn of another agent may
still write them, since pointers are outside the gate. Both lock the boxes they name, so retention cannot remove them
meanwhile. One round trip each.
"""

from turnstile.ledger.queries import Again, Connection, query
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, BoxId, ProjectId
from turnstile.schema.wire.box_requests import AgentBoxes, BoxReplaceRequest

_REFUSALS = {
    "correlation_conflict": "this correlation_id was used before, for another box",
    "unknown_box": "box_id names no box of this project",
    "unknown_agent": "the project has no such agent: add it first",
    "unknown_context_box": "memory_context_box_id names no box of this project",
    "unknown_output_box": "last_output_box_id names no box of this project",
    "output_box_busy": "a turn of another agent is writing the box: fork it, or wait for its end",
}


async def fork_box(conn: Connection, project: ProjectId, source: BoxId, new_box: BoxId) -> bool:
    """Make `new_box` a copy of the project's box `source`; returns False if an earlier fork made it.

    Raises `Refused` (correlation_conflict, unknown_box), or `Again`.
    """
    row = await query("fork_box").one(conn, project_id=project, box_id=source, new_box_id=new_box)
    match row["verdict"]:
        case "accepted" | "duplicate" as verdict:
            return verdict == "accepted"
        case "again":
            raise Again
        case refusal:
            raise Refused(refusal, _REFUSALS[refusal])


async def replace_boxes(conn: Connection, project: ProjectId, wanted: BoxReplaceRequest) -> AgentBoxes:
    """Set the pointers that `wanted` names; returns both.

    Raises `Refused` (unknown_agent, unknown_context_box, unknown_output_box, output_box_busy).
    """
    row = await query("replace_boxes").one(
        conn,
        project_id=project,
        agent_id=wanted.agent_id,
        memory_box_id=wanted.memory_context_box_id,
        output_box_id=wanted.last_output_box_id,
        sets_memory="memory_context_box_id" in wanted.model_fields_set,
    )
    if (verdict := row["verdict"]) != "accepted":
        raise Refused(verdict, _REFUSALS[verdict])
    return AgentBoxes.model_validate(dict(row))


async def agent_boxes(conn: Connection, project: ProjectId, agent: AgentId) -> AgentBoxes:
    """The boxes that the agent's pointers name; raises `Refused` (unknown_agent)."""
    row = await query("agent_boxes").opt(conn, project_id=project, agent_id=agent)
    if row is None:
        raise Refused("unknown_agent", _REFUSALS["unknown_agent"])
    return AgentBoxes.model_validate(dict(row))
