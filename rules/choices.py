"""Calls that end a turn: `submit_result`, and the choices of its enqueue (protocol §7.4). Pure.

Such a call must be the only one of its step. If it is not, or its arguments are invalid, all calls of the step are
refused with a sentence for the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from turnstile.rules.answer import AnsweredCall
from turnstile.rules.arguments import violation
from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.rules.tool_specs import check_fields, parse_submit_result
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import ResultField
from turnstile.schema.tools import SUBMIT_RESULT

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


def ending(
    calls: Sequence[AnsweredCall], choices: Mapping[str, JsonObject], wanted: Sequence[ResultField]
) -> Accepted | Refusal | None:
    """Accept or refuse the calls of a step if one of them would end the turn; None if none would.

    `choices` are the parameters of each choice by its name. `wanted` fields are required of `submit_result` only.
    """
    names = dict.fromkeys(call.name for call in calls if call.name == SUBMIT_RESULT or call.name in choices)
    if not names:
        return None
    if len(calls) > 1:
        code = INVALID_SUBMISSION if SUBMIT_RESULT in names else INVALID_CHOICE
        return Refusal(code, _not_alone(list(names)))
    [call] = calls
    if call.name == SUBMIT_RESULT:
        return _submission(call, wanted)
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


def _submission(call: AnsweredCall, wanted: Sequence[ResultField]) -> Accepted | Refusal:
    fields = parse_submit_result(call.arguments_text)
    if isinstance(fields, str):
        return Refusal(INVALID_SUBMISSION, fields)
    if (problem := check_fields(wanted, fields)) is not None:
        return Refusal(INVALID_SUBMISSION, problem)
    return Accepted({"fields": [field.model_dump(mode="json") for field in fields]})


def _choice(call: AnsweredCall, parameters: JsonObject) -> Accepted | Refusal:
    arguments = parse_arguments(call.arguments_text)
    if arguments is None:
        return Refusal(INVALID_CHOICE, bad_arguments(call.name, call.arguments_text))
    if (problem := violation(call.name, parameters, arguments)) is not None:
        return Refusal(INVALID_CHOICE, problem)
    return Accepted({"choice": call.name, "arguments": arguments})
