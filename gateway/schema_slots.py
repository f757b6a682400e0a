"""One value of a JSON schema as one field of a form, and what a person typed there as JSON again. Pure.

A field that nobody has touched reads as exactly the value that it was made of, whatever a text field would make of it.
What has no field of its own, or would not be seen in one (control characters, writing from right to left), is JSON.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final, NoReturn, cast

from pydantic import JsonValue

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import check_json
from turnstile.schema.visible import is_hidden

_MOST_CHOICES = 50
_LONG_TEXT = 80
_LONGEST_LIST = 200
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,30})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?")


class LeftOut(StrEnum):
    """The one value of its type: an argument that is left out."""

    MISSING = "missing"


MISSING: Final = LeftOut.MISSING
Given = JsonValue | LeftOut


class InputKind(StrEnum):
    """How a value is typed."""

    TEXT = "text"
    LONG_TEXT = "long_text"
    INTEGER = "integer"
    NUMBER = "number"
    CHOICE = "choice"
    LIST = "list"
    """Of texts or numbers, one a line."""
    JSON = "json"


class WrongInput(ValueError):
    """What was typed is no such value; the message says what to type."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of a form: its place in the schema, and what it was when the form was made."""

    name: str
    """Of its field in the form."""
    label: str
    schema: JsonObject
    required: bool
    value: Given
    kind: InputKind

    @property
    def shown(self) -> str:
        """The text of its field before anybody types."""
        if self.value is MISSING:
            return ""
        match self.kind:
            case InputKind.TEXT | InputKind.LONG_TEXT:
                return str(self.value)
            case InputKind.INTEGER | InputKind.NUMBER:
                return json.dumps(self.value)
            case InputKind.CHOICE:
                return str(next(n for n, value in enumerate(allowed_values(self.schema)) if _same(value, self.value)))
            case InputKind.LIST:
                items = cast("list[JsonValue]", self.value)
                return "\n".join(item if isinstance(item, str) else json.dumps(item) for item in items)
            case InputKind.JSON:
                return shown_json(self.value)

    def read(self, typed: str) -> Given:
        """The value of what was typed; raises `WrongInput`."""
        text = typed.replace("\r\n", "\n")
        if text == self.shown.replace("\r\n", "\n") and (self.value is not MISSING or not self.required):
            return self.value
        if not text.strip():
            return self._emptied()
        match self.kind:
            case InputKind.TEXT | InputKind.LONG_TEXT:
                return text
            case InputKind.INTEGER:
                return _integer(text.strip())
            case InputKind.NUMBER:
                return _number(text.strip())
            case InputKind.CHOICE:
                known = allowed_values(self.schema)
                if not (text.isascii() and text.isdigit()) or int(text[:4]) >= len(known):
                    raise WrongInput("Choose an item from the list.")
                return known[int(text)]
            case InputKind.LIST:
                return [_item(self.schema, part.strip()) for part in text.split("\n") if part.strip()]
            case InputKind.JSON:
                return read_json(text)

    def _emptied(self) -> Given:
        is_text = self.kind in (InputKind.TEXT, InputKind.LONG_TEXT)
        if self.value is not MISSING and (self.kind is InputKind.LIST or (is_text and self.required)):
            return [] if self.kind is InputKind.LIST else ""
        if self.required:
            raise WrongInput("This field is required.")
        return MISSING


def slot(name: str, label: str, schema: JsonValue, value: Given, *, required: bool) -> Slot:
    """The slot of a value whose schema is this."""
    properties: JsonObject = schema if isinstance(schema, dict) else {}
    return Slot(name, label, properties, required, value, _kind(properties, value))


def allowed_values(schema: JsonObject) -> list[JsonValue]:
    """The scalars that a schema allows; none if it does not name them."""
    if schema.get("type") == "boolean" and "enum" not in schema and "const" not in schema:
        return [True, False]
    named = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(named, list) or not 0 < len(named) <= _MOST_CHOICES:
        return []
    return named if all(isinstance(value, str | int | float | bool | None) for value in named) else []


def choice_text(value: JsonValue) -> str:
    """How a choice is called: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) and is_plain(value) and value.strip() else shown_json(value)


def hints(slot: Slot) -> str:
    """What may be typed, in words."""
    schema, hints_found = slot.schema, list[str]()
    words = (
        ("minimum", "at least {}"),
        ("exclusiveMinimum", "more than {}"),
        ("maximum", "at most {}"),
        ("exclusiveMaximum", "less than {}"),
        ("multipleOf", "in steps of {}"),
        ("minLength", "at least {} characters"),
        ("maxLength", "at most {} characters"),
        ("minItems", "at least {} lines"),
        ("maxItems", "at most {} lines"),
        ("pattern", "of the form {}"),
        ("format", "{}"),
        ("default", "default {}"),
    )
    for name, sentence in words:
        value = schema.get(name)
        if name in schema and isinstance(value, str | int | float):
            hints_found.append(sentence.format(choice_text(value)[:100]))
    match slot.kind:
        case InputKind.INTEGER:
            hints_found.insert(0, "a whole number")
        case InputKind.NUMBER:
            hints_found.insert(0, "a number")
        case InputKind.LIST:
            hints_found.insert(0, "one per line")
        case InputKind.JSON:
            hints_found.insert(0, "JSON")
        case InputKind.TEXT | InputKind.LONG_TEXT | InputKind.CHOICE:
            pass
    return ", ".join(hints_found)


def is_plain(text: str) -> bool:
    """Whether all of a text is seen where it is shown; line breaks and tabs are."""
    return not any(is_hidden(c) for c in set(text) - {"\n", "\t"})


def shown_json(value: JsonValue) -> str:
    """A value as JSON in lines, with what would not be seen in it written as escapes."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if is_plain(text) else json.dumps(value, indent=2, ensure_ascii=True)


def read_json(text: str) -> JsonValue:
    """The JSON that was typed; raises `WrongInput`, which says where it is none."""
    try:
        check_json(text.encode("utf-8", "surrogatepass"))
        return cast("JsonValue", json.loads(text, parse_constant=_no_number, object_pairs_hook=_once))
    except json.JSONDecodeError as error:
        raise WrongInput(f"Not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except BadRequest as error:
        raise WrongInput(f"{error}.".replace("the payload", "It", 1)) from None
    except RecursionError:
        raise WrongInput("It is nested too deeply.") from None
    except ValueError as error:
        raise WrongInput(str(error) if isinstance(error, WrongInput) else "A number has too many digits.") from None


def _kind(schema: JsonObject, current: Given) -> InputKind:
    if known := allowed_values(schema):
        return (
            InputKind.CHOICE if current is MISSING or any(_same(value, current) for value in known) else InputKind.JSON
        )
    match schema.get("type"):
        case "string" if current is MISSING or (isinstance(current, str) and is_plain(current)):
            text = "" if current is MISSING else str(current)
            most = schema.get("maxLength")
            is_short = isinstance(most, int) and most <= _LONG_TEXT
            is_long = "\n" in text or len(text) > _LONG_TEXT
            return InputKind.TEXT if not is_long and (is_short or current is not MISSING) else InputKind.LONG_TEXT
        case "integer" if current is MISSING or (isinstance(current, int) and not isinstance(current, bool)):
            return InputKind.INTEGER
        case "number" if current is MISSING or (isinstance(current, int | float) and not isinstance(current, bool)):
            return InputKind.NUMBER
        case "array" if _is_list(schema, current):
            return InputKind.LIST
        case _:
            return InputKind.JSON


def _is_list(schema: JsonObject, value: Given) -> bool:
    items = schema.get("items")
    if not isinstance(items, dict) or "prefixItems" in schema:
        return False
    if items.get("type") not in ("string", "integer", "number"):
        return False
    if value is MISSING:
        return True
    if not isinstance(value, list) or len(value) > _LONGEST_LIST:
        return False
    try:
        return all(_same(_item(schema, item if isinstance(item, str) else json.dumps(item)), item) for item in value)
    except WrongInput:
        return False


def _item(schema: JsonObject, text: str) -> JsonValue:
    """One line of a list."""
    items = cast("JsonObject", schema["items"])
    match items.get("type"):
        case "integer":
            return _integer(text)
        case "number":
            return _number(text)
        case _ if text != text.strip() or not text or "\n" in text or not is_plain(text):
            raise WrongInput("Each line is one text.")
        case _:
            return text


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise WrongInput("Type a whole number, such as 12.")
    return int(text)


def _number(text: str) -> JsonValue:
    if _INTEGER.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text):
        raise WrongInput("Type a number, such as 12.5.")
    number = float(text)
    if Decimal(repr(number)) != Decimal(text):
        raise WrongInput("The number has too many digits.")
    return number


def _same(one: JsonValue, other: Given) -> bool:
    """Whether two values are the same JSON: 1 and true are not."""
    return type(one) is type(other) and one == other


def _no_number(text: str) -> NoReturn:
    raise WrongInput(f"{text} is not valid JSON.")


def _once(pairs: list[tuple[str, JsonValue]]) -> Mapping[str, JsonValue]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise WrongInput("A name occurs twice.")
    return fields
