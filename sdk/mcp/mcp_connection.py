"""One connection to an MCP server, of either generation of the protocol: its tools, and calls of them (protocol §17.1).

Everything that it answers is bounded: messages and their rate by the transport, tools by number and size, questions to
people by number. It is offered elicitation; sampling and roots are refused, and what it logs or says of itself is not
read. Whatever happens is an error of its own calls.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import mcp_types as types
from mcp.client import Client, ClientRequestContext, IncomingMessage
from mcp.client.auth import OAuthFlowError
from mcp.shared._stream_protocols import WriteStream
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import TurnstileError
from turnstile.sdk.mcp.bounded_http import bounded_http
from turnstile.sdk.mcp.client_credentials import ClientCredentials
from turnstile.sdk.mcp.lenient import Lenient
from turnstile.sdk.mcp.mcp_server import STATELESS, McpServer
from turnstile.sdk.mcp.pacing import Pace, Streams, paced
from turnstile.sdk.mcp.question_owners import QuestionOwners, RunningCall, Waiting
from turnstile.sdk.mcp.stdio_pipes import LastWords, stdio_pipes
from turnstile.sdk.mcp.tool_pins import RemoteTool, Unacceptable, read_tool
from turnstile.sdk.tools.answer import ToolFailed

MOST_TOOLS = 512
_MOST_PAGES = 64
_MOST_ROUNDS = 10
_MOST_QUESTIONS = 16
_ROUND_SECONDS = 0.05
_QUIET = ("mcp", "client")
"""Loggers of the library, which quote what servers say."""
_RESULT = TypeAdapter[types.CallToolResult | types.InputRequiredResult](
    types.CallToolResult | types.InputRequiredResult
)

Ask: TypeAlias = Callable[[types.ElicitRequestParams], Awaitable[types.ElicitResult]]
"""Asks a person."""


class McpUnavailable(TurnstileError):
    """An MCP server does not answer, or not as one."""

    code: str = "mcp_unavailable"

    def __init__(self, message: str, stderr: str = "", *, refuses_post: bool = False) -> None:
        super().__init__(message)
        self.said = stderr
        """The last words of its program, for operators only."""
        self.refuses_post = refuses_post
        """Whether it may be one of the older transport over HTTP."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools of a server: those that can be used, and why others cannot."""

    tools: Mapping[str, RemoteTool]
    left_out: Mapping[str, str]
    """The reasons, by names that are safe to print."""


class McpConnection:
    """An open connection; `closed` is set when the server is gone."""

    def __init__(self, name: str, entry: McpServer, lenient: Lenient | None = None) -> None:
        self._lenient = lenient or Lenient()
        self.closed = asyncio.Event()
        self.entry = entry
        """As it is reached, with what was found out about it."""
        self._name = name
        self._entry = entry
        self._client: Client | None = None
        self._owners = QuestionOwners[Ask]()
        self._listing: Listing | None = None
        self._listed_at = 0.0
        self._changed = False

    @property
    def protocol(self) -> str:
        """The version of the protocol that both speak."""
        return self._opened.protocol_version

    def open(self, client: Client) -> None:
        """Take the client, which is connected; raises `McpUnavailable` if both speak another revision than is named."""
        self._client = client
        if self._entry.protocol not in {None, self.protocol}:
            spoken = f"speaks the protocol {self.protocol}, and its entry names {self._entry.protocol}"
            raise McpUnavailable(f"the MCP server {self._name} {spoken}")
        streamed = self._entry.url is not None and self._entry.transport != "sse"
        self._owners.names_calls = streamed or self.protocol == STATELESS

    async def listing(self, max_age_seconds: float = 0.0) -> Listing:
        """Its tools, asked for unless they were lately; raises `McpUnavailable`."""
        now = asyncio.get_running_loop().time()
        if self._listing is not None and not self._changed and now - self._listed_at < max_age_seconds:
            return self._listing
        self._changed = False
        try:
            async with asyncio.timeout(self._entry.connect_seconds):
                self._listing = await self._list()
        except (MCPError, ValidationError, RuntimeError, TimeoutError) as error:
            raise McpUnavailable(f"the MCP server {self._name} did not list its tools: {worded(error)}") from None
        self._listed_at = now
        return self._listing

    async def _list(self) -> Listing:
        tools: dict[str, RemoteTool] = {}
        left_out: dict[str, str] = {}
        cursor: str | None = None
        self._lenient.left_out.clear()
        for _ in range(_MOST_PAGES):
            page = await self._opened.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                if len(tools) + len(left_out) >= MOST_TOOLS:
                    left_out["…"] = f"only {MOST_TOOLS} tools of a server are looked at"
                    return Listing(tools, {**self._lenient.left_out, **left_out})
                self._take(tool, tools, left_out)
            cursor = page.next_cursor
            if not cursor:
                break
        return Listing(tools, {**self._lenient.left_out, **left_out})

    def _take(self, tool: types.Tool, tools: dict[str, RemoteTool], left_out: dict[str, str]) -> None:
        try:
            read = read_tool(self._name, self._entry, tool)
        except Unacceptable as error:
            left_out[ascii(tool.name[:64])[1:-1]] = str(error)
            return
        if read.name in tools or read.name in left_out:
            tools.pop(read.name, None)
            left_out[read.name] = "two tools have this name"
        else:
            tools[read.name] = read

    async def call(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        meta: Mapping[str, str],
        ask: Ask,
        progress: ProgressFnT,
        waiting: Waiting = nullcontext,
    ) -> types.CallToolResult:
        """What the tool answers; raises `ToolFailed` if it does not, or asks for what it does not get.

        It is `waiting` while a question could not be assigned to one call.
        """
        try:
            async with self._owners.running(tool, ask, waiting) as running:
                return await self._rounds(tool, arguments, meta, running, progress)
        except MCPError as error:
            raise self._failed(error) from None
        except (ValidationError, RuntimeError) as error:
            raise ToolFailed("invalid_result", f"the MCP server's answer cannot be read: {worded(error)}") from None

    async def _rounds(
        self,
        tool: str,
        arguments: JsonObject,
        meta: Mapping[str, str],
        running: RunningCall[Ask],
        progress: ProgressFnT,
    ) -> types.CallToolResult:
        answers: types.InputResponses | None = None
        state: str | None = None
        for number in range(_MOST_ROUNDS):
            params = types.CallToolRequestParams(
                name=tool,
                arguments=arguments,
                input_responses=answers,
                request_state=state,
                _meta=cast("Any", dict(meta)),  # an open mapping
            )
            try:
                result = await self._opened.session.send_request(
                    types.CallToolRequest(params=params), _RESULT, progress_callback=progress
                )
            except MCPError as error:
                if error.code != types.URL_ELICITATION_REQUIRED:
                    raise
                await self._open_urls(error, running)
                continue
            if isinstance(result, types.CallToolResult):
                return result
            answers, state = await self._answers(result, running), result.request_state
            if not answers:
                await asyncio.sleep(_ROUND_SECONDS * 2**number)
        raise ToolFailed("tool_error", f"the MCP server asked for input more than {_MOST_ROUNDS} times")

    async def _answers(self, result: types.InputRequiredResult, running: RunningCall[Ask]) -> types.InputResponses:
        """What people answer to what the server asks before it goes on."""
        answers: types.InputResponses = {}
        for key, request in (result.input_requests or {}).items():
            if not isinstance(request, types.ElicitRequest):
                raise ToolFailed("tool_error", f"the MCP server asks for {request.method}, which is not offered")
            answers[key] = await self._ask(running, request.params)
        return answers

    async def _open_urls(self, error: MCPError, running: RunningCall[Ask]) -> None:
        """Ask people to open the addresses without which the server does not go on (2025-11-25)."""
        try:
            needed = types.ElicitationRequiredErrorData.model_validate(error.data)
        except ValidationError:
            raise error from None
        for elicitation in needed.elicitations:
            if (await self._ask(running, elicitation)).action != "accept":
                raise error

    async def _ask(self, running: RunningCall[Ask], params: types.ElicitRequestParams) -> types.ElicitResult:
        if running.questions >= _MOST_QUESTIONS:
            raise ToolFailed("tool_error", f"the MCP server asks more than {_MOST_QUESTIONS} questions in one call")
        async with self._owners.asking(running):
            return await running.asker(params)

    async def on_elicitation(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a question that the server sends in a session: under the call that it belongs to."""
        running = await self._owners.owner()
        if running is None:
            refused = "it cannot be known which of the calls that run asks; from now on they run one after the other"
            return types.ErrorData(code=types.INVALID_REQUEST, message=refused)
        try:
            return await self._ask(running, params)
        except TurnstileError as error:
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"nobody answers: {error.code}")

    async def on_message(self, message: IncomingMessage) -> None:
        """Hear that its tools have changed; nothing else is listened to."""
        if isinstance(message, types.ToolListChangedNotification):
            self._changed = True

    def _failed(self, error: MCPError) -> ToolFailed:
        match error.code:
            case types.CONNECTION_CLOSED if self.closed.is_set() or self._entry.url is not None:
                unknown = "whether it was done is not known"
                return ToolFailed("mcp_disconnected", f"the MCP server {self._name} went away in mid-call: {unknown}")
            case types.PARSE_ERROR:
                return ToolFailed("invalid_result", error.message)
            case types.INVALID_PARAMS:
                return ToolFailed("invalid_arguments", error.message)
            case _:
                return ToolFailed("tool_error", error.message)

    @property
    def _opened(self) -> Client:
        if self._client is None:
            raise McpUnavailable(f"the MCP server {self._name} is not connected")
        return self._client


class _Offer:
    """Messages to a server: the handshake offers the revision that its entry names; the library offers its newest."""

    def __init__(self, inner: WriteStream[SessionMessage], protocol: str | None, lenient: Lenient) -> None:
        self._inner = inner
        self._lenient = lenient
        self._protocol = protocol

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        match item.message:
            case types.JSONRPCRequest(method="initialize", params=dict() as params) if self._protocol is not None:
                params["protocolVersion"] = self._protocol
            case _:
                pass
        self._lenient.sent(item)
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def _offering(
    protocol: str | None, transport: AbstractAsyncContextManager[Streams], lenient: Lenient
) -> AsyncGenerator[Streams]:
    """The transport, on which a handshake offers this revision."""
    async with transport as (read, write):
        yield read, _Offer(write, protocol, lenient)


@asynccontextmanager
async def connected(name: str, entry: McpServer, environ: Mapping[str, str]) -> AsyncGenerator[McpConnection]:
    """An open connection; raises `McpUnavailable` if there is none, or if it breaks.

    A server over HTTP that refuses a POST, and whose transport is not named, is tried as one of the older transport.
    """
    async with AsyncExitStack() as stack:
        try:
            connection = await stack.enter_async_context(_connected(name, entry, environ))
        except McpUnavailable as error:
            if not error.refuses_post or entry.transport is not None or entry.protocol == STATELESS:
                raise
            older = entry.model_copy(update={"transport": "sse"})
            try:
                connection = await stack.enter_async_context(_connected(name, older, environ))
            except McpUnavailable as second:
                raise McpUnavailable(f"{error}; and not by HTTP+SSE: {second}") from None
        yield connection


@asynccontextmanager
async def _connected(name: str, entry: McpServer, environ: Mapping[str, str]) -> AsyncGenerator[McpConnection]:
    for logger in _QUIET:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    lenient, words, pace = Lenient(), LastWords(), Pace()
    connection = McpConnection(name, entry, lenient)
    credentials = None if entry.oauth is None else ClientCredentials(entry.url or "", entry.oauth)
    pipes = (
        stdio_pipes(entry, environ, pace, words, lenient)
        if entry.command
        else bounded_http(entry, environ, pace, words, connection.closed, credentials)
    )
    sessions = entry.transport == "sse" or entry.protocol not in {None, STATELESS}
    client = Client(
        _offering(entry.protocol, paced(pipes, pace, connection.closed, lenient), lenient),
        mode="legacy" if sessions else entry.protocol or "auto",
        elicitation_callback=connection.on_elicitation,
        message_handler=connection.on_message,
        client_info=types.Implementation(name="turnstile", version=version("turnstile-kernel")),
        cache=None,
    )
    failed: Exception | None = None
    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(entry.connect_seconds):
                await stack.enter_async_context(client)
            connection.open(client)
            if entry.oauth is not None and credentials is not None and credentials.issuer is not None:
                oauth = entry.oauth.model_copy(update={"issuer": credentials.issuer})
                connection.entry = entry.model_copy(update={"oauth": oauth})
            try:
                yield connection
            except Exception as error:
                failed = error  # of the caller's block: task groups of the library would wrap it
                raise
    except Exception as error:  # noqa: BLE001 -- whatever a server and the library do is one thing to its caller
        inner = failed or first_of(error)
        if failed is not None or isinstance(inner, TurnstileError):
            raise inner from None
        why = (not isinstance(inner, OAuthFlowError) and words.reason) or worded(inner)
        refuses = words.refuses_post and not words.reason
        raise McpUnavailable(f"the MCP server {name} cannot be used: {why}", words.text, refuses_post=refuses) from None
    finally:
        connection.closed.set()


def first_of(error: BaseException) -> BaseException:
    """The error, or the first of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def worded(error: BaseException) -> str:
    """An error in a few words."""
    match error:
        case TimeoutError():
            return "it did not answer in time"
        case ValidationError():
            return "it is not as the protocol says"
        case OAuthFlowError():  # what follows is quoted of the authorization server
            return f"its OAuth client gets no token: {str(error).partition(': ')[0][:300]}"
        case _:
            return (str(error) or type(error).__name__)[:300]
