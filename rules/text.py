"""Cleans text from outside: PostgreSQL and NATS store neither NUL nor half a surrogate pair, and models send both.

Pure. It never raises, and returns clean text unchanged.
"""

import json
from math import isfinite

from pydantic import JsonValue

from turnstile.schema.base import DEEPEST, JsonObject, too_deep
from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import check_json, read_json_text

_SHORTEST_SECRET = 4  # removing a shorter value would damage ordinary words
_CUT = "***"
PENDING = '{"status":"pending"}'
"""Stands, in a request, for the result of a call that waits for the turn whose request it is."""


def storable(text: str) -> str:
    """`text` without NUL, with split surrogate pairs joined and lone halves replaced by U+FFFD."""
    text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable_json(value: JsonValue) -> JsonValue:
    """`value` with every string and key in it `storable`, and null for numbers that JSON has not: NaN, infinity."""
    match value:
        case str():
            return storable(value)
        case float():
            return value if isfinite(value) else None
        case list():
            return [storable_json(item) for item in value]
        case dict():
            return {storable(key): storable_json(item) for key, item in value.items()}
        case _:
            return value


def parse_arguments(text: str) -> JsonObject | None:
    """A tool call's arguments as a storable JSON object, `{}` if empty.

    None if they are anything else, hold NaN or too many values, or are nested deeper than `DEEPEST`.
    """
    if not text.strip():
        return {}
    try:
        value = read_json_text(text)
    except BadRequest:
        return None
    return storable_object(value) if isinstance(value, dict) and not too_deep(value) else None


def bad_arguments(name: str, text: str) -> str:
    """The error for a model whose arguments `parse_arguments` refused."""
    try:
        check_json(text.encode("utf-8", "surrogatepass"))
        deep = too_deep(json.loads(text))
    except BadRequest as error:
        return f"The arguments of {name} are too much: {error}."
    except ValueError:
        deep = False
    except RecursionError:
        deep = True
    return f"The arguments of {name} are {f'nested deeper than {DEEPEST} levels' if deep else 'not a JSON object'}."


def storable_object(value: JsonObject) -> JsonObject:
    """`storable_json` for an object."""
    return {storable(key): storable_json(item) for key, item in value.items()}


def cleared(text: str, secrets: frozenset[str]) -> str:
    """The text without secrets, and without the characters PostgreSQL cannot store: NUL and lone surrogates."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _CUT).replace(json.dumps(secret)[1:-1], _CUT).replace(repr(secret)[1:-1], _CUT)
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
