"""What a request to a page passes before its handler: session, origin, rate, role, query and form.

Whoever has no session is led to the page where they sign in, and back. What is refused is told on a page of the same
session. Costs a look at the token, which is remembered for a moment, and the count of open questions.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, JsonValue
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.console.enter import to_enter
from turnstile.gateway.console.forms import read_form
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.page_reads import OpenQuestions, TokenLabels
from turnstile.gateway.console.rendering import refused
from turnstile.gateway.console.sessions import CSRF, check_csrf, check_origin, csrf_of, session_of
from turnstile.gateway.http.endpoints import NoQuery, parsed, read_query
from turnstile.gateway.http.guard import ADDRESS, ROUTE, TOKEN
from turnstile.gateway.http.problems import Unauthenticated
from turnstile.schema.access import Principal, Right, Secret
from turnstile.schema.errors import TurnstileError

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
            query, form = read_query(self.page.query, _without_told(request.query_params)), NoForm()
            if self.page.method == "POST":
                fields = await self._posted(request, secret)
                form = parsed(self.page.form, fields, "form")
            return await self.page.handler(self._visit(request, principal, secret, query, form, known))
        except TurnstileError as error:
            return refused(plain, error)
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
            told=request.query_params.get(_TOLD, ""),
            fragment="x-console-fragment" in request.headers,
        )


def _without_told(query: QueryParams) -> QueryParams:
    return QueryParams([(name, value) for name, value in query.multi_items() if name != _TOLD])
