"""What an MCP server asks in the middle of a call, as a question to a person (protocol §13.8, §17.1).

A question is named by what it says, so that a call that is run again finds the answer that was given. People see who
asks; what they cannot see is taken out. An address to open is shown as text, and opened by nobody.
"""

import hashlib
from typing import cast

import mcp_types as types
from pydantic import ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.people.digests import canonical
from turnstile.sdk.mcp.tool_pins import seen
from turnstile.sdk.tools.answer import ToolFailed
from turnstile.sdk.tools.call import ToolCall

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
        told = await call.ask_human(question, response_schema=form, key=key)
    except Refused as error:
        if error.code == "no_answer":
            return types.ElicitResult(action="cancel")
        raise ToolFailed(error.code, f"the question of the MCP server is not asked: {error}") from None
    except BadRequest as error:
        raise ToolFailed("tool_error", f"the question of the MCP server is not asked: {error}") from None
    if told.decision == "reject":
        return types.ElicitResult(action="decline")
    if not isinstance(told.response, dict):
        return types.ElicitResult(action="accept")
    return types.ElicitResult(action="accept", content=content_of(form, told.response))


def content_of(form: JsonObject, response: JsonObject) -> dict[str, str | int | float | bool | list[str] | None] | None:
    """What the server is given: the answer, and the defaults of the fields that it leaves out; raises `ToolFailed`."""
    fields = form.get("properties")
    named = fields.items() if isinstance(fields, dict) else ()
    defaults = {name: field["default"] for name, field in named if isinstance(field, dict) and "default" in field}
    try:
        return types.ElicitResult.model_validate({"action": "accept", "content": defaults | response}).content
    except ValidationError:
        raise ToolFailed("tool_error", "a person's answer has no form that an MCP server can be given") from None
