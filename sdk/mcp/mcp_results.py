"""What an MCP server answers, as the result of a call (protocol §17.1). Pure.

All of it is below `value` and `content`, so that no key of a server's is ever read as one of the kernel's. What is not
text becomes a reference, `{type, mime_type, bytes, uri}`; its data are kept beside it under a key that no model sees,
as far as there is room. Many servers repeat their blocks in the structured content, or that as a text: a repeat is
left out, and the value never holds the data of a block. A text file keeps its text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import mcp_types as types
from pydantic import JsonValue, TypeAdapter, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.cards import DATA_KEY
from turnstile.schema.json_reading import storable, storable_json
from turnstile.schema.parameters import SchemaTooCostly, checks
from turnstile.sdk.mcp.lenient import unknown_part
from turnstile.sdk.mcp.mcp_server import McpServer
from turnstile.sdk.mcp.tool_pins import RemoteTool, seen
from turnstile.sdk.tools.answer import ToolFailed

_MOST_PARTS = 64
_SHORT = 16
"""Data in base64 that are shorter are no burden, and may be any word."""
_LONGEST_URI, _LONGEST_MIME = 1024, 128
_JSON = TypeAdapter[JsonValue](JsonValue)


def result_of(entry: McpServer, tool: RemoteTool, result: types.CallToolResult) -> JsonObject:
    """The result of a call; raises `ToolFailed` (`tool_error`, `invalid_result`, `result_too_large`)."""
    texts = [
        storable(part.text) for part in result.content if isinstance(part, types.TextContent) and not unknown_part(part)
    ]
    if result.is_error:
        raise ToolFailed("tool_error", "\n".join(texts) or "the tool failed, and the server does not say why")
    value = _value(result, texts)
    if (size := len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))) > entry.max_result_bytes:
        limit = f"{entry.max_result_bytes} bytes are passed on"
        raise ToolFailed("result_too_large", f"the MCP server answered {size} bytes, and {limit}: ask for less")
    if tool.output_schema is not None:
        _check(tool.output_schema, result)
    references, data = _attachments(result, entry)
    fields: JsonObject = {"value": value}
    if references:
        fields["content"] = [*references]
    if data:
        fields[DATA_KEY] = data
    return fields


def _value(result: types.CallToolResult, texts: list[str]) -> JsonValue:
    """The structured content, or the text; both if the text says something else."""
    media = _media(result)
    joined = _without(media, "\n".join(texts))
    texts = [_without(media, t) for t in texts]
    if result.structured_content is None:
        return joined if texts else None
    try:
        received = storable_json(_JSON.validate_python(result.structured_content))
    except ValidationError:
        raise ToolFailed("invalid_result", "the structured content of the MCP server's answer is no JSON") from None
    if media and _repeats(result.content, received):
        return joined if texts else None
    structured = _cleared(media, received)
    values = [_parsed(joined), joined, [_parsed(text) for text in texts], [*texts]]
    repeated = any(structured in (v, {"result": v}) for v in values)
    return structured if repeated or not texts else {"structured": structured, "text": joined}


def _media(result: types.CallToolResult) -> dict[str, str]:
    """The data of its blocks that are no text, with what stands for each in the value."""
    held = [data for _, data in _parts(result, 0)]
    return {data: f"content[{place}]" for place, data in enumerate(held) if data is not None and len(data) >= _SHORT}


def _without(media: Mapping[str, str], text: str) -> str:
    for data, name in media.items():
        text = text.replace(data, name)
    return text


def _cleared(media: Mapping[str, str], value: JsonValue) -> JsonValue:
    """The value with the name of each block for the block's data."""
    match value:
        case str():
            return _without(media, value)
        case list():
            return [_cleared(media, item) for item in value]
        case dict():
            return {name: _cleared(media, item) for name, item in value.items()}
        case _:
            return value


def _repeats(content: Sequence[types.ContentBlock], structured: JsonValue) -> bool:
    """Whether a structured content is nothing but the blocks: a list of them, or one, also below one key."""
    inner = next(iter(structured.values())) if isinstance(structured, dict) and len(structured) == 1 else structured
    items = inner if isinstance(inner, list) else [inner]
    blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in content]
    return len(items) == len(blocks) and all(
        isinstance(item, dict)
        and block.items() <= {name: part for name, part in item.items() if part is not None}.items()
        for item, block in zip(items, blocks, strict=True)
    )


def _parsed(text: str) -> JsonValue:
    try:
        return _JSON.validate_json(text)
    except ValidationError:
        return None


def _check(schema: JsonObject, result: types.CallToolResult) -> None:
    if result.structured_content is None:
        raise ToolFailed("invalid_result", "the MCP server's answer lacks its structured content")
    try:
        fault = checks(schema).fault(result.structured_content)
    except SchemaTooCostly:
        raise ToolFailed("invalid_result", "checking the MCP server's answer takes too long") from None
    except ValueError as error:
        raise ToolFailed("invalid_result", f"the output schema {error}") from None
    if fault is not None:
        where = "/".join(map(str, fault.path))[:200]
        raise ToolFailed("invalid_result", f"the MCP server's answer does not fit its output schema at /{where}")


def _attachments(result: types.CallToolResult, entry: McpServer) -> tuple[list[JsonObject], JsonObject]:
    """References to what is not text, and the data of those that fit, by their place among them."""
    references: list[JsonObject] = []
    kept: JsonObject = {}
    room = entry.max_attachment_bytes
    for reference, data in _parts(result, entry.max_result_bytes):
        if len(references) == _MOST_PARTS:
            references.append({"type": "left_out", "reason": f"more than {_MOST_PARTS} parts"})
            break
        if data is not None and 0 < len(data) <= room:
            room -= len(data)
            kept[str(len(references))] = data
        references.append({name: value for name, value in reference.items() if value is not None})
    return references, kept


def _parts(result: types.CallToolResult, longest_text: int) -> Iterator[tuple[JsonObject, str | None]]:
    for part in result.content:
        if (kind := unknown_part(part)) is not None:
            yield {"type": seen(kind), "reason": "a part of this type is not read here"}, None
            continue
        match part:
            case types.ImageContent() | types.AudioContent():
                yield {"type": part.type, "mime_type": _mime(part.mime_type), "bytes": _size(part.data)}, part.data
            case types.EmbeddedResource(resource=types.TextResourceContents() as held):
                size = len(held.text.encode(errors="replace"))
                text: JsonObject = {"text": held.text} if size <= longest_text else {}
                yield _resource(held, size) | text, None
            case types.EmbeddedResource(resource=types.BlobResourceContents() as held):
                yield _resource(held, _size(held.blob)), held.blob
            case types.ResourceLink():
                reference: JsonObject = {"type": "resource_link", "uri": part.uri[:_LONGEST_URI], "bytes": part.size}
                yield reference | {"mime_type": _mime(part.mime_type), "name": part.name[:200]}, None
            case _:
                pass


def _resource(held: types.TextResourceContents | types.BlobResourceContents, size: int) -> JsonObject:
    return {"type": "resource", "mime_type": _mime(held.mime_type), "bytes": size, "uri": held.uri[:_LONGEST_URI]}


def _mime(value: str | None) -> str | None:
    return None if value is None else value[:_LONGEST_MIME]


def _size(base64: str) -> int:
    """The bytes that a text in base64 stands for."""
    return len(base64.rstrip("=")) * 3 // 4
