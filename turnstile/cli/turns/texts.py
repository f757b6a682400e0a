"""Reads a text given on the command line: as an argument, from a file, or from standard input."""

import sys
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import from_json

from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES


def given_text(text: str | None, file: Path | None) -> str:
    """The text, or the file's content; `-` reads standard input. Raises `BadRequest` for neither or both."""
    if text is not None and file is None:
        return sys.stdin.read() if text == "-" else text
    if file is not None and text is None:
        return sys.stdin.read() if str(file) == "-" else read_text(file)
    raise BadRequest("give a text, or --file FILE")


def read_text(file: Path) -> str:
    """The file's content; raises `BadRequest` that names the file if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{file} cannot be read: {error}") from None


def bounded(text: str, name: str) -> str:
    """The text, if one card can hold it; raises `Refused` (`text_too_large`)."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > TEXT_LIMIT_BYTES:
        raise Refused("text_too_large", f"{name} has {size} bytes; a text is limited to {TEXT_LIMIT_BYTES}: split it")
    return text


def setting_of(argument: str) -> tuple[str, JsonValue]:
    """The name and value of a setting `NAME=VALUE`: JSON, else a text. Raises `BadRequest` if it is none."""
    name, equals, text = argument.partition("=")
    if not name or not equals:
        raise BadRequest(f"{argument[:80]!r} is no setting: write NAME=VALUE, such as temperature=0.2")
    try:
        return name, from_json(text)
    except ValueError:
        return name, text
