"""The form made of a JSON schema: a field for each property, and what was typed as a JSON object again. Pure.

Strings, numbers, booleans, choices and lists of scalars have fields; all else is raw JSON. What was typed is checked
against the schema, within bounds, and errors are shown by field; the bridge checks it again. What an operator has
forced is shown, and cannot be typed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue

from turnstile.gateway.schema_slots import (
    MISSING,
    InputKind,
    Slot,
    WrongInput,
    allowed_values,
    choice_text,
    hints,
    slot,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.parameters import Mismatch, checks
from turnstile.schema.people.digests import parameters_digest

_MOST_FIELDS = 60
_REST = "rest"
_WHOLE = "whole"
ALL = ""
"""The key of faults that are of no one field."""


@dataclass(frozen=True, slots=True)
class ChoiceField:
    """An option of a field."""

    value: str
    label: str
    selected: bool


@dataclass(frozen=True, slots=True)
class Field:
    """A field as a page shows it."""

    name: str
    label: str
    kind: str
    text: str
    required: bool
    about: str
    """What the schema says of it."""
    hint: str
    choices: tuple[ChoiceField, ...]
    fault: str


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    """What was typed: the value, or why it is none."""

    value: JsonValue | None
    faults: Mapping[str, str] = field(default_factory=dict[str, str])
    """By the name of a field, or `ALL`."""


@dataclass(frozen=True, slots=True)
class SchemaForm:
    """A form of an object."""

    schema: JsonObject
    slots: tuple[Slot, ...]
    fixed: JsonObject
    """What cannot be typed, by name."""
    envs: frozenset[str]
    """What the tool fills in itself; the schema is not held against it."""

    @property
    def digest(self) -> str:
        """A fingerprint of what was asked for: another one means another form."""
        names: list[JsonValue] = [*sorted(self.fixed), *sorted(self.envs)]
        return parameters_digest({"schema": self.schema, "fixed": names})

    def fields(self, typed: Mapping[str, str] | None = None, faults: Mapping[str, str] | None = None) -> list[Field]:
        """Its fields, with what was typed in them, if anything was."""
        return [_field(s, (typed or {}).get(s.name), (faults or {}).get(s.name, "")) for s in self.slots]

    def read(self, typed: Mapping[str, str]) -> ReadAnswer:
        """What was typed as an object without what is fixed; a field that was not sent is as it was."""
        faults, value_so_far = dict[str, str](), dict[str, JsonValue]()
        for field_slot in self.slots:
            try:
                value = field_slot.read(typed.get(field_slot.name, field_slot.shown))
                if value is MISSING:
                    continue
                if field_slot.name in (_REST, _WHOLE):
                    value_so_far |= self._others(value, value_so_far)
                else:
                    value_so_far[field_slot.label] = value
            except WrongInput as fault:
                faults[field_slot.name] = str(fault)
        faults = faults or self._violations(value_so_far)
        return ReadAnswer(None, faults) if faults else ReadAnswer(value_so_far)

    def _others(self, value: JsonValue, others: Mapping[str, JsonValue]) -> JsonObject:
        if not isinstance(value, dict):
            raise WrongInput("Type a JSON object: {}.")
        if taken := sorted(value.keys() & (others.keys() | self.fixed.keys() | self.envs)):
            raise WrongInput(f"{', '.join(taken)[:200]}: cannot be set here.")
        return value

    def _violations(self, arguments: JsonObject) -> dict[str, str]:
        """Why an object does not match the schema, by field; nothing if that is not known here."""
        named = _properties(self.schema).keys() | set(_required(self.schema))
        whole = arguments | {name: value for name, value in self.fixed.items() if name in named}
        schema: JsonObject = dict(self.schema)
        if isinstance(schema.get("required"), list):
            schema["required"] = [name for name in _required(self.schema) if name not in self.envs]
        try:
            errors = checks(schema).faults(whole)
        except Exception:  # noqa: BLE001 -- strangers wrote the schema; the bridge says what is wrong with it
            return {}
        faults: dict[str, str] = {}
        for error in errors:
            for name, sentence in self._errors(error, whole):
                faults.setdefault(name, sentence)
        return faults

    def _errors(self, error: Mismatch, whole: JsonObject) -> list[tuple[str, str]]:
        """Where an error belongs, and what it says there."""
        by_label = {s.label: s.name for s in self.slots if s.name not in (_REST, _WHOLE)}
        path = [str(part) for part in error.path]
        if not path and error.keyword == "required":
            missing = [name for name in _required(self.schema) if name not in whole and name not in self.envs]
            return [(by_label.get(name, ALL), "This field is required.") for name in missing] or [
                (ALL, error.message[:300])
            ]
        other = next((s.name for s in self.slots if s.name in (_REST, _WHOLE)), ALL)
        deeper = f" at {'/'.join(path[1:])[:100]}" if len(path) > 1 else ""
        return [(by_label.get(path[0], other) if path else ALL, f"{error.message[:300]}{deeper}")]


def arguments_form(
    schema: JsonObject,
    arguments: JsonObject,
    *,
    fixed: frozenset[str] = frozenset(),
    envs: frozenset[str] = frozenset(),
) -> SchemaForm:
    """The form of a call's arguments, as they are; `fixed` and `envs` are shown and cannot be typed."""
    hidden = fixed | envs
    visible = {name: value for name, value in arguments.items() if name not in hidden}
    properties = {name: subschema for name, subschema in _properties(schema).items() if name not in hidden}
    required = set(_required(schema))
    fixed_values = {name: value for name, value in arguments.items() if name in fixed - envs}
    if len(properties) > _MOST_FIELDS:
        return SchemaForm(schema, (slot(_WHOLE, "Arguments", {}, visible, required=True),), fixed_values, envs)
    slots = [
        slot(f"arg-{n}", name, subschema, visible.get(name, MISSING), required=name in required)
        for n, (name, subschema) in enumerate(properties.items())
    ]
    others: JsonObject = {name: value for name, value in visible.items() if name not in properties}
    if others or (not properties and schema.get("additionalProperties") is not False):
        slots.append(slot(_REST, "Other arguments" if slots else "Arguments", {}, others or MISSING, required=False))
    return SchemaForm(schema, tuple(slots), fixed_values, envs)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer: of an object a field for each property, else one field."""

    schema: JsonObject | None
    of_object: SchemaForm | None
    one: Slot | None

    def fields(self, typed: Mapping[str, str] | None = None, faults: Mapping[str, str] | None = None) -> list[Field]:
        """Its fields, with what was typed in them, if anything was."""
        if self.of_object is not None:
            return self.of_object.fields(typed, faults)
        one = cast("Slot", self.one)
        return [_field(one, (typed or {}).get(one.name), (faults or {}).get(one.name, ""))]

    def read(self, typed: Mapping[str, str]) -> ReadAnswer:
        """What was typed."""
        if self.of_object is not None:
            return self.of_object.read(typed)
        one = cast("Slot", self.one)
        try:
            value = one.read(typed.get(one.name, ""))
        except WrongInput as fault:
            return ReadAnswer(None, {one.name: str(fault)})
        if value is MISSING:
            return ReadAnswer(None, {one.name: "This field is required."})
        if (sentence := _unfit(self.schema, value)) is not None:
            return ReadAnswer(None, {one.name: sentence})
        return ReadAnswer(value)


def answer_form(schema: JsonObject | None) -> AnswerForm:
    """The form of an answer that must match a schema; without one the answer is a text."""
    if schema is not None and schema.get("type") == "object" and 0 < len(_properties(schema)) <= _MOST_FIELDS:
        slots = [
            slot(f"ans-{n}", name, subschema, MISSING, required=name in _required(schema))
            for n, (name, subschema) in enumerate(_properties(schema).items())
        ]
        return AnswerForm(schema, SchemaForm(schema, tuple(slots), {}, frozenset()), None)
    answer_schema: JsonObject = {"type": "string"} if schema is None else schema
    return AnswerForm(schema, None, slot("answer", "Answer", answer_schema, MISSING, required=True))


def _unfit(schema: JsonObject | None, value: JsonValue) -> str | None:
    if schema is None:
        return None
    try:
        error = checks(schema).fault(value)
    except Exception:  # noqa: BLE001 -- a model wrote the schema; the bridge says what is wrong with it
        return None
    return None if error is None else error.message[:300]


def _field(field_slot: Slot, typed: str | None, fault: str) -> Field:
    text = field_slot.shown if typed is None else typed
    options = [
        ChoiceField(str(n), choice_text(value), text == str(n))
        for n, value in enumerate(allowed_values(field_slot.schema))
    ]
    if field_slot.kind is not InputKind.CHOICE:
        options = []
    elif not field_slot.required or field_slot.value is MISSING:
        options.insert(0, ChoiceField("", "Choose…" if field_slot.required else "not set", text == ""))
    about = field_slot.schema.get("description")
    return Field(
        name=field_slot.name,
        label=field_slot.label,
        kind=str(field_slot.kind),
        text=text,
        required=field_slot.required,
        about=about[:500] if isinstance(about, str) else "",
        hint=hints(field_slot),
        choices=tuple(options),
        fault=fault,
    )


def _properties(schema: JsonObject) -> dict[str, JsonValue]:
    """The properties, those that are required first, in the order of `required`: the ledger keeps no other."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    first = [name for name in dict.fromkeys(_required(schema)) if name in properties]
    return {name: properties[name] for name in (*first, *(n for n in properties if n not in first))}


def _required(schema: JsonObject) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
