"""Turns a call into a function's arguments, and the function's result into a report (protocol §6, §7.3). Pure.

A placeholder for an env variable is replaced only in the argument for which the decorator allows this variable; in
other arguments it is data of the model, which could else read any variable. Values of env variables are removed from
reports.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from turnstile.rules.text import cleared
from turnstile.schema.base import DEEPEST_STORED, JsonObject, Tolerant, too_deep
from turnstile.schema.cards import ToolError, ToolResultContent
from turnstile.schema.errors import BadRequest, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, StepId, ToolCallId
from turnstile.schema.json_reading import MOST_VALUES, check_json, storable
from turnstile.schema.states import AfterExecution, TurnStatus, WaitStatus
from turnstile.schema.validation import describe_faults
from turnstile.schema.wire.inbox import RESULT_LIMIT_BYTES
from turnstile.sdk.tools.call import ToolCall
from turnstile.sdk.tools.spec import ToolSpec

MESSAGE_LIMIT: Final = 500
"""Characters of an error message that the model gets."""

_ENV_KEY = "$env"
_MOST_VALUES: Final = MOST_VALUES - 100
_DEEPEST: Final = DEEPEST_STORED - 1
"""What a report leaves of the values and levels of a request."""
Result = TypeVar("Result")


class ToolFailed(TurnstileError):
    """Raise it in a tool to report a failed result with a code of your own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Terminate(Generic[Result]):
    """Return it from a tool to end the turn with this result (`after_execution: terminate`)."""

    result: Result


class CallContent(Tolerant):
    """The content of a `tool.call` card."""

    arguments: JsonObject
    target_subject: str | None = None


class DescribedCall(Tolerant):
    """The part of `describe`'s reply that a tool needs of a call."""

    tool_call_id: ToolCallId
    tool_name: str
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    step_id: StepId
    wait_status: str
    tool_call_card_id: CardId | None
    content: CallContent | None
    resume_deadline: datetime | None = None
    repeat: str = "safe"
    may_run: bool | None = None

    @property
    def waits(self) -> bool:
        """False once the call was reported or its turn is over."""
        return self.wait_status == WaitStatus.WAITING


@dataclass(frozen=True, slots=True)
class Prepared:
    """Keyword arguments, and the values of env variables among them, which must not be reported or logged."""

    arguments: dict[str, object]
    secrets: frozenset[str]


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The result of a call, to be reported."""

    status: Literal[TurnStatus.SUCCESS, TurnStatus.FAILED]
    result: JsonValue = None
    error: ToolError | None = None
    after_execution: AfterExecution | None = None
    files: tuple[str, ...] = ()
    """Ids of the files that belong to the result."""

    def payload(self, tool_call_id: ToolCallId) -> JsonObject:
        """Arguments of the verb `report`."""
        error: JsonObject | None = None if self.error is None else self.error.model_dump(mode="json")
        arguments: JsonObject = {"tool_call_id": tool_call_id, "status": self.status.value}
        arguments |= {} if error is None else {"error": error}
        arguments |= {} if self.result is None else {"result": self.result}
        arguments |= {"files": [*self.files]} if self.files else {}
        return arguments | ({} if self.after_execution is None else {"after_execution": self.after_execution.value})


def failed(code: str, message: str, secrets: frozenset[str] = frozenset()) -> ToolReport:
    """A failed result; its message is shortened, and secrets are removed from it."""
    text = cleared(message, secrets)
    if len(text) > MESSAGE_LIMIT:
        text = text[: MESSAGE_LIMIT - 1] + "…"
    return ToolReport(TurnStatus.FAILED, error=ToolError(code=storable(code)[:128] or "tool_error", message=text))


def prepare(spec: ToolSpec, arguments: JsonObject, call: ToolCall | None, environ: Mapping[str, str]) -> Prepared:
    """Validate and fill the function's arguments; raises `ToolFailed` (`missing_env`, `invalid_arguments`)."""
    filled, secrets = _filled(spec, arguments, environ)
    try:
        model = spec.arguments.model_validate(filled)
    except ValidationError as error:
        raise ToolFailed("invalid_arguments", cleared(_worded(spec, error), secrets)) from None
    values: dict[str, object] = {name: getattr(model, field) for name, field in spec.fields.items()}
    if spec.call_parameter is not None:
        values[spec.call_parameter] = call
    return Prepared(values, secrets)


def _filled(spec: ToolSpec, arguments: JsonObject, environ: Mapping[str, str]) -> tuple[JsonObject, frozenset[str]]:
    filled = dict(arguments)
    secrets: set[str] = set()
    for name, allowed in spec.terms.envs.items():
        placeholder = arguments.get(name)
        if not isinstance(placeholder, dict) or set(placeholder) != {_ENV_KEY}:
            continue
        if placeholder[_ENV_KEY] != allowed:
            env_name = str(placeholder[_ENV_KEY])[:128]
            raise ToolFailed(
                "missing_env", f"{name} asks for env variable {env_name}; the tool allows it only {allowed}"
            )
        if allowed not in environ:
            raise ToolFailed("missing_env", f"the tool service has no env variable {allowed}, which {name} needs")
        filled[name] = environ[allowed]
        secrets.add(environ[allowed])
    return filled, frozenset(secrets)


def _worded(spec: ToolSpec, error: ValidationError) -> str:
    """The error message: names of arguments and the rules they break, never their values."""
    return f"The arguments of {spec.name} do not fit: {describe_faults(error, spec.arguments, whole='arguments')}"


def answer(value: object, secrets: frozenset[str]) -> ToolReport:
    """The report of a function's return value; one that is no JSON or too large becomes a failed result."""
    after = None
    if isinstance(value, Terminate):
        value, after = value.result, AfterExecution.TERMINATE  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # of anything
    try:
        written = _written(cast("object", value))
        check_json(written, _MOST_VALUES)
        result: JsonValue = from_json(written)
    except BadRequest as error:  # no bridge would read the report
        return failed("result_too_large", f"the tool's result cannot be sent: {error}", secrets)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        return failed("tool_error", f"the tool's result cannot be written as JSON: {error}", secrets)
    if too_deep(result, _DEEPEST):
        return failed("tool_error", f"the tool's result is nested deeper than {_DEEPEST} levels", secrets)
    result = _cleared(result, secrets)
    content = ToolResultContent(status=TurnStatus.SUCCESS, after_execution=after, result=result)
    if (size := len(content.model_dump_json().encode())) > RESULT_LIMIT_BYTES:
        return too_large(size)
    return ToolReport(TurnStatus.SUCCESS, result, after_execution=after)


def _written(value: object) -> bytes:
    """The value as JSON: NaN and infinity as null, bytes that are no text as base64, halves of characters replaced."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        return to_json(_plain(value), inf_nan_mode="null")


def _plain(value: Any) -> Any:
    """The value with texts that JSON has, where it is made of what Python and pydantic have for that."""
    match value:
        case str():
            return storable(value)
        case bytes():
            text = value.decode(errors="replace")
            return base64.b64encode(value).decode() if "\ufffd" in text else text
        case dict():
            parts = cast("dict[Any, Any]", value).items()
            return {storable(name) if isinstance(name, str) else name: _plain(part) for name, part in parts}
        case list() | tuple() | set() | frozenset():
            return [_plain(part) for part in cast("Iterable[Any]", value)]
        case BaseModel():
            return _plain(value.model_dump())
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def too_large(size: int | None = None) -> ToolReport:
    """The failed result that replaces one too large to report."""
    had = "is too large to send" if size is None else f"has {size} bytes"
    return failed("result_too_large", f"the tool's result {had}; the limit is {RESULT_LIMIT_BYTES} bytes: ask for less")


def _cleared(value: JsonValue, secrets: frozenset[str]) -> JsonValue:
    match value:
        case str():
            return cleared(value, secrets)
        case list():
            return [_cleared(item, secrets) for item in value]
        case dict():
            return {cleared(name, secrets): _cleared(item, secrets) for name, item in value.items()}
        case _:
            return value
