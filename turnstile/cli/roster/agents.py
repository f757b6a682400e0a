"""`turnstile agent`: add, list, pause, resume, retire and remove agents, and show or set their memory."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from pydantic import JsonValue

    from turnstile.cli.session import Session

app = typer.Typer()
_DONE = {
    "pause": "is paused: its current turn goes on, and what waits stays queued",
    "resume": "is active",
    "retire": "is retired: it takes no request, and what waits still runs",
}


@command(app, "add", project=True)
async def add(
    session: "Session",
    agent: Annotated[str, typer.Argument(help="The agent's id: A-Z a-z 0-9 _ -.")],
    profile: Annotated[str, typer.Option(help="Name of its profile.")],
    target: Annotated[str | None, typer.Option(help="Worker target, instead of the profile's.")] = None,
    display_name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.")] = None,
) -> None:
    """Add an agent to the project."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.roster_requests import AgentPutRequest
    from turnstile.sdk.requests import parse_request

    named: dict[str, JsonValue] = {"worker_target": target, "display_name": display_name, "tags": [*(tag or ())]}
    request = parse_request(AgentPutRequest, {**named, "agent_id": agent, "profile_name": profile, "only_new": True})
    reply = await session.change(verbs.AGENT_PUT, request)
    session.out.result(
        {"agent_id": agent, "profile_name": profile, "worker_target": reply.worker_target},
        f"agent {agent} added to {session.project}, served by workers of {reply.worker_target}",
    )


@command(app, "list", project=True)
async def show(session: "Session") -> None:
    """List the project's agents with their status."""
    from turnstile.schema import verbs

    rows = await session.listed(verbs.AGENT_LIST, lambda reply: (reply.agents, reply.next))
    session.out.records(
        f"agents of {session.project}",
        rows,
        {
            "agent": lambda row: row.agent_id,
            "profile": lambda row: row.profile_name,
            "worker target": lambda row: row.worker_target,
            "status": lambda row: row.head_status if row.status == "active" else row.status,
            "turn": lambda row: row.active_agent_turn_id,
            "epoch": lambda row: row.turn_epoch,
            "queued": lambda row: row.queued,
            "name": lambda row: row.display_name,
        },
    )


@command(app, "remove", project=True)
async def remove(session: "Session", agent: Annotated[str, typer.Argument(help="The agent's id.")]) -> None:
    """Remove an agent that has no live or queued turn. Its turns and cards stay, its memory is removed.

    It needs the database: no bridge may delete rows.
    """
    from turnstile.ledger.roster import remove_agent
    from turnstile.schema.ids import AgentId

    async with session.ledger() as pool:
        await pool.transact(lambda conn: remove_agent(conn, session.project, AgentId(agent)))
    session.out.result(
        {"agent_id": agent, "removed": True},
        f"agent {agent} removed from {session.project}; its turns stay until `turnstile prune`",
    )


@command(app, "pause", project=True, channel=True)
async def pause(session: "Session", agent: Annotated[str, typer.Argument(help="The agent's id.")]) -> None:
    """Keep an agent from starting turns. Its current turn continues; requests stay queued until `agent resume`."""
    await _set_status(session, "pause", agent)


@command(app, "resume", project=True, channel=True)
async def resume(session: "Session", agent: Annotated[str, typer.Argument(help="The agent's id.")]) -> None:
    """Make a paused or retired agent active again; it continues with its queued requests."""
    await _set_status(session, "resume", agent)


@command(app, "retire", project=True, channel=True)
async def retire(session: "Session", agent: Annotated[str, typer.Argument(help="The agent's id.")]) -> None:
    """Make an agent refuse new requests. Queued ones still run; `agent resume` makes it active again."""
    await _set_status(session, "retire", agent)


async def _set_status(session: "Session", action: Literal["pause", "resume", "retire"], agent: str) -> None:
    """Set it by a bridge, which rings for the turns that a resumed agent takes; raises as `Session.change`."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.roster_requests import AgentRequest
    from turnstile.sdk.requests import parse_request

    verb = {"pause": verbs.AGENT_PAUSE, "resume": verbs.AGENT_RESUME, "retire": verbs.AGENT_RETIRE}[action]
    reply = await session.change(verb, parse_request(AgentRequest, {"agent_id": agent}))
    session.out.result(reply, f"agent {agent} {_DONE[action]}{', as before' if reply.duplicate else ''}")


@command(app, "memory", project=True)
async def memory(
    session: "Session",
    agent: Annotated[str, typer.Argument(help="The agent's id.")],
    box: Annotated[
        str | None, typer.Argument(help="Box (uuid) to set as the memory; without it the memory is shown.")
    ] = None,
    fork: Annotated[bool, typer.Option("--fork", help="Set a copy of the box as it is now.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the memory.")] = False,
) -> None:
    """Show or set the agent's memory: the box that its turns read unless a request names another one."""
    from turnstile.cli.turns.box_options import MemoryArguments, set_memory, show_memory

    change = MemoryArguments(agent, box, fork, forget)
    change.check()
    if box is None and not forget:
        await show_memory(session, agent)
    else:
        await set_memory(session, change)
