"""Agents with lease and queue, and what operators do with them: pause, resume, retire.

The roster is the project's, so a token of one channel reads it, and changes nothing there.
"""

from typing import Literal

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.forms import require_seen, seen_of
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.gateway.http.problems import Forbidden
from turnstile.ledger.access.fleet import AgentFile, AgentFilter, list_queue, page_agents
from turnstile.ledger.access.pages import page_turns
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.base import AgentToken, Strict
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.roster_requests import AgentRequest

AGENTS = f"{CONSOLE}/agents"
_PAGE = 100
_QUEUE = 50
_TURNS = 20
_VERBS = {"pause": verbs.AGENT_PAUSE, "resume": verbs.AGENT_RESUME, "retire": verbs.AGENT_RETIRE}
_DONE = {"pause": "paused", "resume": "resumed", "retire": "retired"}


class AgentsQuery(Strict):
    """Which agents."""

    shown: AgentFilter | None = None
    """Only those with this status."""
    profile: str = Field(default="", max_length=128)
    """Only those of this profile."""
    find: str = Field(default="", max_length=128)
    """An agent's id: leads to it."""
    after: AgentToken | None = None
    """Only those that follow this one."""


class StatusForm(Strict):
    """What shall become of an agent."""

    action: Literal["pause", "resume", "retire"]
    seen: str = Field(default="", max_length=16)
    """The status that the page showed."""


def pages(_: Console) -> tuple[Page, ...]:
    """The pages."""
    one = f"{AGENTS}/{{agent_id}}"
    return (
        Page(name="agents", path=AGENTS, handler=show_agents, query=AgentsQuery),
        Page(name="agent", path=one, handler=show_agent),
        Page(
            name="agent_status",
            path=f"{one}/status",
            method="POST",
            right=Right.OPERATE,
            handler=set_status,
            form=StatusForm,
        ),
    )


async def show_agents(visit: Visit[AgentsQuery, NoForm]) -> Response:
    """A page of agents."""
    query, principal = visit.query, visit.principal
    if named := query.find.strip():
        return see_other(f"{AGENTS}/{part(named)}")
    agents = await visit.console.pool.run(
        lambda conn: page_agents(
            conn,
            principal.project_id,
            channel=principal.channel_id,
            profile=query.profile or None,
            shown=query.shown,
            after=None if query.after is None else AgentId(query.after),
            row_limit=_PAGE + 1,
        )
    )
    page = agents[:_PAGE]
    after = page[-1].agent_id if len(agents) > _PAGE else None
    return render(visit, "fleet/agents.html", agents=page, wanted=query, after=after)


async def show_agent(visit: Visit[NoQuery, NoForm]) -> Response:
    """An agent with its lease, its queue and its last turns."""
    pool, principal = visit.console.pool, visit.principal
    project, channel = principal.project_id, principal.channel_id
    agent = await _seen(visit)
    queue = await pool.run(lambda conn: list_queue(conn, project, agent.agent_id, channel=channel, row_limit=_QUEUE))
    turns = await pool.run(
        lambda conn: page_turns(
            conn,
            project,
            channel=channel,
            agent=agent.agent_id,
            conversation=None,
            before=None,
            row_limit=_TURNS,
        )
    )
    ended = [turn for turn in turns if turn.status != "queued"]
    may_change = visit.may("operate") and channel is None
    return render(
        visit,
        "fleet/agent.html",
        agent=agent,
        queue=queue,
        turns=ended,
        may_change=may_change,
        seen=seen_of(agent.status),
    )


async def set_status(visit: Visit[NoQuery, StatusForm]) -> Response:
    """Pause, resume or retire an agent; the bridge does it, and rings for what a resumed agent takes."""
    if visit.principal.channel_id is not None:
        raise Forbidden("the token is for one channel, but agents belong to the whole project")
    agent, action = await _seen(visit), visit.form.action
    require_seen(visit.form.seen, agent.status)
    asking, request = visit.console.asking, AgentRequest(agent_id=agent.agent_id)
    channel = asking.channel(visit.principal, None)
    await asking.ask(visit.principal, channel, _VERBS[action], request, visit.headers)
    return see_other(f"{AGENTS}/{part(agent.agent_id)}", _DONE[action])


async def _seen(visit: Visit[NoQuery, NoForm] | Visit[NoQuery, StatusForm]) -> AgentFile:
    """The agent of the address; raises `Refused` (unknown_agent)."""
    principal, name = visit.principal, AgentId(visit.path["agent_id"])
    agent = await visit.console.pool.run(
        lambda conn: page_agents(conn, principal.project_id, channel=principal.channel_id, agent=name, row_limit=1)
    )
    if not agent:
        raise Refused("unknown_agent", "the project has no such agent")
    return agent[0]
