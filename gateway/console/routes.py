"""All addresses of the console below `/console`, for the gateway's router.

An area of pages is a module with `pages(console)`; its line in `_AREAS` is all that adds it. A request passes session,
origin, rate, role, query and form before its handler; without a session it is redirected to the page where people sign
in. Costs a look at the token, which is remembered for a moment, the count of open interrupts, read once a second, and
the labels of the project's tokens, read every 15 s.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, JsonValue
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from turnstile.gateway.console.enter import enter_routes, to_enter
from turnstile.gateway.console.enter import pages as session_pages
from turnstile.gateway.console.figures.budget_pages import pages as budget_pages
from turnstile.gateway.console.figures.cost_pages import pages as cost_pages
from turnstile.gateway.console.figures.health_page import pages as health_pages
from turnstile.gateway.console.fleet.agent_pages import pages as agent_pages
from turnstile.gateway.console.fleet.call_pages import pages as call_pages
from turnstile.gateway.console.fleet.letter_pages import pages as letter_pages
from turnstile.gateway.console.fleet.profile_pages import pages as profile_pages
from turnstile.gateway.console.fleet.schedule_pages import pages as schedule_pages
from turnstile.gateway.console.fleet.tool_pages import pages as tool_pages
from turnstile.gateway.console.forms import read_form
from turnstile.gateway.console.live import pages as live_pages
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.people.approvals import pages as approval_pages
from turnstile.gateway.console.people.chat_page import pages as chat_pages
from turnstile.gateway.console.people.conversations import pages as conversation_pages
from turnstile.gateway.console.rendering import HEADERS, MOST_COUNTED, refusal_page, see_other
from turnstile.gateway.console.sessions import CSRF, check_csrf, check_origin, csrf_of, session_of
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.console.turns.pages import pages as turn_pages
from turnstile.gateway.http.endpoints import NoQuery, parsed, read_query
from turnstile.gateway.http.guard import ADDRESS, ROUTE, TOKEN
from turnstile.gateway.http.problems import Unauthenticated
from turnstile.ledger.access.tokens import list_token_labels
from turnstile.ledger.people.interrupt_views import count_open_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal, Right, Secret
from turnstile.schema.errors import Refused, TurnstileError
from turnstile.schema.ids import ChannelId, ProjectId

KNOWN_SECONDS: Final = 1.0
LABELS_KNOWN_SECONDS: Final = 15.0
_REMEMBERED: Final = 1000

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _Remembered(Generic[Key, Value]):
    """What was read, by a key, for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._known: OrderedDict[Key, tuple[Value, float]] = OrderedDict()

    async def get(self, key: Key, read: Callable[[], Awaitable[Value]]) -> Value:
        """What is remembered, else what `read` returns."""
        known = self._known.get(key)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        value = await read()
        self._known[key] = (value, time.monotonic() + self._seconds)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return value


class OpenQuestions:
    """The counts of one gateway, each remembered for a moment."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known = _Remembered[tuple[ProjectId, ChannelId | None], int](KNOWN_SECONDS)

    async def count(self, principal: Principal) -> int:
        """How many a session sees, at most one more than are shown."""
        project, channel = principal.project_id, principal.channel_id

        async def read() -> int:
            return await self._pool.run(
                lambda conn: count_open_interrupts(conn, project, channel=channel, most=MOST_COUNTED + 1)
            )

        return await self._known.get((project, channel), read)


class TokenLabels:
    """The labels of the tokens of each project, so that pages can say who `token.0f3c…` is."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known = _Remembered[ProjectId, Mapping[str, str]](LABELS_KNOWN_SECONDS)

    async def of(self, principal: Principal) -> Mapping[str, str]:
        """Labels by what the ledger calls their tokens, of the session's project."""
        project = principal.project_id

        async def read() -> Mapping[str, str]:
            lines = await self._pool.run(lambda conn: list_token_labels(conn, project))
            return {line.sender: line.label for line in lines}

        return await self._known.get(project, read)


_TOLD: Final = "told"


class PageDispatch:
    """The ASGI application of one page."""

    def __init__(self, page: Page, console: Console, questions: OpenQuestions, labels: TokenLabels) -> None:
        self.page = page
        self._console = console
        self._questions = questions
        self._labels = labels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = f"console_{self.page.name}"
        request = Request(scope, receive)
        await (await self._answered(request))(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        access, secret = self._console.access, session_of(request)
        if secret is None:
            return to_enter(self._console, request)
        address = str(request.scope.get(ADDRESS, ""))
        try:
            principal = await access.principal(secret, address)
        except Unauthenticated:
            return to_enter(self._console, request)
        request.scope[TOKEN] = principal.token_id
        access.admit(principal, Right.READ)
        known = await self._known(request, principal)
        plain = self._visit(request, principal, secret, NoQuery(), NoForm(), known)
        try:
            access.check(principal, self.page.right)
            query, form = read_query(self.page.query, _without_notice(request.query_params)), NoForm()
            if self.page.method == "POST":
                fields = await self._posted(request, secret)
                form = parsed(self.page.form, fields, "form")
            return await self.page.handler(self._visit(request, principal, secret, query, form, known))
        except TurnstileError as error:
            return refusal_page(plain, error)
        finally:
            if self.page.method == "POST":
                self._console.feeds.ends.nudge(principal.project_id)

    async def _known(self, request: Request, principal: Principal) -> tuple[int, Mapping[str, str]]:
        """What every page shows: the count of open questions, and the labels of tokens. A stream shows nothing."""
        if "text/event-stream" in request.headers.get("accept", ""):
            return 0, {}
        count = await self._questions.count(principal) if self.page.method == "GET" else 0
        return count, await self._labels.of(principal)

    async def _posted(self, request: Request, secret: Secret) -> dict[str, JsonValue]:
        check_origin(request.headers)
        fields = await read_form(request, self._console.limits.body_bytes)
        check_csrf(secret, fields)
        del fields[CSRF]
        return fields

    def _visit(
        self,
        request: Request,
        principal: Principal,
        secret: Secret,
        query: BaseModel,
        form: BaseModel,
        known: tuple[int, Mapping[str, str]],
    ) -> Visit[Any, Any]:
        count, labels = known
        return Visit(
            console=self._console,
            page=self.page,
            principal=principal,
            secret=secret,
            path={name: str(value) for name, value in request.path_params.items()},
            query=query,
            form=form,
            headers=request.headers,
            request=request,
            csrf=csrf_of(secret),
            open_approvals=count,
            labels=labels,
            notice=request.query_params.get(_TOLD, ""),
            fragment="x-console-fragment" in request.headers,
        )


def _without_notice(query: QueryParams) -> QueryParams:
    return QueryParams([(name, value) for name, value in query.multi_items() if name != _TOLD])


_AREAS: Final[tuple[Callable[[Console], tuple[Page, ...]], ...]] = (
    live_pages,
    session_pages,
    agent_pages,
    profile_pages,
    tool_pages,
    schedule_pages,
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
    """Whether an address is one of the console's, whose errors are pages for people."""
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
