"""Server-sent events as bytes. Pure."""

from pydantic import BaseModel

from turnstile.gateway.events.positions import Position
from turnstile.schema.ids import AgentTurnId, StepId
from turnstile.schema.wire.events import Chunk

HEARTBEAT = b": still here\n\n"
COME_BACK = b"retry: 500\nevent: reconnect\ndata: {}\n\n"
"""The stream ends here, and the turn does not: ask again, with the last id."""


class ResetEvent(BaseModel):
    """The text of a step as it was streamed is void; its cards follow."""

    step_id: StepId


class StepDone(BaseModel):
    """A step is over: its cards came before this."""

    step_id: StepId
    status: str
    finish_reason: str | None


class StateChange(BaseModel):
    """Where the turn stands."""

    agent_turn_id: AgentTurnId
    status: str


def frame(kind: str, data: BaseModel, event_id: str | None = None) -> bytes:
    """One event. JSON has no line breaks of its own, so the data is one line."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {kind}\ndata: {data.model_dump_json(exclude_none=True)}\n\n".encode("utf-8", "replace")


def chunk_frame(chunk: Chunk, position: Position) -> bytes:
    """The event of a chunk."""
    return frame("chunk", chunk, position.id(chunk.agent_turn_id))
