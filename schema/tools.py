"""Tools as `resource.tools` rows describe them, and what their `options` mean (protocol §4, §7.3).

A row is kept as it was written, by whoever wrote it; `options_of` reads its options where they are used.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from schema.base import JsonObject, Tolerant
from schema.errors import BadRequest
from schema.states import AfterExecution

SUBMIT_RESULT = "submit_result"
"""The built-in tool that ends a turn; no row may have its name."""


def _object_if_null(value: object) -> object:
    return {} if value is None else value


NullableObject = Annotated[JsonObject, BeforeValidator(_object_if_null)]


class ToolRow(Tolerant):
    """A row of `resource.tools`. `parameters` should be a JSON schema of type object."""

    tool_name: str
    description: str | None = None
    parameters: NullableObject = Field(default_factory=JsonObject)
    target_subject: str | None = None
    after_execution: AfterExecution = AfterExecution.SUSPEND
    options: NullableObject = Field(default_factory=JsonObject)


class ToolArgOptions(Tolerant):
    """`options.args`: `defaults` fill in what the model left out, `fixed` are forced and hidden from it."""

    defaults: NullableObject = Field(default_factory=JsonObject)
    fixed: NullableObject = Field(default_factory=JsonObject)


class ToolOptions(Tolerant):
    """`options` of a tool. `envs` maps an argument to the name of an env variable that the tool service reads."""

    args: ToolArgOptions = ToolArgOptions()
    envs: dict[str, str] = Field(default_factory=dict)
    ui_allowed: bool = False

    @property
    def hidden(self) -> frozenset[str]:
        """Arguments the model neither sees nor sets."""
        return frozenset((*self.args.fixed, *self.envs))


def options_of(row: ToolRow) -> ToolOptions:
    """The row's options; raises `BadRequest` naming the tool and the option that cannot be read."""
    try:
        return ToolOptions.model_validate(row.options)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadRequest(f"tool {row.tool_name}: options.{where}: {first['msg']}") from None
