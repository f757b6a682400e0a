"""Reads arguments of commands: a text, from a file or standard input too; settings; budgets."""

import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path

from pydantic import JsonValue, ValidationError
from pydantic_core import from_json

from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.json_reading import read_json_object
from turnstile.schema.validation import faults_in
from turnstile.schema.wire.inbox import IN_PARTS, TEXT_LIMIT_BYTES


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


def given_schema(file: Path) -> JsonObject:
    """The JSON object in a file; raises `BadRequest` that names the file if it holds none."""
    try:
        return read_json_object(read_text(file).encode())
    except BadRequest as error:
        raise BadRequest(f"{file}: {error}") from None


def bounded(text: str, name: str) -> str:
    """The text, if one card can hold it; raises `Refused` (`text_too_large`)."""
    if (size := len(text.encode("utf-8", "surrogatepass"))) > TEXT_LIMIT_BYTES:
        limit = f"a text is limited to {TEXT_LIMIT_BYTES}"
        raise Refused("text_too_large", f"{name} has {size} bytes; {limit}: {IN_PARTS}")
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


_BUDGET_FIELDS = {
    "tokens": "max_tokens",
    "usd": "max_cost_usd",
    "turns": "max_turns",
    "seconds": "max_seconds",
    "warn": "warn_percent",
}


def budget_option(text: str | None) -> JsonObject | None:
    """The budget of a `--budget tokens=N,usd=N,turns=N,seconds=N`; raises `BadRequest` that names what is wrong."""
    if text is None:
        return None
    amounts: dict[str, Decimal | int | str] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        field = _BUDGET_FIELDS.get(name)
        if field is None or not equals or field in amounts:
            known = ",".join(f"{budget_field}=N" for budget_field in _BUDGET_FIELDS)
            raise BadRequest(f"--budget: {part.strip()[:80]!r} is none of {known}, each at most once")
        amounts[field] = _number(number, Decimal if field == "max_cost_usd" else int)
    try:
        limits = BudgetLimits.model_validate(amounts)
    except ValidationError as error:
        [fault] = faults_in(error, BudgetLimits, most=1)
        names = {field: name for name, field in _BUDGET_FIELDS.items()}
        where = f"{names.get(str(fault.path[0]), fault.path[0])}: " if fault.path else ""
        raise BadRequest(f"--budget: {where}{fault.sentence}") from None
    return limits.model_dump(mode="json", exclude_none=True)


def _number(text: str, kind: Callable[[str], Decimal | int]) -> Decimal | int | str:
    """The number; what is none stays a text, which is then refused."""
    try:
        return kind(text)
    except (ValueError, InvalidOperation):
        return text
