"""`agent pause`, `resume` and `retire`: asked of the bridge, which rings for the turns that a resumed agent takes."""

from typing import Literal

from turnstile.cli.session import Session
from turnstile.cli.turns.box_options import await_bridge, request_verb
from turnstile.schema.wire.roster_requests import AgentRequest, AgentStatusReply

_DONE = {
    "pause": "is paused: its turn in hand goes on, and what waits stays queued",
    "resume": "is active",
    "retire": "is retired: it takes no request, and what waits still runs",
}


async def set_status(session: Session, action: Literal["pause", "resume", "retire"], agent: str) -> None:
    """Set the agent's status; raises `Refused` with the bridge's code, `NoBridge` or `ServerUnavailable`."""
    async with session.bridge() as client:
        await await_bridge(session, client)
        given = {"agent_id": agent}
        done = await request_verb(client, f"agent.{action}", AgentRequest, {**given}, AgentStatusReply)
    if session.out.as_json:
        session.out.document(done)
    else:
        session.out.line(f"agent {agent} {_DONE[action]}{', as before' if done.duplicate else ''}")
