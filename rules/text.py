"""Arguments that models write, and texts without secrets. Pure: it never raises, and returns clean text unchanged."""

import json
import re

from turnstile.schema.base import DEEPEST, JsonObject, too_deep
from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import check_json, read_json_text, storable, storable_object

_SHORTEST_SECRET = 4  # removing a shorter value would damage ordinary words
_CUT = "***"
PENDING = '{"status":"pending"}'
"""Stands, in a request, for the result of a call that waits for the turn whose request it is."""


_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64


def function_name(name: str) -> str:
    """`name` as a function name that every provider accepts: the tool `skills.load` is offered as `skills_load`."""
    plain = _OTHER.sub("_", name) or "unnamed"
    return (plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}")[:_NAME_LENGTH]


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


def cleared(text: str, secrets: frozenset[str]) -> str:
    """The text without secrets, `storable`."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _CUT).replace(json.dumps(secret)[1:-1], _CUT).replace(repr(secret)[1:-1], _CUT)
    return storable(text)
