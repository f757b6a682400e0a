"""`/console/session`: whose session this is, what it may do, and the keys."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.schema.access import Right

_RIGHTS: Final[Mapping[Right, str]] = {
    Right.READ: "read every page",
    Right.ASK: "start, steer, stop and rerun turns",
    Right.DECIDE: "decide approvals and answer questions",
    Right.OPERATE: "change agents, calls and budgets",
}


def pages(_: Console) -> tuple[Page, ...]:
    """The page."""
    return (Page(name="session", path=f"{CONSOLE}/session", handler=_show),)


async def _show(visit: Visit[NoQuery, NoForm]) -> Response:
    return render(
        visit, "session.html", rights=[words for right, words in _RIGHTS.items() if visit.principal.may(right)]
    )
