"""Reads what a form of a page sends, and holds an action to what its page showed."""

import asyncio
import hashlib
from typing import Final
from urllib.parse import parse_qsl

from pydantic import JsonValue
from starlette.requests import Request

from turnstile.gateway.http.endpoints import read_bytes
from turnstile.schema.errors import BadRequest, Refused

_FORM: Final = "application/x-www-form-urlencoded"
_FIELDS: Final = 500
_AT_ONCE: Final = 1 << 15
"""The bytes of a form that are read on the loop."""


async def read_form(request: Request, most: int) -> dict[str, JsonValue]:
    """The fields of a form; one that is given several times is a list. Raises `BadRequest` or `Refused`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refused("unsupported_media_type", f"a form must be sent as {_FORM}")
    data = await read_bytes(request, most)
    try:
        # a megabyte of percent signs takes 0.1 s, in which a loop would serve nobody
        pairs = _pairs(data) if len(data) <= _AT_ONCE else await asyncio.to_thread(_pairs, data)
    except ValueError:  # also one that is no UTF-8
        raise BadRequest("this form cannot be read") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value.replace("\r\n", "\n"))  # forms have no other line breaks
    return {name: values[0] if len(values) == 1 else [*values] for name, values in fields.items()}


def _pairs(data: bytes) -> list[tuple[str, str]]:
    text = data.decode("ascii")
    return parse_qsl(text, keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=_FIELDS)


def seen_of(*facts: object) -> str:
    """What a page shows of the thing that its form changes, as the value of the form's field `seen`."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def require_seen(seen: str, *facts: object) -> None:
    """Raises `Refused` (changed_meanwhile) if these facts are no longer those that the page showed."""
    if seen != seen_of(*facts):
        raise Refused(
            "changed_meanwhile",
            "it has changed since this page was loaded, or the form was already sent. Nothing was done: check what the"
            " page shows now, and decide again",
        )
