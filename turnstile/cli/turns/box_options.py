"""`agent memory`: shows an agent's memory box from the ledger, and sets it by the bridge."""

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from turnstile.cli.errors import NoBridge
from turnstile.cli.session import Session, patiently
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, ServerUnavailable
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.box_requests import (
    BoxForkReply,
    BoxForkRequest,
    BoxReplaceReply,
    BoxReplaceRequest,
)
from turnstile.schema.wire.inbox import Reply
from turnstile.sdk.client import BridgeClient, raise_unless_accepted
from turnstile.sdk.requests import parse_request

_SENDER = "turnstile.cli"
Answer = TypeVar("Answer", bound=Reply)


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
        await _await_bridge(session, client)
        box = memory.box
        if memory.fork:
            forked = await _request(client, "box_fork", BoxForkRequest, {"box_id": box}, BoxForkReply)
            box = forked.box_id
        arguments: JsonObject = {"agent_id": memory.agent, "memory_context_box_id": box}
        now = await _request(client, "box_replace", BoxReplaceRequest, arguments, BoxReplaceReply)
    if session.out.as_json:
        session.out.document(now)
    elif now.memory_context_box_id is None:
        session.out.line(f"agent {memory.agent} has no memory any more")
    else:
        session.out.line(f"agent {memory.agent} remembers box {now.memory_context_box_id}")


async def _await_bridge(session: Session, client: BridgeClient) -> None:
    try:
        patience = session.settings.nats.patience_seconds
        await patiently(lambda: client.request("describe", {}), patience, session.out.remark)
    except ServerUnavailable as error:
        raise NoBridge(str(error)) from None


async def _request(
    client: BridgeClient, verb: str, form: type[BaseModel], arguments: JsonObject, reply: type[Answer]
) -> Answer:
    """The bridge's reply to a verb; raises `BadRequest` for invalid arguments, and `Refused` with its code."""
    request = parse_request(form, arguments)
    answer = reply.model_validate(await client.request(verb, request, headers={"CG-Sender": _SENDER}))
    raise_unless_accepted(answer)
    return answer
