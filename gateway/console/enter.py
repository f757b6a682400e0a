"""Signing in and out: by a token, or by the link that `turnstile up` prints, which works once (protocol §14.5)."""

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.forms import read_form
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import bare, own_page, render, see_other
from turnstile.gateway.console.sessions import begin_session, check_origin, end, is_loopback
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.gateway.http.guard import ADDRESS, ROUTE
from turnstile.gateway.http.problems import Unauthenticated, status_of
from turnstile.schema.access import Right, Secret, read_secret
from turnstile.schema.errors import Refused

ENTER: Final = f"{CONSOLE}/enter"
_LONGEST: Final = 2000


def to_enter(console: Console, request: Request) -> Response:
    """What whoever has no session gets: the page where they sign in."""
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method not in ("GET", "HEAD") or "text/event-stream" in request.headers.get("accept", ""):
        return bare(console.templates, "enter.html", 401, wanted=CONSOLE, once=None, wrong="Sign in first.")
    if request.headers.get("sec-fetch-site") == "cross-site":
        # The browser sends no cookie along a link of another site; it does when our own page leads there.
        return bare(console.templates, "again.html", wanted=target)
    if "x-console-fragment" in request.headers:
        return bare(console.templates, "enter.html", 401, wanted=target, once=None, wrong="")
    return see_other(f"{ENTER}?next={part(target)}")


def enter_routes(console: Console) -> list[Route]:
    """The addresses that need no session."""
    entrance = _Entrance(console)
    return [
        Route(ENTER, entrance.show, methods=["GET"], name="console_enter"),
        Route(ENTER, entrance.enter, methods=["POST"], name="console_enter"),
        Route(f"{CONSOLE}/leave", entrance.leave, methods=["POST"], name="console_leave"),
    ]


class _Entrance:
    """The handlers."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def show(self, request: Request) -> Response:
        """The page where one signs in."""
        request.scope[ROUTE] = "console_enter"
        return self._page(request.query_params.get("next"), once=request.query_params.get("once"))

    async def enter(self, request: Request) -> Response:
        """Sign in with the token, or the code of a link, of a form."""
        request.scope[ROUTE] = "console_enter"
        check_origin(request.headers)
        form = await read_form(request, self._console.limits.body_bytes)
        target = _next(form.get("next"))
        _check_safe(request)
        try:
            secret = await self._secret(request, form.get("token"), form.get("once"))
        except Unauthenticated:
            return self._page(target, 401, "This token is not valid. It may have been revoked, or have expired.")
        except Refused as error:
            return self._page(target, status_of(error), str(error))
        answer = see_other(target)
        begin_session(answer, secret, request.headers)
        return answer

    async def leave(self, request: Request) -> Response:
        """Sign out; needs no CSRF field, as a cookie of another site's page would not come along."""
        request.scope[ROUTE] = "console_leave"
        check_origin(request.headers)
        answer = see_other(ENTER)
        end(answer, request.headers)
        answer.headers["clear-site-data"] = '"cache"'
        return answer

    async def _secret(self, request: Request, token: object, once: object) -> Secret:
        secret = read_secret(token.strip()) if isinstance(token, str) else None
        if isinstance(once, str) and self._console.once is not None:
            secret = self._console.once.take(once)
        if secret is None:
            raise Unauthenticated("the token is not valid")
        await self._console.access.principal(secret, str(request.scope.get(ADDRESS, "")))
        return secret

    def _page(self, target: object, status: int = 200, wrong: str = "", once: str | None = None) -> Response:
        """Showing a link's page does not use the link up: programs that preview links do that."""
        once = once if self._console.once is not None and once is not None and len(once) <= _LONGEST else None
        return bare(self._console.templates, "enter.html", status, wanted=_next(target), once=once, wrong=wrong)


def _next(target: object) -> str:
    """Where to go after signing in: an address of the console, whatever was asked for."""
    page = own_page(target)
    return CONSOLE if page.startswith(ENTER) else page


def _check_safe(request: Request) -> None:
    """Raises `Refused` (needs_https) where the browser would not keep the cookie."""
    if request.headers.get("origin", "").lower().startswith("http://") and not is_loopback(request.headers):
        raise Refused(
            "needs_https",
            "the console is reached over plain HTTP here, where anyone on the way could read the token: put TLS before "
            "the gateway (`turnstile docs security`), or tunnel its port to this machine",
        )


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
