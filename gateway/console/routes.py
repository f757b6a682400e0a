"""All addresses of the console below `/console`, for the gateway's router.

An area of pages is a module with `pages(console)`; its line in `_AREAS` is all that adds it.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from turnstile.gateway.console.dispatch import PageDispatch
from turnstile.gateway.console.enter import enter_routes
from turnstile.gateway.console.figures.budget_pages import pages as budget_pages
from turnstile.gateway.console.figures.cost_pages import pages as cost_pages
from turnstile.gateway.console.figures.health_page import pages as health_pages
from turnstile.gateway.console.fleet.agent_pages import pages as agent_pages
from turnstile.gateway.console.fleet.call_pages import pages as call_pages
from turnstile.gateway.console.fleet.letter_pages import pages as letter_pages
from turnstile.gateway.console.fleet.profile_pages import pages as profile_pages
from turnstile.gateway.console.fleet.tool_pages import pages as tool_pages
from turnstile.gateway.console.live import pages as live_pages
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.page_reads import OpenQuestions, TokenLabels
from turnstile.gateway.console.people.approvals import pages as approval_pages
from turnstile.gateway.console.people.chat_page import pages as chat_pages
from turnstile.gateway.console.people.conversations import pages as conversation_pages
from turnstile.gateway.console.rendering import HEADERS, see_other
from turnstile.gateway.console.session_page import pages as session_pages
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.console.turns.pages import pages as turn_pages
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.gateway.http.guard import ROUTE
from turnstile.schema.errors import Refused

_AREAS: Final[tuple[Callable[[Console], tuple[Page, ...]], ...]] = (
    live_pages,
    session_pages,
    agent_pages,
    profile_pages,
    tool_pages,
    call_pages,
    letter_pages,
    cost_pages,
    budget_pages,
    health_pages,
    turn_pages,
    approval_pages,
    conversation_pages,
    chat_pages,
)
_STATIC: Final = f"{CONSOLE}/static"


def console_pages(console: Console) -> tuple[Page, ...]:
    """Every page that needs a session."""
    return tuple(page for area in _AREAS for page in area(console))


def console_routes(console: Console, pages: Iterable[Page]) -> list[BaseRoute]:
    """Every address of the console."""
    questions, labels = OpenQuestions(console.pool), TokenLabels(console.pool)
    routes: list[BaseRoute] = [
        Route(
            page.path,
            PageDispatch(page, console, questions, labels),
            methods=[page.method],
            name=f"console_{page.name}",
        )
        for page in pages
    ]
    nothing = Page(name="nothing", path=f"{CONSOLE}/{{rest:path}}", handler=_nothing)
    static = _static(console)
    routes += [*enter_routes(console), Route(f"{_STATIC}/{{digest}}/{{name}}", static), Route(f"{CONSOLE}/", _home)]
    routes.append(Route(nothing.path, PageDispatch(nothing, console, questions, labels), methods=[nothing.method]))
    return routes


def is_of_console(path: str) -> bool:
    """Whether an address is one of the console's, so that people read what is told of it."""
    return path == CONSOLE or path.startswith(f"{CONSOLE}/")


async def _nothing(_: Visit[NoQuery, NoForm]) -> Response:
    raise Refused("not_found", "the console has no such page")


async def _home(_: Request) -> Response:
    return see_other(CONSOLE)


def _static(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def static(request: Request) -> Response:
        request.scope[ROUTE] = "console_static"
        asset = console.templates.assets.get(request.path_params["name"])
        if asset is None:
            raise Refused("not_found", "there is no such file")
        # Of another version of the gateway: right for now, and not to be kept.
        kept = "public, max-age=31536000, immutable" if asset.address == request.url.path else "no-store"
        return Response(asset.content, media_type=asset.media, headers={**HEADERS, "cache-control": kept})

    return static
