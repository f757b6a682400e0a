"""`agent pause`, `resume` and `retire`: asked of the bridge, which rings for the turns that a resumed agent takes."""

from typing import Literal

from turnstile.cli.session import Session
from turnstile.schema import verbs
from turnstile.schema.wire.roster_requests import AgentRequest
from turnstile.sdk.requests import parse_request

_DONE = {
    "pause": "is paused: its turn in hand goes on, and what waits stays queued",
    "resume": "is active",
    "retire": "is retired: it takes no request, and what waits still runs",
}
_VERBS = {"pause": verbs.AGENT_PAUSE, "resume": verbs.AGENT_RESUME, "retire": verbs.AGENT_RETIRE}


async def set_status(session: Session, action: Literal["pause", "resume", "retire"], agent: str) -> None:
    """Set the agent's status; raises `Refused` with the bridge's code, `NoBridge` or `ServerUnavailable`."""
    request = parse_request(AgentRequest, {"agent_id": agent})
    reply = await session.change(_VERBS[action], request)
    session.out.result(reply, f"agent {agent} {_DONE[action]}{', as before' if reply.duplicate else ''}")
