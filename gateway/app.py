"""The gateway as an ASGI application: composed from a ledger that it only reads, and NATS (protocol §14)."""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from importlib.util import find_spec

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstile.gateway.a2a.refusals import is_of_rpc, refusal
from turnstile.gateway.agui.runs import agui_endpoints
from turnstile.gateway.asking import Asking
from turnstile.gateway.bounds import About, Doors, GatewayLimits
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.gateway.console.page import Console, Links
from turnstile.gateway.console.rendering import problem_page
from turnstile.gateway.console.routes import console_pages, console_routes, is_of_console
from turnstile.gateway.console.templating import templates
from turnstile.gateway.events.feed import Sources
from turnstile.gateway.events.feeds import Feeds
from turnstile.gateway.events.stream import Streaming
from turnstile.gateway.http.bearers import Access
from turnstile.gateway.http.endpoints import Dispatch, Endpoint
from turnstile.gateway.http.guard import ROUTE, Guard, ProblemRenderer, problem_response
from turnstile.gateway.http.openapi import document
from turnstile.gateway.http.problems import Problem, problem_of
from turnstile.gateway.mcp.door import McpDoor
from turnstile.gateway.mcp.rpc_errors import PATH, rpc_error
from turnstile.gateway.openai.addresses import Kernel, openai_endpoints
from turnstile.gateway.openai.error_objects import PREFIX, error_response
from turnstile.gateway.v1.budget_handlers import Budgets
from turnstile.gateway.v1.catalog import endpoints
from turnstile.gateway.v1.conversation_handlers import Conversations
from turnstile.gateway.v1.event_handlers import Events
from turnstile.gateway.v1.file_handlers import Files
from turnstile.gateway.v1.interrupt_handlers import Interrupts
from turnstile.gateway.v1.roster_handlers import Roster
from turnstile.gateway.v1.schedule_handlers import Schedules
from turnstile.gateway.v1.turn_handlers import Turns
from turnstile.gateway.v1.verb_endpoints import VerbEndpoints
from turnstile.ledger.operations.audit import Bounds
from turnstile.ledger.pool import Pool
from turnstile.runtime.object_store import ObjectStore
from turnstile.runtime.release import release
from turnstile.runtime.telemetry import SILENT, Meter, Metric
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ChannelId
from turnstile.transport.connection import NatsConnection


@dataclass
class Gateway:
    """One gateway; `app` serves it. Costs nothing while nobody asks."""

    pool: Pool
    conn: NatsConnection
    limits: GatewayLimits
    doors: Doors
    _: KW_ONLY
    default_channel: ChannelId
    abort: Callable[[object], None]
    """Closes the connection of a client at once."""
    crowded: Callable[[], bool] = bool
    """Whether there are more connections than there may be."""
    meter: Meter = SILENT.meter
    about: About = field(default_factory=About)
    store: ObjectStore | None = None
    """Where the bytes of files are; without it there are none."""
    links: Links = field(default_factory=Links)
    once: OneTimeLinks | None = None
    audit_bounds: Bounds = field(default_factory=Bounds)
    """What an audit in the console allows for."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it when the gateway stops: streams end."""

    def __post_init__(self) -> None:
        limits = self.limits
        self.feeds = Feeds(Sources(self.pool, self.conn, limits.stream_bytes))
        self.access = Access(self.pool, limits)
        asking = Asking(self.conn, self.pool, self.default_channel)
        turns, conversations = Turns(self.pool, asking, self.feeds, self.access, self.closing), Conversations(self.pool)
        streaming = Streaming(self.closing, limits.slow_reader_seconds, self.abort, self.meter)
        shared = (turns, conversations, self.feeds, self.access, streaming, self.conn, limits.heartbeat_seconds)
        events, roster = Events(*shared), Roster(self.pool)
        files = Files(self.pool, asking, self.store, limits.file_bytes, limits.slow_reader_seconds, self.abort)
        people = Interrupts(self.pool), Budgets(self.pool, asking), Schedules(asking)
        verbs = _verbs(asking, turns, conversations, *people, files)
        self.endpoints = endpoints(turns, conversations, events, verbs, roster, files)
        kernel = Kernel(self.pool, turns, self.feeds, self.access, streaming, limits.heartbeat_seconds, self.conn)
        self.openai = openai_endpoints(kernel, files)
        self.agui = agui_endpoints(kernel)
        self.mcp = McpDoor(kernel, limits) if find_spec("mcp") is not None else None
        self.a2a = self._a2a(kernel)
        self.console = Console(
            pool=self.pool,
            asking=asking,
            feeds=self.feeds,
            access=self.access,
            streaming=streaming,
            conn=self.conn,
            limits=limits,
            default_channel=self.default_channel,
            closing=self.closing,
            links=self.links,
            once=self.once,
            templates=templates(),
            turns=turns,
            conversations=conversations,
            events=events,
            verbs=verbs,
            roster=roster,
            audit_bounds=self.audit_bounds,
        )
        self.pages = console_pages(self.console)
        self.app: ASGIApp = Guard(self._router(), self.doors, self.meter, self._problem_response, self.crowded)
        self.meter.watch(Metric.HTTP_OPEN_STREAMS, lambda: self.access.open_streams)
        self.meter.watch(Metric.HTTP_FEEDS, lambda: len(self.feeds))

    @property
    def missing(self) -> list[str]:
        """The extras without which addresses of the same name are not there."""
        return [*([] if self.mcp is not None else ["mcp"]), *([] if self.a2a else ["a2a"])]

    def _a2a(self, kernel: Kernel) -> list[Endpoint]:
        """The addresses of A2A; none without the package `a2a-sdk`."""
        if find_spec("a2a") is None:
            return []
        from turnstile.gateway.a2a.rpc import a2a_endpoints  # noqa: PLC0415 -- an extra

        return a2a_endpoints(kernel, self.about)

    def _router(self) -> ASGIApp:
        described = to_json(document(self.endpoints, release()))

        async def openapi(request: Request) -> Response:
            request.scope[ROUTE] = "openapi"
            return Response(described, media_type="application/json")

        async def health(request: Request) -> Response:
            request.scope[ROUTE] = "health"
            return Response("serving\n", media_type="text/plain")

        served = [*self.endpoints, *self.openai, *self.agui, *self.a2a]  # others' addresses are described by them
        routes: list[BaseRoute] = [_route(e, Dispatch(e, self.access, self.limits)) for e in served]
        routes += [Route("/v1/openapi.json", openapi), Route("/health", health)]
        if self.mcp is not None:
            routes.append(Route(PATH, self.mcp, methods=["POST"], name="mcp"))
        routes += console_routes(self.console, self.pages)
        return _Routes(Router(routes, redirect_slashes=False), self._problem_response)

    def _problem_response(self, path: str, problem: Problem) -> Response:
        """The response for a problem, in the form that the clients of this path know."""
        if is_of_console(path):
            return problem_page(self.console.templates, problem)
        if path == PATH:
            return rpc_error(problem)
        if self.a2a and is_of_rpc(path):
            return refusal(problem)
        return (error_response if path.startswith(PREFIX) else problem_response)(problem)


def _verbs(
    asking: Asking,
    turns: Turns,
    conversations: Conversations,
    interrupts: Interrupts,
    budgets: Budgets,
    schedules: Schedules,
    files: Files,
) -> VerbEndpoints:
    return VerbEndpoints(
        asking=asking,
        lookups={
            "agent_turn_id": turns.lookup,
            "conversation_id": conversations.lookup,
            "interrupt_id": interrupts.lookup,
            "budget_id": budgets.lookup,
            "period": budgets.lookup_project,
            "webhook_id": budgets.lookup_project,
            "deletion_id": budgets.lookup_project,
            "end_user": budgets.lookup_end_user,
            "schedule_id": schedules.lookup,
            "artifact_id": files.lookup,
        },
        handlers={
            "enqueue": turns.create,
            "rerun": turns.rerun,
            "stop": turns.stop,
            "interrupt.list": interrupts.list,
            "interrupt.get": interrupts.get,
            "budget.list": budgets.list,
            "budget.get": budgets.get,
            "webhook.list": budgets.webhooks,
            "deletion.get": budgets.deletion,
            "schedule.list": schedules.list,
        },
    )


def _route(endpoint: Endpoint, dispatch: Dispatch) -> Route:
    return Route(endpoint.path, dispatch, methods=[endpoint.method], name=endpoint.name)


class _Routes:
    """The router, whose own refusals are problems of ours."""

    def __init__(self, router: Router, render: ProblemRenderer) -> None:
        self._router = router
        self._problem_response = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises what it refuses
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            if error.status_code != HTTPStatus.METHOD_NOT_ALLOWED:
                raise Refused(
                    "not_found",
                    "nothing is served here; /v1/openapi.json lists the endpoints of /v1, and /console is for people",
                ) from None
            problem = problem_of(Refused("method_not_allowed", "this address does not support this method"))
            refused = self._problem_response(scope["path"], problem)
            refused.headers["allow"] = ", ".join(sorted(self._methods(scope)))
            await refused(scope, receive, send)

    def _methods(self, scope: Scope) -> set[str]:
        routes = [route for route in self._router.routes if isinstance(route, Route)]
        fitting = [route.methods or set[str]() for route in routes if route.matches(scope)[0] is not Match.NONE]
        return set[str]().union(*fitting)
