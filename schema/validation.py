"""One wording for what pydantic finds wrong: `faults_in` returns a path and a sentence for each fault.

Every surface that shows people (or models) why their input was refused uses it: commands, HTTP, replies on NATS, the
console, files. A sentence never quotes a value, only names of fields and the limits of our own models; a field that
does not exist is answered with the one that was probably meant. At most `most` faults are returned.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, RootModel, ValidationError
from pydantic_core import ErrorDetails, core_schema, from_json
from typing_extensions import TypeAliasType

_MOST = 8
_LONGEST_NAME = 100
_MOST_NAMES = 24
_MANY = 200
_BRANCHES = 16
"""The most of pydantic's errors that are read for one fault: those of the branches of a union."""
_LISTS = (list, tuple, set, frozenset, Sequence)
_BRANCH = re.compile(r"[\[(]")
"""Parts of a path that are pydantic's own: `function-after[…]`, `list[str]`, `[key]`."""

_SENTENCES: dict[str, str] = {
    "missing": "is missing",
    "none_required": "must be null",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_sub_type": "must be text",
    "string_unicode": "must be text in UTF-8",
    "string_not_ascii": "must be text in ASCII",
    "bytes_type": "must be text",
    "bytes_invalid_encoding": "has the wrong encoding",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "decimal_type": "must be a number",
    "decimal_parsing": "must be a number",
    "complex_type": "must be a number",
    "complex_str_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dataclass_type": "must be an object",
    "dataclass_exact_type": "must be an object",
    "model_class_type": "must be an object",
    "arguments_type": "must be an object",
    "mixed_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "set_type": "must be a list",
    "frozen_set_type": "must be a list",
    "iterable_type": "must be a list",
    "set_item_not_hashable": "must hold plain values",
    "frozen_set_item_not_hashable": "must hold plain values",
    "date_type": "must be a date, such as 2026-01-31",
    "date_parsing": "must be a date, such as 2026-01-31",
    "date_from_datetime_parsing": "must be a date, such as 2026-01-31",
    "date_from_datetime_inexact": "must be a date without a time",
    "date_past": "must be in the past",
    "date_future": "must be in the future",
    "time_type": "must be a time, such as 12:30:00",
    "time_parsing": "must be a time, such as 12:30:00",
    "datetime_type": "must be a date and time, such as 2026-01-31T12:30:00Z",
    "datetime_parsing": "must be a date and time, such as 2026-01-31T12:30:00Z",
    "datetime_from_date_parsing": "must be a date and time, such as 2026-01-31T12:30:00Z",
    "datetime_object_invalid": "must be a date and time, such as 2026-01-31T12:30:00Z",
    "datetime_past": "must be in the past",
    "datetime_future": "must be in the future",
    "timezone_naive": "must have no time zone",
    "timezone_aware": "must name its time zone, as in 2026-01-31T12:30:00Z",
    "timezone_offset": "is in the wrong time zone",
    "time_delta_type": "must be a duration, in seconds or as PT30S",
    "time_delta_parsing": "must be a duration, in seconds or as PT30S",
    "json_invalid": "is not valid JSON",
    "json_type": "must be text that is JSON",
    "url_type": "must be an address",
    "url_parsing": "must be an address, such as https://example.org",
    "url_syntax_violation": "must be an address, such as https://example.org",
    "uuid_type": "must be a UUID",
    "uuid_parsing": "must be a UUID",
    "uuid_version": "must be a UUID of another version",
    "union_tag_not_found": "does not say of which kind it is",
    "recursion_loop": "contains itself",
    "invalid_key": "has a key that is no text",
    "callable_type": "must be a function",
    "frozen_field": "cannot be changed",
    "frozen_instance": "cannot be changed",
    "decimal_max_digits": "has too many digits",
    "decimal_max_places": "has too many digits after the point",
    "decimal_whole_digits": "has too many digits before the point",
}
_WITH_LIMITS: dict[str, str] = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "may have at most {max_length} characters",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "bytes_too_short": "must have at least {min_length} bytes",
    "bytes_too_long": "may have at most {max_length} bytes",
    "too_short": "must have at least {min_length} items",
    "too_long": "may have at most {max_length} items",
    "url_too_long": "may have at most {max_length} characters",
    "url_scheme": "must be an address that begins with {expected_schemes}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_invalid": "must be of one of the kinds {expected_tags}",
}
_UNKNOWN_NAME = frozenset({"extra_forbidden", "unexpected_keyword_argument", "no_such_attribute"})
_OWN = frozenset({"value_error", "assertion_error"})
"""Faults whose words are our validators' own."""
_PYDANTICS = frozenset(cast("tuple[str, ...]", get_args(core_schema.ErrorType)))
_STOCK = re.compile(r"^(?:[A-Za-z]+ )?(?:[Ii]nput )?(should|must) (not )?")


@dataclass(frozen=True, slots=True)
class ValidationFault:
    """One thing that is wrong: where, in dots (empty: with the whole), and what, as the rest of a sentence."""

    path: tuple[str | int, ...]
    sentence: str
    kind: str = ""
    """Pydantic's name for it."""
    value: object = field(default=None, repr=False)
    """What was refused; only to be shown to whoever wrote it, such as of a file."""
    known: tuple[str, ...] = ()
    """Of a field that does not exist: the fields that do, the closest first."""

    @property
    def place(self) -> str:
        """The path as people write it: `choices.0.name`."""
        return ".".join(str(part)[:_LONGEST_NAME] for part in self.path)

    def said(self, whole: str = "") -> str:
        """`place: sentence`; of the whole, with its noun or without one."""
        where = self.place or whole
        return f"{where}: {self.sentence}" if where else self.sentence


def faults_in(error: ValidationError, form: object = None, *, most: int = _MOST) -> list[ValidationFault]:
    """The faults, at most so many; `form` is the model (or type) that refused, by which wrong names are answered.

    A value that fits no branch of a union is one fault, with what each branch wants.
    """
    merged: dict[tuple[str | int, ...], list[ValidationFault]] = {}
    for details in _details(error)[: most * _BRANCHES]:
        path, forms = _descend(form, details)
        known = _known(str(path[-1]), forms) if details["type"] in _UNKNOWN_NAME else ()
        fault = ValidationFault(
            path, _sentence(details, known), details["type"], cast("object", details.get("input")), known
        )
        merged.setdefault(path, []).append(fault)
    return [
        replace(faults[0], sentence=_joined([fault.sentence for fault in faults]))
        for faults in list(merged.values())[:most]
    ]


def _details(error: ValidationError) -> list[ErrorDetails]:
    """Pydantic's errors; of thousands, as a stranger's list may have, the first, without their values and limits.

    A list of 20,000 takes 50 ms, most of them for garbage; as text it takes 5 ms, and only its begin is read.
    """
    if error.error_count() <= _MANY:
        return error.errors(include_url=False)
    text = error.json(include_url=False, include_input=False, include_context=False)
    some = from_json(text[: _MANY * 500], allow_partial=True)[:-1]  # the last one is cut
    return cast("list[ErrorDetails]", some or from_json(text))


def has_fault(error: ValidationError, kind: str) -> bool:
    """Whether one of the faults is of this kind, by pydantic's name or our own."""
    return any(fault["type"] == kind for fault in error.errors(include_url=False, include_input=False))


def describe_faults(error: ValidationError, form: object = None, *, whole: str = "", most: int = _MOST) -> str:
    """All faults in one line: `a: is missing; b: must be text`."""
    return "; ".join(fault.said(whole) for fault in faults_in(error, form, most=most))


def unknown_name(name: str, known: Sequence[str], noun: str = "field") -> str:
    """What to say of a name that does not exist: the closest ones, else all there are."""
    if close := difflib.get_close_matches(name[:_LONGEST_NAME], known, n=2):
        return f"there is no such {noun}; did you mean {' or '.join(close)}?"
    if not known or len(known) > _MOST_NAMES:
        return f"there is no such {noun}"
    return f"there is no such {noun}; there are {', '.join(known)}"


def _known(name: str, forms: Sequence[type[BaseModel]]) -> tuple[str, ...]:
    names = list(dict.fromkeys(known for form in forms for known in _fields(form)))
    return tuple(dict.fromkeys([*difflib.get_close_matches(name[:_LONGEST_NAME], names), *names]))


def _sentence(details: ErrorDetails, known: Sequence[str]) -> str:
    kind, limits = details["type"], cast("Mapping[str, object]", details.get("ctx", {}))
    if kind in _UNKNOWN_NAME:
        return unknown_name(str(details["loc"][-1]), known)
    if kind not in _PYDANTICS:
        return details["msg"]
    if kind in _OWN:
        return details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if (sentence := _SENTENCES.get(kind)) is not None:
        return sentence
    if (template := _WITH_LIMITS.get(kind)) is not None:
        try:
            return _singular(template.format_map(limits))
        except KeyError:
            pass
    if kind.endswith("_type") or kind.startswith("is_"):
        return "is not of the right type"
    words, count = _STOCK.subn(lambda match: f"must {match[2] or ''}", details["msg"], count=1)
    return words if count else f"does not fit ({kind})"


def _singular(sentence: str) -> str:
    """`at least 1 items` reads `at least 1 item`."""
    return re.sub(r"\b1 (character|byte|item)s\b", r"1 \1", sentence)


def _joined(sentences: Sequence[str]) -> str:
    """What the branches of a union want: `must be text or a list`."""
    distinct = list(dict.fromkeys(sentences))
    if len(distinct) > 1 and all(sentence.startswith("must be ") for sentence in distinct):
        return "must be " + " or ".join(sentence.removeprefix("must be ") for sentence in distinct)
    return ", or ".join(distinct)


def _descend(form: object, details: ErrorDetails) -> tuple[tuple[str | int, ...], list[type[BaseModel]]]:
    """The path without what pydantic puts into it for its own branches, and the models in which it ends."""
    at, path, location = _expanded(form), list[str | int](), details["loc"]
    unknown = details["type"] in _UNKNOWN_NAME
    for position, part in enumerate(location):
        if unknown and position == len(location) - 1:
            path.append(part)
            break
        if isinstance(part, int):
            path.append(part)
            at = _items(at)
            continue
        inner = [annotation for model in _models(at) if (annotation := _fields(model).get(part)) is not None]
        if inner:
            path.append(part)
            at = [expanded for annotation in inner for expanded in _expanded(annotation)]
        elif values := _values(at):
            if part != "[key]":
                path.append(part)
                at = values
        elif at and position:
            at = [f for f in at if _is_branch(f, part)] or at
        elif not _BRANCH.search(part):
            path.append(part)
    return tuple(path), _models(at)


def _fields(form: type[BaseModel]) -> dict[str, object]:
    """The names that a field may be sent under, with its type."""
    return {str(field.alias or name): field.annotation for name, field in form.model_fields.items()}


def _models(forms: Sequence[object]) -> list[type[BaseModel]]:
    return [form for form in forms if isinstance(form, type) and issubclass(form, BaseModel)]


def _expanded(form: object) -> list[object]:
    """The types that a value of `form` may have: without annotations, aliases and unions."""
    if isinstance(form, TypeAliasType):
        return _expanded(form.__value__)
    origin = get_origin(form)
    if origin is Annotated:
        return _expanded(get_args(form)[0])
    if origin in (Union, UnionType):
        return [f for part in get_args(form) if part is not NoneType for f in _expanded(part)]
    if isinstance(form, type) and issubclass(form, RootModel):
        return _expanded(cast("type[BaseModel]", form).model_fields["root"].annotation)
    return [] if form is None else [form]


def _items(forms: Sequence[object]) -> list[object]:
    held = [part for form in forms if get_origin(form) in _LISTS for part in get_args(form) if part is not Ellipsis]
    return [f for part in held for f in _expanded(part)]


def _values(forms: Sequence[object]) -> list[object]:
    held = [get_args(form)[1] for form in forms if get_origin(form) in (dict, Mapping) and len(get_args(form)) == 2]
    return [f for part in held for f in _expanded(part)] or [object] * len(held)


def _is_branch(form: object, name: str) -> bool:
    """Whether pydantic names this branch of a union so: by its class, or by the value of its discriminator."""
    if getattr(form, "__name__", None) == name:
        return True
    if not (isinstance(form, type) and issubclass(form, BaseModel)):
        return False
    tags = (
        value.value if isinstance(value, Enum) else value
        for annotation in _fields(form).values()
        if get_origin(annotation) is Literal
        for value in get_args(annotation)
    )
    return name in map(str, tags)
