"""Encodes and decodes the JSON and headers of NATS messages.

Payloads are JSON objects, read strictly, and written in ASCII so that no text can fail to encode.
"""

import json
from typing import cast

from nats.aio.msg import Msg
from pydantic import JsonValue
from pydantic_core import from_json

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest


def headers_of(msg: Msg) -> dict[str, str]:
    """The headers as text that PostgreSQL and JSON can hold: nats-py decodes non-UTF-8 bytes as lone surrogates."""
    return {name: _text(value) for name, value in (msg.headers or {}).items()}


def _text(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "\ufffd")


def encode(value: JsonObject) -> bytes:
    """The object as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode_object(payload: bytes) -> JsonObject:
    """The JSON object in `payload`; raises `BadRequest` for anything else."""
    try:
        # pydantic's parser bounds nesting and refuses lone surrogates; `json` would raise RecursionError
        value = cast("JsonValue", from_json(payload, allow_inf_nan=False))
    except ValueError:
        raise BadRequest("the payload is not valid JSON") from None
    if not isinstance(value, dict):
        raise BadRequest("the payload must be a JSON object")
    return value
