"""The tool specs offered to a model, OpenAI-style: tools, choices, `submit_result` (protocol §7.3, §7.4). Pure.

A tool row that cannot become a spec causes a warning and is left out. Arguments set by `options.args.fixed` and
`options.envs` are hidden from the model. Problems with arguments are written for the model, which reads them in a
failed `tool.result` and tries again.

`ending` reads the calls that end a turn: `submit_result`, and the choices of its enqueue. Such a call must be the only
one of its step. If it is not, or its arguments are invalid, all calls of the step are refused.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from turnstile.rules.answer import AnsweredCall
from turnstile.rules.arguments import schema_violation
from turnstile.rules.holds import ASK_HUMAN_ROW
from turnstile.rules.text import bad_arguments, function_name, parse_arguments
from turnstile.schema.base import JsonObject, Tolerant, too_deep
from turnstile.schema.cards import Card, CardType, FieldsSchemaContent, ResultField, SubmittedField, readable_content
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import CardId
from turnstile.schema.json_reading import read_json_text, storable_json
from turnstile.schema.parameters import SchemaTooCostly, checks
from turnstile.schema.profiles import Choice, ClientTool
from turnstile.schema.tools import (
    ASK_HUMAN,
    BUILT_IN,
    PMO_TOOLS,
    READ_FILE,
    READ_RESULT,
    SUBMIT_RESULT,
    TOOL_NAME,
    ToolRow,
    options_of,
)
from turnstile.schema.validation import describe_faults

OUTPUT_INVALID = "output_invalid"
"""`error_code` of a turn that ended without a value that its schema lets pass, and of each value that it refused."""
RESULT_FIELDS_MISSING = "result_fields_missing"
"""`error_code` of a turn that ended without the fields that its requester wants."""


def function_spec(name: str, description: str, parameters: JsonObject) -> JsonObject:
    """An OpenAI-style function tool."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def called_function(name: str) -> JsonObject:
    """The OpenAI-style `tool_choice` that names a function."""
    return {"type": "function", "function": {"name": name}}


SUBMIT_RESULT_SPEC: JsonObject = function_spec(
    SUBMIT_RESULT,
    "Deliver the final result of the task and end your work on it. Call it alone, once, when everything is done.",
    {
        "type": "object",
        "properties": {
            "fields": {
                "type": "array",
                "description": "The fields of the result, each name once.",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "description": "Name of the field."},
                        "value": {"description": "Value of the field: any JSON value."},
                    },
                    "required": ["name", "value"],
                },
            }
        },
        "required": ["fields"],
    },
)


READ_RESULT_SPEC: JsonObject = function_spec(
    READ_RESULT,
    "Read more of a result that is too long to be shown whole.",
    {
        "type": "object",
        "properties": {
            "tool_call_id": {"type": "string", "description": "The call whose result to read."},
            "offset": {"type": "integer", "minimum": 0, "description": "The first character to read; 0 by default."},
            "limit": {"type": "integer", "minimum": 1, "description": "The most characters to read."},
        },
        "required": ["tool_call_id"],
    },
)


READ_FILE_SPEC: JsonObject = function_spec(
    READ_FILE,
    "Read a part of a text file that is not shown.",
    {
        "type": "object",
        "properties": {
            "artifact_id": {"type": "string", "description": "The file to read."},
            "offset": {"type": "integer", "minimum": 0, "description": "The first byte to read; 0 by default."},
            "limit": {"type": "integer", "minimum": 1, "description": "The most bytes to read."},
        },
        "required": ["artifact_id"],
    },
)


def submit_value_spec(output_schema: JsonObject) -> JsonObject:
    """The spec of `submit_result` that takes one value of this schema (protocol §18)."""
    schema = _moved(output_schema)
    shared = {name: schema.pop(name) for name in _DEFINITIONS if name in schema}
    schema.pop("$schema", None)
    parameters: JsonObject = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE], **shared}
    description = "Deliver the final answer and end your work on it. Call it alone, once, when everything is done."
    return function_spec(SUBMIT_RESULT, description, parameters)


_VALUE = "value"
_DEFINITIONS = ("$defs", "definitions")
_SCHEMAS_BY_NAME = frozenset({*_DEFINITIONS, "properties", "patternProperties", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose content is no schema."""


def as_value(output_schema: JsonObject) -> JsonObject:
    """The schema as that of the property `value` of another one, with its definitions: its references lead there."""
    schema = _moved(output_schema, ())
    schema.pop("$schema", None)
    return schema


def _moved(schema: JsonObject, at_root: Collection[str] = _DEFINITIONS) -> JsonObject:
    """The schema as a property of another one, at whose root its parts of these names are; its references follow."""
    return {name: _moved_part(name, part, at_root) for name, part in schema.items()}


def _moved_part(keyword: str, part: JsonValue, at_root: Collection[str]) -> JsonValue:
    match part:
        case str() if keyword == "$ref" and (part == "#" or part.startswith("#/")):
            first = part.split("/")[1:2]
            return part if first and first[0] in at_root else f"#/properties/{_VALUE}{part[1:]}"
        case dict() if keyword in _SCHEMAS_BY_NAME:
            return {name: _moved_part("", inner, at_root) for name, inner in part.items()}
        case dict() if keyword not in _VALUES:
            return _moved(part, at_root)
        case list() if keyword not in _VALUES:
            return [_moved_part("", inner, at_root) for inner in part]
        case _:
            return part


@dataclass(frozen=True, slots=True)
class ToolSpecs:
    """The specs offered to a turn's model: tools, choices and `submit_result`; and the tools' `rows` by name."""

    specs: tuple[JsonObject, ...]
    rows: dict[str, ToolRow]
    warnings: tuple[str, ...]
    """Why allowed tools are not offered; for the log."""


def build_tool_specs(
    rows: Sequence[ToolRow],
    allowed_tools: Sequence[str] | None,
    choices: Sequence[Choice] = (),
    output_schema: JsonObject | None = None,
    *,
    submit_result: bool = True,
    client_tools: Sequence[ClientTool] = (),
) -> ToolSpecs:
    """The specs of the allowed rows in the order of `allowed_tools`, which is a whitelist: an empty one allows none.

    None allows all. If a choice and a row have one name, the choice is offered. `submit_result`: whether it is; with
    `output_schema` it takes such a value. The names of `client_tools` are nobody else's (`taken_name`).
    """
    chosen = {choice.name for choice in choices}
    taken: set[str] = set()
    by_name = {row.tool_name: row for row in rows}
    specs: list[JsonObject] = []
    offered: dict[str, ToolRow] = {}
    unused = sorted(BUILT_IN & by_name.keys())
    warnings = [f"the row of tool {name} is not used: the name is built in" for name in unused]
    for name in by_name if allowed_tools is None else dict.fromkeys(allowed_tools):
        row = by_name.get(name)
        if (called := function_name(name)) in BUILT_IN:
            continue
        if called in taken:
            warnings.append(f"allowed tool {name} is not offered: another one is called {called}")
            continue
        if called in chosen:
            warnings.append(f"allowed tool {name} is not offered: the turn has a choice of this name")
            continue
        if row is None:
            warnings.append(f"allowed tool {name} is not among the project's tools")
            continue
        try:
            specs.append(tool_spec(row))
        except BadRequest as error:
            warnings.append(str(error))
        else:
            offered[name] = row
            taken.add(called)
    submit = SUBMIT_RESULT_SPEC if output_schema is None else submit_value_spec(output_schema)
    built_in = (submit,) if submit_result else ()
    return ToolSpecs((*specs, *map(choice_spec, (*client_tools, *choices)), *built_in), offered, tuple(warnings))


def taken_name(rows: Iterable[str], choices: Iterable[Choice], client_tools: Sequence[ClientTool]) -> str | None:
    """The first name of a client's tool that another tool has, whether it is offered or not; None if there is none.

    So no caller masks a tool of the operator's, nor one that the project may get from the kernel (protocol §19).
    """
    taken = {*map(function_name, rows), *(choice.name for choice in choices), *BUILT_IN, *PMO_TOOLS, ASK_HUMAN}
    return next((tool.name for tool in client_tools if tool.name in taken), None)


def last_specs(specs: Sequence[JsonObject], choices: Iterable[str]) -> tuple[JsonObject, ...]:
    """The specs that the last allowed step offers: the choices and `submit_result` (protocol §7.8)."""
    kept = {SUBMIT_RESULT, *choices}
    return tuple(spec for spec in specs if spec_name(spec) in kept)


def spec_name(spec: JsonObject) -> str | None:
    """The name of a tool spec."""
    match spec:
        case {"function": {"name": str(name)}}:
            return name
        case _:
            return None


def choice_spec(choice: ClientTool) -> JsonObject:
    """The spec of a choice, or of a client's tool; it always has `properties`, since some providers require them."""
    return function_spec(choice.name, choice.description, {"properties": {}, **choice.parameters})


def tool_spec(row: ToolRow) -> JsonObject:
    """The spec of a row; raises `BadRequest`, which says why, if the row cannot become one."""
    name = row.tool_name
    if not re.fullmatch(TOOL_NAME, name):
        raise BadRequest(
            f"tool {name!r}: a name is 1 to 64 characters of A-Z a-z 0-9 _ . -, the first no digit, . or -"
        )
    if not row.target_subject and row is not ASK_HUMAN_ROW:
        raise BadRequest(f"tool {name}: it has no target_subject to be sent to")
    options = options_of(row)
    schema = row.parameters
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("type", "object") != "object":
        raise BadRequest(f"tool {name}: parameters must be a JSON schema of type object")
    if not isinstance(properties, dict) or not all(isinstance(p, dict | bool) for p in properties.values()):
        raise BadRequest(f"tool {name}: parameters.properties must map names to JSON schemas")
    if not isinstance(required, list) or not all(isinstance(r, str) for r in required):
        raise BadRequest(f"tool {name}: parameters.required must be a list of names")
    optional = options.hidden | options.args.defaults.keys()
    visible: dict[str, JsonValue] = {key: value for key, value in properties.items() if key not in options.hidden}
    needed: list[JsonValue] = [r for r in required if r not in optional]
    parameters: JsonObject = {**schema, "type": "object", "properties": visible, "required": needed}
    if not needed:
        del parameters["required"]
    return function_spec(function_name(name), row.description or "", parameters)


class _Submission(Tolerant):
    fields: list[SubmittedField]


def parse_submit_result(arguments_text: str) -> list[SubmittedField] | str:
    """The submitted fields, or a sentence for the model that says what is wrong with them."""
    form = 'call it with {"fields": [{"name": "...", "value": ...}]}'
    arguments = parse_arguments(arguments_text)
    if arguments is None:
        return f"{bad_arguments(SUBMIT_RESULT, arguments_text)[:-1]}; {form}."
    try:
        fields = _Submission.model_validate(_submitted(arguments)).fields
    except ValidationError as error:
        faults = describe_faults(error, _Submission, most=1)
        return f"The arguments of {SUBMIT_RESULT} do not fit: {faults}; {form}."
    if any(not field.name.strip() for field in fields):
        return f"A field of {SUBMIT_RESULT} has an empty name; {form}."
    return fields


def _submitted(arguments: JsonObject) -> JsonObject:
    """The arguments, or those of v1r4: the fields, or an object of names and values, within `result`."""
    result = arguments.get("result")
    if "fields" in arguments or not isinstance(result, dict):
        return arguments
    return result if "fields" in result else {"fields": [{"name": n, "value": v} for n, v in result.items()]}


def has_fields(fields: Sequence[ResultField], deliverable: JsonValue) -> bool:
    """Whether a deliverable has the form of `submit_result` and every wanted field once."""
    try:
        return check_fields(fields, _Submission.model_validate(deliverable).fields) is None
    except ValidationError:
        return False


def code_delivers(
    value: JsonValue, output_schema: JsonObject | None, fields: Sequence[ResultField]
) -> tuple[JsonValue, str | None]:
    """The deliverable of code that gave this value, which has no other try, and the code of what it lacks.

    Where fields are wanted, an object of their names and values is as good as a list of them.
    """
    if output_schema is not None:
        return {_VALUE: value}, None if isinstance(typed(value, output_schema), Accepted) else OUTPUT_INVALID
    if not fields or has_fields(fields, value):
        return value, None
    submitted = value if not isinstance(value, dict) else _submitted({"result": value})
    return (submitted, None) if has_fields(fields, submitted) else (value, RESULT_FIELDS_MISSING)


def check_fields(fields: Sequence[ResultField], got: Sequence[SubmittedField]) -> str | None:
    """A sentence for the model that says why `got` is not `wanted`; None if every wanted field is there once."""
    counts = Counter(field.name for field in got)
    names = list(dict.fromkeys(field.name for field in fields))
    missing = [name for name in names if not counts[name]]
    repeated = [name for name in names if counts[name] > 1]
    problems: list[str] = []
    if missing:
        problems.append(f"missing are {', '.join(missing)}")
    if repeated:
        problems.append(f"repeated are {', '.join(repeated)}")
    if not problems:
        return None
    return f"The result must have each of these fields once: {', '.join(names)}; {'; '.join(problems)}."


@dataclass(frozen=True, slots=True)
class WantedFields:
    """The fields that a requester wants, and the `task.result_fields` cards that could not be read (§7.4)."""

    fields: tuple[ResultField, ...]
    unreadable: tuple[CardId, ...]


def wanted_fields(context: Sequence[Card]) -> WantedFields:
    """The fields that the `task.result_fields` cards of a context box ask for, each name once."""
    fields: dict[str, ResultField] = {}
    unreadable: list[CardId] = []
    for card in context:
        if card.type != CardType.RESULT_FIELDS:
            continue
        fields_read = fields_of(card)
        if fields_read is None:
            unreadable.append(card.card_id)
        else:
            fields |= {field.name: field for field in fields_read if field.name not in fields}
    return WantedFields(tuple(fields.values()), tuple(unreadable))


def fields_of(card: Card) -> list[ResultField] | None:
    """The fields of a `task.result_fields` card; None if it cannot be read."""
    content = readable_content(card)
    return content.fields if isinstance(content, FieldsSchemaContent) else None


INVALID_SUBMISSION = "invalid_submission"
INVALID_CHOICE = "invalid_choice"


@dataclass(frozen=True, slots=True)
class Accepted:
    """The turn ends with this as its deliverable."""

    deliverable: JsonObject


@dataclass(frozen=True, slots=True)
class Refusal:
    """Every call of the step fails with this."""

    code: str
    message: str
    value: JsonObject | None = None
    """The deliverable that it would have been, had its value matched."""


def ending(
    calls: Sequence[AnsweredCall],
    choices: Mapping[str, JsonObject],
    result_fields: Sequence[ResultField],
    output_schema: JsonObject | None = None,
) -> Accepted | Refusal | None:
    """Accept or refuse the calls of a step if one of them would end the turn; None if none would.

    `choices` are the parameters of each choice by its name. `result_fields`, or a value that matches `output_schema`,
    are required of `submit_result` only.
    """
    names = dict.fromkeys(call.name for call in calls if call.name == SUBMIT_RESULT or call.name in choices)
    if not names:
        return None
    if len(calls) > 1:
        code = INVALID_SUBMISSION if SUBMIT_RESULT in names else INVALID_CHOICE
        return Refusal(code, _not_alone(list(names)))
    [call] = calls
    if call.name == SUBMIT_RESULT and output_schema is not None:
        return _value(call, output_schema)
    if call.name == SUBMIT_RESULT:
        return _submission(call, result_fields)
    return _choice(call, choices[call.name])


def chosen(deliverable: JsonValue) -> tuple[str, JsonObject] | None:
    """The choice and the arguments in a deliverable; None if the deliverable holds something else."""
    match deliverable:
        case {"choice": str(name), "arguments": dict(arguments)} if len(deliverable) == 2:
            return name, arguments
        case _:
            return None


def _not_alone(names: Sequence[str]) -> str:
    effect, rule = "nothing of this step was done", "must be the only call of its step"
    if len(names) == 1:
        return f"{names[0]} {rule}: {effect}. Call it alone."
    return f"Each of {', '.join(names)} {rule}: {effect}. Call one of them alone."


def _submission(call: AnsweredCall, expected: Sequence[ResultField]) -> Accepted | Refusal:
    fields = parse_submit_result(call.arguments_text)
    if isinstance(fields, str):
        return Refusal(INVALID_SUBMISSION, fields)
    if (problem := check_fields(expected, fields)) is not None:
        return Refusal(INVALID_SUBMISSION, problem)
    return Accepted({"fields": [field.model_dump(mode="json") for field in fields]})


def _value(call: AnsweredCall, output_schema: JsonObject) -> Accepted | Refusal:
    arguments = parse_arguments(call.arguments_text)
    if arguments is None:
        return Refusal(OUTPUT_INVALID, bad_arguments(SUBMIT_RESULT, call.arguments_text))
    if _VALUE not in arguments:
        return Refusal(OUTPUT_INVALID, f'Call {SUBMIT_RESULT} with {{"{_VALUE}": …}}: the value of your answer.')
    return typed(arguments[_VALUE], output_schema)


def typed(value: JsonValue, output_schema: JsonObject) -> Accepted | Refusal:
    """The deliverable of this value, if it matches; else why not, for the model."""
    problem, deliverable = output_problem(output_schema, value), JsonObject({_VALUE: value})
    return Accepted(deliverable) if problem is None else Refusal(OUTPUT_INVALID, problem, deliverable)


def output_problem(output_schema: JsonObject, value: JsonValue) -> str | None:
    """A sentence for the model that says why the value does not match; None if it does."""
    try:
        fault = checks(output_schema).fault(value)
    except SchemaTooCostly:
        return "The value takes too long to check against its schema: make it shorter."
    except ValueError as error:
        return f"No value can be checked: its schema {error}."
    if fault is None:
        return None
    where = "/".join(str(part) for part in fault.path)
    return f"The value does not match its schema{f' at {where}' if where else ''}: {fault.message}"


_FENCED = re.compile(r"^```[A-Za-z0-9_-]*[ \t]*\n(.*?)\n```[ \t]*$", re.DOTALL | re.MULTILINE)


def typed_text(text: str, output_schema: JsonObject) -> Accepted | Refusal:
    """The value in an answer that is text: the text itself, or its only fenced block, as JSON (protocol §18)."""
    blocks = [text] if "```" not in text else _FENCED.findall(text)
    if len(blocks) != 1:
        return Refusal(OUTPUT_INVALID, "The answer has no value that can be read.")
    try:
        value = read_json_text(blocks[0])
    except BadRequest:
        return Refusal(OUTPUT_INVALID, "The answer has no value that can be read.")
    if too_deep(value):
        return Refusal(OUTPUT_INVALID, "The value is nested too deeply.")
    return typed(storable_json(value), output_schema)


def _choice(call: AnsweredCall, parameters: JsonObject) -> Accepted | Refusal:
    arguments = parse_arguments(call.arguments_text)
    if arguments is None:
        return Refusal(INVALID_CHOICE, bad_arguments(call.name, call.arguments_text))
    if (problem := schema_violation(call.name, parameters, arguments)) is not None:
        return Refusal(INVALID_CHOICE, problem)
    return Accepted({"choice": call.name, "arguments": arguments})
