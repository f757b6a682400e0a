"""`agent memory`: shows an agent's memory box from the ledger, and sets it by the bridge."""

from dataclasses import dataclass

from turnstile.cli.session import HEADERS, Session
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.box_requests import BoxForkReply, BoxForkRequest, BoxReplaceReply, BoxReplaceRequest
from turnstile.sdk.requests import parse_request


@dataclass(frozen=True, slots=True)
class Memory:
    """The arguments of `agent memory`."""

    agent: str
    box: str | None
    fork: bool
    forget: bool

    def check(self) -> None:
        """Raises `BadRequest` for options that exclude each other."""
        if self.forget and self.box is not None:
            raise BadRequest("either a box or --forget")
        if self.fork and self.box is None:
            raise BadRequest("--fork needs the box to copy")


async def show_memory(session: Session, agent: str) -> None:
    """Print the boxes that the agent's pointers name; raises `Refused` for an unknown agent."""
    from turnstile.ledger.turns.boxes import agent_boxes  # noqa: PLC0415 -- needs the extra [server]

    async with session.ledger() as pool:
        boxes = await pool.run(lambda conn: agent_boxes(conn, session.project, AgentId(agent)))
    if session.out.as_json:
        session.out.document(boxes)
        return
    session.out.line(f"memory       {boxes.memory_context_box_id or 'none'}")
    session.out.line(f"last output  {boxes.last_output_box_id or 'none'}")


async def set_memory(session: Session, memory: Memory) -> None:
    """Set or remove the agent's memory.

    Raises `Refused` with the bridge's code, `NoBridge` or `ServerUnavailable`.
    """
    async with session.bridge() as client:
        await session.await_bridge(client)
        box = memory.box
        if memory.fork:
            fork = parse_request(BoxForkRequest, {"box_id": box})
            box = (await client.request_as("box_fork", fork, BoxForkReply, headers=HEADERS)).box_id
        replace = parse_request(BoxReplaceRequest, {"agent_id": memory.agent, "memory_context_box_id": box})
        now = await client.request_as("box_replace", replace, BoxReplaceReply, headers=HEADERS)
    if session.out.as_json:
        session.out.document(now)
    elif now.memory_context_box_id is None:
        session.out.line(f"agent {memory.agent} has no memory any more")
    else:
        session.out.line(f"agent {memory.agent} remembers box {now.memory_context_box_id}")
