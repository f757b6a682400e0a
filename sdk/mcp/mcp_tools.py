"""Answers calls of an MCP server's tools, as one tool of ours with a target of its own (protocol §17.1).

A call is made only if its tool is at the server just now what was accepted for its project; else it fails as
`tool_changed`, and the server hears nothing of it. A server that does not answer costs its calls their time.

A server's question in the middle of a call goes to a person (§13.8). It is named by its text, so that a call that is
run again finds the answer. People see which server asks; what they cannot see is taken out. An address to open is
shown as text, and opened by nobody.
"""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

import mcp_types as types
from mcp.shared.dispatcher import ProgressFnT
from pydantic import ValidationError

from turnstile.runtime.waiting import unless_stopped
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, ConfigError, Refused
from turnstile.schema.people.digests import canonical
from turnstile.sdk.mcp.mcp_connection import worded
from turnstile.sdk.mcp.mcp_link import McpLink
from turnstile.sdk.mcp.mcp_results import result_of
from turnstile.sdk.mcp.mcp_server import SEPARATOR, SUFFIX, McpServer, call_meta, server_target
from turnstile.sdk.mcp.tool_pins import RemoteTool, seen
from turnstile.sdk.tools.answer import ToolFailed
from turnstile.sdk.tools.call import ToolCall
from turnstile.sdk.tools.service import ToolService
from turnstile.sdk.tools.spec import ToolTerms, any_spec

_WATCH_SECONDS = 1.0, 15.0
"""Between two looks whether a call is still waited for."""

Entry = Callable[[], McpServer | None]
"""The server's entry as it is in the file now; None if it has none any more."""


class McpTools:
    """The tools of one server."""

    def __init__(self, link: McpLink, entry: Entry) -> None:
        self._link = link
        self._entry = entry

    def add_to(self, service: ToolService, entry: McpServer) -> None:
        """Let the service answer the server's calls."""
        name, seconds = self._link.name, entry.timeout_seconds
        terms = ToolTerms(server_target(name), SUFFIX, timeout_seconds=seconds, concurrency=entry.concurrency)
        service.add(any_spec(self.answer, terms, f"The tools of the MCP server {name}."))

    async def answer(self, arguments: JsonObject, call: ToolCall) -> JsonObject:
        """The result of a call; raises `ToolFailed`."""
        entry, tool, pin = self._accepted(call)
        connection, listing = await self._link.ready()
        remote = self._pinned(listing.tools.get(tool), tool, pin)
        meta = call_meta(call.tool_call_id)
        meta |= {} if call.traceparent is None else {"traceparent": call.traceparent}
        asking, over = partial(ask_person, self._link.name, call), asyncio.Event()
        watching = asyncio.create_task(_watch(call, over))
        try:
            calling = connection.call(
                remote.called, arguments, meta=meta, ask=asking, progress=_progress(call), waiting=call.standing_still
            )
            answer = await unless_stopped(over, calling)
        finally:
            watching.cancel()
        if answer is None:
            raise ToolFailed("call_over", "nobody waits for the result any more")
        return result_of(entry, remote, answer)

    def _accepted(self, call: ToolCall) -> tuple[McpServer, str, str]:
        """The server's entry, and the tool's name and digest as they were accepted for the call's project."""
        server = self._link.name
        prefix, _, tool = call.tool_name.partition(SEPARATOR)
        try:
            entry = self._entry()
        except ConfigError as error:
            raise ToolFailed("mcp_unavailable", f"the file of MCP servers cannot be used: {worded(error)}") from None
        if entry is None or prefix != server or not entry.allows(tool):
            raise ToolFailed("tool_not_accepted", f"{call.tool_name} is no tool of the MCP server {server}")
        if (pin := entry.pins.get(call.project_id, {}).get(tool)) is None:
            accept = f"`turnstile mcp accept {server} {tool}` does that"
            raise ToolFailed("tool_not_accepted", f"{call.tool_name} was not accepted for this project: {accept}")
        return entry, tool, pin

    def _pinned(self, remote: RemoteTool | None, tool: str, pin: str) -> RemoteTool:
        if remote is None:
            raise ToolFailed("tool_gone", f"the MCP server {self._link.name} has no such tool any more: {tool}")
        if remote.digest != pin:
            accept = f"an operator looks at it with `turnstile mcp accept {self._link.name} {tool}`"
            raise ToolFailed("tool_changed", f"the tool {tool} is not what was accepted: {accept}")
        return remote


async def _watch(call: ToolCall, over: asyncio.Event) -> None:
    """Set `over` once nobody waits for the result; the server then gets a cancel notification."""
    pause, longest = _WATCH_SECONDS
    while True:
        await asyncio.sleep(pause)
        if not await call.waits():
            over.set()
            return
        pause = min(pause * 2, longest)


def _progress(call: ToolCall) -> ProgressFnT:
    async def heard(progress: float, total: float | None, message: str | None) -> None:
        with suppress(BadRequest):  # no number
            await call.progress(progress, total=total, message=seen(message or ""))

    return heard


_LONGEST = 4000
_OPENED = "opened"


async def ask_person(server: str, call: ToolCall, params: types.ElicitRequestParams) -> types.ElicitResult:
    """What a person answers; `cancel` if nobody does in time. Raises `ToolFailed` if nobody is asked."""
    match params:
        case types.ElicitRequestURLParams():
            text = f"{params.message}\n\nOpen this address yourself if you trust it, then answer:\n{params.url}"
            form: JsonObject = {"enum": [_OPENED]}
        case types.ElicitRequestFormParams():
            text, form = params.message, cast("JsonObject", dict(params.requested_schema))
    question = f"The MCP server {server} asks ({call.tool_name}): {seen(text)[:_LONGEST]}"
    try:
        key = hashlib.sha256(canonical({"question": question, "form": form})).hexdigest()[:40]
        answer = await call.ask_human(question, response_schema=form, key=key)
    except Refused as error:
        if error.code == "no_answer":
            return types.ElicitResult(action="cancel")
        raise ToolFailed(error.code, f"the question of the MCP server is not asked: {error}") from None
    except BadRequest as error:
        raise ToolFailed("tool_error", f"the question of the MCP server is not asked: {error}") from None
    if answer.decision == "reject":
        return types.ElicitResult(action="decline")
    if not isinstance(answer.response, dict):
        return types.ElicitResult(action="accept")
    return types.ElicitResult(action="accept", content=answer_content(form, answer.response))


def answer_content(
    form: JsonObject, response: JsonObject
) -> dict[str, str | int | float | bool | list[str] | None] | None:
    """What the server is given: the answer, and the defaults of the fields that it leaves out; raises `ToolFailed`."""
    fields = form.get("properties")
    named = fields.items() if isinstance(fields, dict) else ()
    defaults = {name: field["default"] for name, field in named if isinstance(field, dict) and "default" in field}
    try:
        return types.ElicitResult.model_validate({"action": "accept", "content": defaults | response}).content
    except ValidationError:
        raise ToolFailed("tool_error", "a person's answer has no form that an MCP server can be given") from None
