"""Listeners that are agents, and a handler between them; the agents' answers are in their first message.

Each agent's model is the script `actor` (`tests/e2e/scripts/actors.py`); `play` writes what it will say.
"""

import asyncio
import html
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tests.support.processes.stack import SCRIPTS
from tests.support.pump.organism import note
from tests.support.pump.pump import Heard
from tests.support.tenants import Tenant
from tests.support.tools import calling
from turnstile.ledger.roster import add_agent
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId
from turnstile.schema.pump.listeners import Listener, listener
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse, SystemErrorMessage

TROUPE = "tests.support.pump.troupe"
ACTORS = (*SCRIPTS, SCRIPTS[0] / "actors.py")


class Brief(Payload, tag="brief"):
    """What `alice` is to do."""

    play: str


class Note(Payload, tag="note"):
    """The same for `bob`."""

    play: str


class Memo(Payload, tag="memo"):
    """The same for `carol`."""

    play: str


class Wisp(Payload, tag="wisp"):
    """For nobody."""

    play: str


class Verdict(Payload, tag="verdict"):
    """What `bob` responds with; a text alone does not fit."""

    said: str
    score: int


class Job(Payload, tag="job"):
    """What `broker` gives on; or, with a `gate`, it waits for that file and responds."""

    to: Literal["alice", "bob", "carol"] = "bob"
    play: str = ""
    gate: str = ""


class Brokered(Payload, tag="brokered"):
    """What came of it."""

    said: str


_FOR: dict[str, type[Brief | Note | Memo]] = {"alice": Brief, "bob": Note, "carol": Memo}


@listener("broker", payload=Job, description="Gives on.", answers=[Brokered], deadline_seconds=30)
async def broker(payload: Payload, metadata: HandlerMetadata) -> HandlerResponse | None:
    """A plain handler between agents."""
    match payload:
        case Job(gate="", to=to, play=told):
            note(f"broker to {to}")
            return HandlerResponse(_FOR[to](play=told), to=to)
        case Job(gate=gate):
            Path(gate).with_suffix(".begun").touch()
            while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 -- the test makes it
                await asyncio.sleep(0.01)
            return HandlerResponse.respond(Brokered(said="gate"))
        case Verdict(said=said, score=score):
            return HandlerResponse.respond(Brokered(said=f"{metadata.from_id} said {said} ({score})"))
        case SystemErrorMessage(code=code):
            return HandlerResponse.respond(Brokered(said=f"{metadata.from_id} {code}"))
        case _:
            return HandlerResponse.respond(Brokered(said=f"{metadata.from_id} said {payload.model_dump_json()}"))


def _agent(name: str, payload: type[Payload], *peers: str, **fields: Any) -> Listener:
    known: dict[str, Any] = {"agent_id": AgentId(name), "description": f"The agent {name}.", "deadline_seconds": 30.0}
    return Listener(name=name, payload=payload, agent=True, peers=peers, **{**known, **fields})


alice = _agent("alice", Brief, "alice", "bob", "carol", "clerk", "broker", "ghost")
bob = _agent("bob", Note, "alice", "clerk", answers=(Verdict,))
carol = _agent("carol", Memo, "clerk", deadline_seconds=1.5)
ghost = _agent("ghost", Wisp, agent_id=AgentId("nobody"))


async def hire(tenant: Tenant, *names: str, model: str = "actor", **profile: Any) -> None:
    """These agents are on the roster of the tenant, each with a profile of its own, which is put anew."""
    for name in names:
        fields: dict[str, Any] = {"allowed_tools": [], **profile}
        await tenant.profile(f"{name}-profile", model, **fields)
        with suppress(Refused):  # it is there already
            await add_agent(tenant.pool, tenant.project, AgentId(name), f"{name}-profile")


def play(*turns: JsonObject | list[JsonObject]) -> str:
    """What an agent says: a line a turn, or several where a turn has several steps."""
    return json.dumps([turn if isinstance(turn, list) else [turn] for turn in turns])


def send(peer: str, **arguments: Any) -> JsonObject:
    """The line that sends a payload to a peer."""
    return calling((f"send_{peer}", arguments))


def respond(text: str) -> JsonObject:
    """The line that responds, of an agent that responds with a text."""
    return calling(("respond", {"text": text}))


def verdict(said: str, score: int = 1) -> JsonObject:
    """The line by which `bob` responds."""
    return calling(("respond", {"said": said, "score": score}))


def think(reasoning: str) -> JsonObject:
    """The line that thinks again."""
    return calling(("think", {"reasoning": reasoning}))


def text_in(heard: Heard, tag: str = "text") -> str:
    """What the first element of this name in an answer says."""
    assert heard.payload is not None, heard.event
    assert f"<{tag}>" in heard.payload, heard.payload
    inside = heard.payload.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return html.unescape(inside)


def asked(heard: Heard, tag: str = "text") -> list[tuple[str, str]]:
    """The messages that a mirroring agent was asked with, without the system prompt."""
    shown = json.loads(text_in(heard, tag))
    return [(role, content) for role, content in shown["messages"] if role != "system"]
