"""`/console`: the live turns and what each waits for; `/console/turns`: all of them, and the search.

Each is a constant number of statements, however many turns there are. Filters are links, so a view has an address.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Visit
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.console.turns.waits import TurnWait, stall_of, waits_of
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.access.now import (
    MOST_LIVE,
    LiveState,
    LiveTurns,
    TurnNow,
    TurnWithUse,
    look_at_live_turns,
    page_turns_with_use,
    search_turns,
)
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.queries import Connection
from turnstile.schema.api import TOKEN
from turnstile.schema.base import Strict
from turnstile.schema.ids import AgentId

LIVE_PAGE = 50
_ENDED = 20
TURNS_PAGE = 100
_FOUND = 20


class NowQuery(Strict):
    """Which live turns."""

    state: LiveState | None = None
    agent: str | None = Field(default=None, pattern=TOKEN)
    profile: str | None = Field(default=None, min_length=1, max_length=128)
    channel: str | None = Field(default=None, pattern=TOKEN)
    page: int = Field(default=1, ge=1, le=2 * MOST_LIVE // LIVE_PAGE)


class TurnListQuery(Strict):
    """Which turns of all."""

    agent: str | None = Field(default=None, pattern=TOKEN)
    channel: str | None = Field(default=None, pattern=TOKEN)
    status: str | None = Field(default=None, pattern="^(ended|success|failed|canceled|timeout|partial)$")
    cursor: str | None = Field(default=None, min_length=1, max_length=512)
    q: str | None = Field(default=None, max_length=256)


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that is a link: the one that is on leads back to all."""

    label: str
    count: int | None
    href: str
    on: bool


@dataclass(frozen=True, slots=True)
class LiveLine:
    """A live turn as it is shown."""

    turn: TurnNow
    waits: list[TurnWait]
    stall: str | None


async def now_page(visit: Visit[NowQuery, Any]) -> Response:
    """The live turns, and below them those that ended last."""
    query, principal = visit.query, visit.principal
    channel = seen_channel(principal, query.channel)
    agent = None if query.agent is None else AgentId(query.agent)

    async def read(conn: Connection) -> tuple[LiveTurns, list[TurnWithUse]]:
        live = await look_at_live_turns(
            conn,
            principal.project_id,
            channel=channel,
            agent=agent,
            profile=query.profile,
            state=query.state,
            offset=(query.page - 1) * LIVE_PAGE,
            row_limit=LIVE_PAGE + 1,
        )
        return live, await page_turns_with_use(
            conn, principal.project_id, channel=channel, agent=agent, status="ended", row_limit=_ENDED
        )

    live, ended = await visit.console.pool.run(read)
    lines = [line_of(turn, live.seen_at, live.usual_seconds) for turn in live.turns[:LIVE_PAGE]]
    chosen = {"state": query.state, "agent": query.agent, "profile": query.profile, "channel": query.channel}
    more = len(live.turns) > LIVE_PAGE

    def narrowed(name: str, value: str) -> str:
        return address("/console", {**chosen, name: value})

    return render(
        visit,
        "turns/now.html",
        live=live,
        lines=lines,
        ended=ended,
        most_live=MOST_LIVE,
        states=[*_states(live, chosen)],
        chosen=[*_chosen(chosen)],
        narrowed=narrowed,
        newer=address("/console", {**chosen, "page": query.page - 1}) if query.page > 1 else None,
        older=address("/console", {**chosen, "page": query.page + 1}) if more else None,
        all_ended=address("/console/turns", {"agent": query.agent, "channel": query.channel, "status": "ended"}),
    )


async def turns_page(visit: Visit[TurnListQuery, Any]) -> Response:
    """All turns, the newest first; with `q` those that are called so."""
    query, principal = visit.query, visit.principal
    channel = seen_channel(principal, query.channel)
    text = (query.q or "").strip()
    if text:
        turns_found = await visit.console.pool.run(
            lambda conn: search_turns(conn, principal.project_id, text, channel=channel, row_limit=_FOUND)
        )
        if len(turns_found) == 1:
            return see_other(f"/console/turns/{part(turns_found[0].agent_turn_id)}")
        return render(visit, "turns/found.html", text=text, found=turns_found, most=_FOUND)
    turns = await visit.console.pool.run(
        lambda conn: page_turns_with_use(
            conn,
            principal.project_id,
            channel=channel,
            agent=None if query.agent is None else AgentId(query.agent),
            status=query.status,
            before=place_of(query.cursor),
            row_limit=TURNS_PAGE + 1,
        )
    )
    page = turns[:TURNS_PAGE]
    chosen = {"status": query.status, "agent": query.agent, "channel": query.channel}
    last = cursor_of(PageCursor(page[-1].created_at, page[-1].agent_turn_id)) if len(turns) > len(page) else None
    statuses = [
        Filter(label, None, address("/console/turns", {**chosen, "status": status}), query.status == status)
        for label, status in (
            ("all", None),
            *((s, s) for s in ("success", "failed", "canceled", "timeout", "partial")),
        )
    ]
    return render(
        visit,
        "turns/turns.html",
        turns=page,
        statuses=statuses,
        chosen=[
            Filter(f"{name} {value}", None, address("/console/turns", {**chosen, name: None}), on=True)
            for name, value in chosen.items()
            if value is not None and name != "status"
        ],
        older=address("/console/turns", {**chosen, "cursor": last}) if last else None,
    )


def line_of(turn: TurnNow, now: datetime, usual_seconds: float | None) -> LiveLine:
    """A live turn with what it waits for."""
    return LiveLine(turn, waits_of(turn), stall_of(turn, now, usual_seconds))


def address(path: str, parameters: dict[str, Any]) -> str:
    """An address with what of the query is given."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return f"{path}?{query}" if query else path


def _states(live: LiveTurns, chosen: dict[str, Any]) -> list[Filter]:
    """The filters by state, with how many there are of each."""
    on = chosen["state"]
    named: list[tuple[LiveState | None, str, int]] = [
        (None, "all live", live.total),
        ("running", "running", live.running),
        ("suspended", "suspended", live.suspended),
        ("dispatched", "dispatched", live.dispatched),
        ("queued", "queued", live.queued),
        ("people", "waiting for people", live.asking),
        ("stalled", "stalled", live.stalled),
    ]
    return [
        Filter(label, count, address("/console", {**chosen, "state": state}), state == on)
        for state, label, count in named
    ]


def _chosen(chosen: dict[str, Any]) -> list[Filter]:
    """What the page is narrowed to; each leads to the page without it."""
    return [
        Filter(f"{name} {value}", None, address("/console", {**chosen, name: None}), on=True)
        for name, value in chosen.items()
        if value is not None and name != "state"
    ]
