"""What MCP servers really send, made into what the protocol says and the library takes (protocol §17.1). Pure.

One flaw costs what has it and nothing else: a tool with a schema that cannot be mended is left out by name, a part of
an unknown type is named, a line that cannot be read fails the call that it answers. Halves of surrogate pairs become
U+FFFD. Whatever cannot be read as a message is noise, and passed over.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import mcp_types as types
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from pydantic import TypeAdapter, ValidationError

from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import MOST_VALUES, check_json, storable, storable_json

Raw: TypeAlias = dict[str, Any]
"""A server's JSON: what is in it is anyone's."""
UNKNOWN_PART: Final = "turnstile/part"
"""In the `_meta` of an empty text: the type of the part that it stands for."""
_ID = re.compile(rb'"id"\s*:\s*(?:([0-9]{1,15})|"([0-9]{1,15})")\s*[,}]')
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.0)?\Z")
_UNREADABLE = "the server's answer cannot be read: it is no JSON, or nested too deeply"
_PART = TypeAdapter[types.ContentBlock](types.ContentBlock)
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_SUPPORT = ("forbidden", "optional", "required")
_STRICTEST = "2025-11-25"
"""The revision of the protocol whose lists of tools the library checks most strictly."""
_MAY_BE_NULL = frozenset({"const", "default", "enum", "examples"})
_LONGEST_TYPE = 64
_MOST_PARTS = 256
_MOST_TOOLS = 600
"""More than are looked at (`mcp_connection.MOST_TOOLS`), so that it is said that there are more."""
_MOST_VALUES, _MOST_LISTED = 200_000, 50_000
"""Of a message, and of what is mended in a list of tools: to mend a value takes some 1 µs."""


class _TooMany(Exception):
    """A result has more values than are looked at."""


class _Unmended(Exception):
    """What of a tool cannot be mended."""


class Lenient:
    """The messages of one connection."""

    def __init__(self) -> None:
        self._methods: dict[types.RequestId, str] = {}
        self.left_out: dict[str, str] = {}
        """Why tools of the latest list are left out, by names that are safe to print."""

    def sent(self, message: SessionMessage) -> None:
        """Know what is asked, so that its answer is read as one."""
        match message.message:
            case types.JSONRPCRequest(id=number, method=method):
                self._methods[number] = method
            case _:
                pass

    def heard(self, message: SessionMessage) -> SessionMessage:
        """The message as the protocol says it."""
        match message.message:
            case types.JSONRPCResponse(id=sent, result=result):
                number = self._number(sent) or sent
                try:
                    mended = self._mended(self._methods.pop(number, ""), result)
                except (_TooMany, RecursionError) as error:
                    why = str(error) if isinstance(error, _TooMany) else _UNREADABLE
                    return replace(message, message=_error(number, why))
                return replace(message, message=types.JSONRPCResponse(jsonrpc="2.0", id=number, result=mended))
            case types.JSONRPCError(id=number) if number is not None:
                self._methods.pop(number, None)
            case _:
                pass
        return message

    def lines(self, line: bytes) -> Iterator[types.JSONRPCMessage]:
        """The messages in a line: none in noise, several in a batch."""
        try:
            check_json(line, _MOST_VALUES)
        except BadRequest:
            yield from self._failed(line)
            return
        try:
            whole = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            whole = None
        if whole is not None:
            yield whole
            return
        if line.lstrip()[:1] not in (b"{", b"["):
            return
        try:
            value: Any = storable_json(json.loads(line))
            check_json(line)
        except (ValueError, RecursionError, BadRequest):
            yield from self._failed(line)
            return
        for part in cast("list[Any]", value) if isinstance(value, list) else [value]:
            if isinstance(part, dict) and (message := self._message(cast("Raw", part))) is not None:
                yield message

    def _failed(self, line: bytes) -> Iterator[types.JSONRPCMessage]:
        """The failure of the call that the line answers, as far as it says which."""
        if (match := _ID.search(line)) is not None and (number := int(match[1] or match[2])) in self._methods:
            yield _error(number, _UNREADABLE)

    def _number(self, request_id: Any) -> types.RequestId | None:
        """The number of the request that an id means: some servers answer with it as a text or a float."""
        if (
            isinstance(request_id, str | float)
            and _NUMBER.match(str(request_id))
            and (number := int(float(request_id))) in self._methods
        ):
            return number
        return request_id if isinstance(request_id, str) or type(request_id) is int else None

    def _message(self, raw: Raw) -> types.JSONRPCMessage | None:
        number = self._number(raw.get("id"))
        raw = {**raw, "jsonrpc": "2.0"} | ({} if number is None else {"id": number})
        if "method" not in raw and raw.get("error") is not None:
            raw = {"jsonrpc": "2.0", "id": number, "error": _fault(raw["error"])}
        elif "method" not in raw and "result" in raw and not isinstance(raw["result"], dict):
            raw["result"] = {"content": [] if raw["result"] is None else raw["result"]}
        if raw.get("params", {}) is None:
            del raw["params"]
        try:
            return jsonrpc_message_adapter.validate_python(raw, by_name=False)
        except ValidationError:
            return _error(number, _UNREADABLE) if number is not None and number in self._methods else None

    def _mended(self, method: str, result: Raw) -> Raw:
        result = dict(result)
        if not isinstance(result.get("_meta", {}), dict):
            del result["_meta"]
        match method:
            case "initialize":
                return _introduced(result)
            case "tools/list":
                return self._listed(result)
            case "tools/call":
                if _values(result) > MOST_VALUES:
                    raise _TooMany(f"the server's answer has more than {MOST_VALUES} values: ask for less")
                return call_result(result)
            case _:
                return result

    def _listed(self, result: Raw) -> Raw:
        listed: Any = result.get("tools")
        tools, left = list[Raw](), _MOST_LISTED
        for tool in cast("list[Any]", listed)[:_MOST_TOOLS] if isinstance(listed, list) else []:
            raw = cast("Raw", tool) if isinstance(tool, dict) else {}
            name: Any = raw.get("name")
            left -= _values(raw)
            try:
                tools.append(_tool(raw, left))
            except _Unmended as error:
                printable = ascii(name[:64])[1:-1] if isinstance(name, str) else "(without a name)"
                self.left_out[printable] = str(error)
        kept = {key: value for key, value in result.items() if key != "nextCursor" or isinstance(value, str)}
        return {**kept, "tools": tools}


def _values(value: Any) -> int:
    """How many values there are, as far as they are counted."""
    waiting, count = [value], 0
    while waiting and count <= _MOST_LISTED:
        part = waiting.pop()
        count += 1
        if isinstance(part, dict):
            waiting += cast("Raw", part).values()
        elif isinstance(part, list):
            waiting += cast("list[Any]", part)
    return count


def _error(number: types.RequestId, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=number, error=types.ErrorData(code=types.PARSE_ERROR, message=message))


def _fault(error: Any) -> Raw:
    fields = cast("Raw", error) if isinstance(error, dict) else {"message": error}
    code, message = fields.get("code"), fields.get("message")
    return {
        **fields,
        "code": code if isinstance(code, int) and not isinstance(code, bool) else types.INTERNAL_ERROR,
        "message": message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)[:1000],
    }


def _introduced(result: Raw) -> Raw:
    info: Any = result.get("serverInfo")
    info = cast("Raw", info) if isinstance(info, dict) else {}
    named = {key: info[key] if isinstance(info.get(key), str) else "" for key in ("name", "version")}
    offered: Any = result.get("capabilities")
    offered = cast("Raw", offered) if isinstance(offered, dict) else {}
    capabilities: Raw = {key: value if isinstance(value, dict) else {} for key, value in offered.items() if value}
    instructions = {key: value for key, value in result.items() if key == "instructions" and isinstance(value, str)}
    return {
        "protocolVersion": result.get("protocolVersion"),
        "capabilities": capabilities,
        "serverInfo": named,
        **instructions,
    }


def _tool(raw: Raw, left: int) -> Raw:
    """A tool with what is read of it, if so many more values may be looked at; raises `_Unmended`."""
    if left < 0:
        raise _Unmended("the server's list is too large to be looked at to its end")
    name: Any = raw.get("name")
    if not isinstance(name, str) or not name:
        raise _Unmended("it has no name")
    tool: Raw = {"name": name, "inputSchema": _object_schema(raw.get("inputSchema"))}
    tool |= {key: storable(raw[key]) for key in ("title", "description") if isinstance(raw.get(key), str)}
    output: Any = mended_schema(raw.get("outputSchema"))
    if isinstance(output, dict) and cast("Raw", output).get("type") == "object":
        tool["outputSchema"] = output
    notes: Any = raw.get("annotations")
    if isinstance(notes, dict):
        hints = {key: cast("Raw", notes).get(key) for key in _HINTS}
        tool["annotations"] = {key: value for key, value in hints.items() if isinstance(value, bool)}
    execution: Any = raw.get("execution")
    if isinstance(execution, dict) and cast("Raw", execution).get("taskSupport") in _SUPPORT:
        tool["execution"] = {"taskSupport": cast("Raw", execution)["taskSupport"]}
    try:
        validate_server_result("tools/list", _STRICTEST, {"tools": [tool]})
    except ValidationError:
        raise _Unmended("its schema is not as the protocol says") from None
    return tool


def _object_schema(schema: Any) -> Raw:
    if schema is None or schema is True:
        return {"type": "object"}
    if not isinstance(schema, dict):
        raise _Unmended("its input schema is none")
    mended = cast("Raw", mended_schema(schema))
    kind: Any = mended.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise _Unmended(f"its input schema is of type {json.dumps(kind)[:100]}, and arguments are an object")
    return {**mended, "type": "object"}


def mended_schema(schema: Any) -> Any:
    """A schema without keywords of null, which say nothing, and with bounds of draft 4 as numbers."""
    if isinstance(schema, list):
        return [mended_schema(part) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    mended = {
        key: value if key in _MAY_BE_NULL else _names(value) if key in _OF_NAMES else mended_schema(value)
        for key, value in cast("Raw", schema).items()
        if value is not None or key in _MAY_BE_NULL
    }
    for bound in ("Minimum", "Maximum"):
        key, plain = f"exclusive{bound}", bound.lower()
        if isinstance(mended.get(key), bool):
            exclusive = mended.pop(key)
            if exclusive and plain in mended:
                mended[key] = mended.pop(plain)
    return mended


_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values have names, not keywords."""


def _names(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    parts: Raw = {name: {} if part is None else mended_schema(part) for name, part in cast("Raw", value).items()}
    return parts


def call_result(result: Raw) -> Raw:
    """A result of a call, whose parts are of known types."""
    content: Any = result.get("content")
    if content is None:
        content = []
    parts = cast("list[Any]", content) if isinstance(content, list) else [content]
    kept = {**result, "content": [_part(part) for part in parts[:_MOST_PARTS]]}
    if len(parts) > _MOST_PARTS:
        kept["content"].append(_stand_in(f"{len(parts) - _MOST_PARTS} more parts"))
    if "isError" in kept:
        kept["isError"] = kept["isError"] in (True, 1, "true")
    structured: Any = kept.get("structuredContent")
    if structured is None:
        kept.pop("structuredContent", None)
    elif not isinstance(structured, dict):
        kept["structuredContent"] = {"result": structured}
    return kept


def _part(part: Any) -> Raw:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    content = cast("Raw", part) if isinstance(part, dict) else {}
    for left_out in ((), ("annotations", "_meta", "icons")):
        lean = {key: value for key, value in content.items() if key not in left_out and value is not None}
        try:
            read = _PART.validate_python(lean, by_name=False)
        except ValidationError:
            continue
        if read.type == content.get("type"):
            return lean
    if content.get("type", "text") == "text" and "text" in content:
        text: Any = content["text"]
        return {"type": "text", "text": "" if text is None else text if isinstance(text, str) else json.dumps(text)}
    kind: Any = content.get("type")
    return _stand_in(kind[:_LONGEST_TYPE] if isinstance(kind, str) and kind else "unknown")


def _stand_in(kind: str) -> Raw:
    return {"type": "text", "text": "", "_meta": {UNKNOWN_PART: kind}}


def unknown_part(part: types.ContentBlock) -> str | None:
    """The type of a part that is not read here, if this stands for one."""
    meta: Mapping[str, Any] = (part.meta or {}) if isinstance(part, types.TextContent) else {}
    kind = meta.get(UNKNOWN_PART)
    return kind if isinstance(kind, str) else None


_TOKEN = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u[dD][c-fC-F][0-9a-fA-F]{2}|.)", re.DOTALL
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_UNFINISHED = re.compile(rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?\\+(?:u[0-9a-fA-F]{0,4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?\Z")
_ESCAPE_BYTES, _PAIR_BYTES, _LOOK_BACK = 6, 12, 4096


class Halves:
    """Bytes of JSON in which halves of surrogate pairs become U+FFFD, in pieces as they come."""

    def __init__(self) -> None:
        self._kept = b""

    def take(self, chunk: bytes) -> bytes:
        """What can be said so far."""
        if not self._kept and b"\\" not in chunk:
            return chunk
        data = self._kept + chunk
        end = _UNFINISHED.search(data, max(0, len(data) - _LOOK_BACK))
        cut = len(data) if end is None else end.start()
        data, self._kept = data[:cut], data[cut:]
        return self._whole(data)

    def rest(self) -> bytes:
        """What is left at the end."""
        data, self._kept = self._kept, b""
        return self._whole(data)

    def _whole(self, data: bytes) -> bytes:
        return data if _HALF.search(data) is None else _TOKEN.sub(_replaced, data)


def _replaced(token: re.Match[bytes]) -> bytes:
    is_half = len(token[0]) == _ESCAPE_BYTES and token[0][1:2] == b"u"
    return rb"\ufffd" if is_half else token[0]
