"""`/console/session`: whose session this is, what it may do, and the keys."""

from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.schema.access import Right


def pages(_: Console) -> tuple[Page, ...]:
    """The page."""
    return (Page(name="session", path=f"{CONSOLE}/session", handler=_show),)


async def _show(visit: Visit[NoQuery, NoForm]) -> Response:
    return render(visit, "session.html", rights=[right for right in Right if visit.principal.may(right)])
