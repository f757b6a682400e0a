"""Generates an AsyncAPI 3.0 document from the catalog.

There is one operation for each role and subject, tagged with the role: authors of a client use those of `client`.
The document is complete in itself: the schemas of payloads and headers, and those they refer to, stand once each
below `components/schemas`.
"""

from typing import Any, cast

from turnstile.schema.base import JsonObject
from turnstile.schema.interface.catalog import ENTRIES
from turnstile.schema.interface.entries import PARAMETERS, Entry, Transport
from turnstile.schema.interface.json_schemas import docstrings, schemas
from turnstile.schema.verbs import Party
from turnstile.schema.wire import subjects

ASYNCAPI = "3.0.0"
_SCHEMAS = "#/components/schemas/"
_ABOUT = (
    "Everything that Turnstile's kernel, its clients and its tools say to each other on NATS. docs/protocol.md of"
    " the repository has the rules; sections (§) are of that page. Subjects hold a project and a channel; each id in"
    " them is one token of A-Z a-z 0-9 _ -, at most 128 characters."
)


def document() -> JsonObject:
    """The whole document."""
    channels: JsonObject = {}
    operations: JsonObject = {}
    messages: JsonObject = {}
    for entry in ENTRIES:
        channels[entry.name] = _channel(entry)
        messages[entry.name] = _message(entry)
        if entry.reply is not None:
            messages[f"{entry.name}.reply"] = _reply_message(entry)
            channels[f"{entry.name}.reply"] = _reply_channel(entry)
        operations.update(_operations(entry))
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "Turnstile",
            "version": subjects.VERSION,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
            "tags": [{"name": Party[name].value, "description": about} for name, about in docstrings(Party).items()],
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "schemas": _schemas(),
            "parameters": {name: {"description": about} for name, about in PARAMETERS.items()},
        },
    }


def _channel(entry: Entry) -> JsonObject:
    return {
        "address": entry.address,
        "summary": entry.summary,
        "description": f"{_transport(entry)} Protocol §{entry.section}.",
        "parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in entry.parameters},
        "messages": {"message": {"$ref": f"#/components/messages/{entry.name}"}},
        "x-nats": {"transport": entry.transport.value, **({"stream": entry.stream} if entry.stream else {})},
    }


def _transport(entry: Entry) -> str:
    about = docstrings(Transport)[entry.transport.name]
    return about if entry.stream is None else f"{about} This one is `{entry.stream}`."


def _reply_channel(entry: Entry) -> JsonObject:
    return {
        "address": None,
        "summary": f"The reply inbox of a request on `{entry.subject}`.",
        "messages": {"message": {"$ref": f"#/components/messages/{entry.name}.reply"}},
    }


def _message(entry: Entry) -> JsonObject:
    message: JsonObject = {"name": entry.name, "summary": entry.summary}
    if entry.headers is not None:
        message["headers"] = _schema(entry.headers)
    if entry.payload is not None:
        message["payload"] = _schema(entry.payload)
    return message


def _reply_message(entry: Entry) -> JsonObject:
    message: JsonObject = {"name": f"{entry.name}.reply", "summary": f"The answer to `{entry.subject}`."}
    return message if entry.reply is None else {**message, "payload": _schema(entry.reply)}


def _schema(model: type) -> JsonObject:
    return {"$ref": f"{_SCHEMAS}{model.__name__}"}


def _schemas() -> JsonObject:
    """Every schema once; raises `ValueError` if two differ under one name."""
    texts: JsonObject = {}
    for name, text in schemas().items():
        parts = cast("JsonObject", text.get("$defs", {}))
        whole: JsonObject = {key: value for key, value in text.items() if key not in {"$schema", "$defs"}}
        for part, schema in (*parts.items(), (name, whole)):
            moved = _moved(schema)
            if texts.setdefault(part, moved) != moved:
                raise ValueError(f"two schemas are named {part}: give one model another name")
    return dict(sorted(texts.items()))


def _moved(value: Any) -> Any:
    """The schema with its references led to `components/schemas`."""
    match value:
        case {"$ref": str(reference)}:
            return {**value, "$ref": reference.replace("#/$defs/", _SCHEMAS)}
        case dict():
            return {key: _moved(part) for key, part in cast("dict[str, Any]", value).items()}
        case list():
            return [_moved(part) for part in cast("list[Any]", value)]
        case _:
            return value


def _operations(entry: Entry) -> JsonObject:
    operations: JsonObject = {}
    for action, roles in (("send", entry.senders), ("receive", entry.receivers)):
        for role in roles:
            operation: JsonObject = {
                "action": action,
                "channel": {"$ref": f"#/channels/{entry.name}"},
                "summary": entry.summary,
                "tags": [{"name": role.value}],
                "messages": [{"$ref": f"#/channels/{entry.name}/messages/message"}],
            }
            if entry.reply is not None:
                reply = f"#/channels/{entry.name}.reply"
                operation["reply"] = {"channel": {"$ref": reply}, "messages": [{"$ref": f"{reply}/messages/message"}]}
            operations[f"{role.value}.{action}.{entry.name}"] = operation
    return operations
