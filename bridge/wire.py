"""JSON as it crosses NATS: objects only, read strictly, written in ASCII so that no text can fail to encode."""

import json
from typing import cast

from pydantic import JsonValue
from pydantic_core import from_json

from schema.base import JsonObject
from schema.errors import BadRequest


def encode(value: JsonObject) -> bytes:
    """The object as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode_object(payload: bytes) -> JsonObject:
    """The JSON object in `payload`; raises `BadRequest` if it is none, whatever it is instead."""
    try:
        # pydantic's parser bounds nesting where json raises RecursionError, and refuses lone surrogates
        value = cast("JsonValue", from_json(payload, allow_inf_nan=False))
    except ValueError:
        raise BadRequest("the payload is not valid JSON") from None
    if not isinstance(value, dict):
        raise BadRequest("the payload must be a JSON object")
    return value
