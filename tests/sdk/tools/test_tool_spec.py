"""What a function says of itself becomes the definition; a function that cannot be a tool is told at once."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, Field

from tests.support.paths import ROOT
from turnstile.schema.errors import ConfigError
from turnstile.schema.profiles import Profile
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.wire.subjects import tool_target
from turnstile.sdk.tools.service import ToolCall, ToolService

EXAMPLES = ROOT / "examples" / "tools"


def test_type_hints_and_docstring_become_the_definition() -> None:
    service = ToolService()

    @service.tool(target="text", suffix="count", timeout_seconds=9, envs={"schema": "SCHEMA_KEY"})
    async def word_count(
        text: str, call: ToolCall, schema: str, unit: Literal["words", "lines"] = "words", _x: list[int] | None = None
    ) -> dict[str, int]:
        """Count the words or lines of a text.

        Fast and exact: the model need not count.

        Args:
            text: The text
                to count in.
            unit (str): What to count: words or lines.
            missing: Is no parameter, so it stays.

        Returns:
            How many.
        """
        return {}

    [definition] = service.definitions()
    assert definition == ToolDefinition.model_validate(
        {
            "tool_name": "word_count",
            "description": "Count the words or lines of a text.\n\nFast and exact: the model need not count.\n\n"
            "    missing: Is no parameter, so it stays.\n\nReturns:\n    How many.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "The text to count in."},
                    "schema": {"type": "string"},
                    "unit": {
                        "type": "string",
                        "enum": ["words", "lines"],
                        "default": "words",
                        "description": "What to count: words or lines.",
                    },
                    "_x": {
                        "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["text", "schema"],
                "additionalProperties": False,
            },
            "target_subject": "cg.v1r4.{project_id}.{channel_id}.cmd.tool.text.count",
            "options": {"timeout_seconds": 9, "envs": {"schema": "SCHEMA_KEY"}},
        }
    )
    assert ToolDefinition.model_validate(yaml.safe_load(service.yaml())) == definition
    assert word_count.__name__ == "word_count"


def no_hint(text) -> None:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]  # what is tested
    """Say something."""


def no_docstring(text: str) -> None:
    pass


def many(*texts: str) -> None:
    """Say something."""


def no_schema(call: Callable[[], int]) -> None:
    """Say something."""


def submit_result() -> None:
    """Say something."""


UNFIT: list[tuple[Callable[..., None], dict[str, Any], str]] = [
    (no_hint, {}, "tool no_hint: parameter text has no type hint"),
    (no_docstring, {}, "tool no_docstring: description: must have at least 1 character"),
    (many, {}, "parameter texts cannot be given by name"),
    (no_schema, {}, "a type hint has no JSON schema"),
    (submit_result, {}, "submit_result is built in"),
    (many, {"target": "a.b"}, "target must be"),
    (many, {"timeout_seconds": 0}, "timeout_seconds is more than 0"),
    (no_docstring, {"envs": {"key": "KEY"}}, "tool no_docstring"),
]


@pytest.mark.parametrize(("function", "terms", "told"), UNFIT)
def test_a_function_that_cannot_be_a_tool_is_told_why(
    function: Callable[..., None], terms: dict[str, Any], told: str
) -> None:
    decorate: Callable[..., Any] = ToolService().tool
    with pytest.raises(ConfigError, match=re.escape(told)):
        decorate(**{"target": "t", "suffix": "s", **terms})(function)


def _fine() -> None:
    """Do it."""


class Size(BaseModel):
    """What an agent answers."""

    width: int = Field(gt=0)


def measure(instruction: str, call: ToolCall, output_schema: dict[str, Any] | None = None) -> Size:
    """Measure something."""
    return Size(width=len(instruction))


def test_an_agent_is_a_tool_and_the_profile_of_its_name() -> None:
    service = ToolService()
    more = {"description": "It measures.", "interrupt_on": {"gauge": True}}
    assert service.agent(name="gauge", output_schema=Size, profile=more)(measure) is measure
    service.agent(suffix="run", timeout_seconds=9)(measure)
    gauge, plain = service.definitions()
    assert (gauge.tool_name, gauge.target_subject) == ("gauge", tool_target("gauge", "turn"))
    assert (plain.tool_name, plain.target_subject) == ("measure", tool_target("measure", "run"))
    assert (gauge.options.timeout_seconds, plain.options.timeout_seconds) == (600, 9)
    schema = {"output_schema": Size.model_json_schema()}
    assert service.profiles() == [
        Profile.model_validate({"name": "gauge", "run_by": "gauge", **schema, **more}),
        Profile(name="measure", run_by="measure"),
    ]


def asks_more(instruction: str, unit: str) -> None:
    """Say something."""


NO_AGENT: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (no_docstring, {}, "description"),
    (_fine, {}, "agent _fine: the function needs a parameter `instruction: str`"),
    (asks_more, {}, "agent asks_more: a turn gives no unit: give it a default"),
    (measure, {"profile": {"llm_config": {"model": "m"}}}, "either llm_config or run_by"),
    (measure, {"output_schema": {"type": "nothing"}}, "agent measure: output_schema"),
    (measure, {"output_schema": Callable[[], int]}, "agent measure: output"),
    (measure, {"timeout_seconds": 0}, "timeout_seconds is more than 0"),
]


@pytest.mark.parametrize(("function", "terms", "why"), NO_AGENT)
def test_a_function_that_cannot_be_an_agent_is_refused(
    function: Callable[..., Any], terms: dict[str, Any], why: str
) -> None:
    service = ToolService()
    with pytest.raises(ConfigError, match=re.escape(why)):
        service.agent(**terms)(function)
    assert (service.definitions(), service.profiles()) == ([], [])


def test_two_tools_have_two_names_and_addresses() -> None:
    service = ToolService()
    service.tool(target="a", suffix="b_c", name="one")(_fine)
    with pytest.raises(ConfigError, match="one is there twice"):
        service.tool(target="x", suffix="y", name="one")(_fine)
    with pytest.raises(ConfigError, match="have one address"):  # both consumers would be turnstile_tool_a_b_c
        service.tool(target="a_b", suffix="c", name="two")(_fine)
    service.tool(target="x", suffix="y", name="two")(_fine)
    assert yaml.safe_load(service.yaml("two"))["tool_name"] == "two"
    with pytest.raises(ConfigError, match="name one of the tools: one, two"):
        service.yaml()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_definitions_of_the_examples_are_valid(file: Path) -> None:
    ToolDefinition.model_validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize("name", ["word_count", "http_fetch"])
def test_the_files_of_the_examples_are_what_their_services_write(name: str) -> None:
    service: ToolService = runpy.run_path(str(EXAMPLES / f"{name}.py"))["service"]
    assert service.yaml() == (EXAMPLES / f"{name}.yaml").read_text()
