"""What people read of a value that a model refused: a field and a sentence, never pydantic's own words or the value."""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import pytest
from pydantic import BaseModel, Field, JsonValue, RootModel, ValidationError, field_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from tests.schema.test_amounts import modules
from tests.support.paths import ROOT
from turnstile.cli.errors import failure_of
from turnstile.schema.base import Strict
from turnstile.schema.validation import describe_faults, faults_in
from turnstile.schema.wire.progress import ProgressRequest
from turnstile.sdk.mcp.mcp_connection import worded
from turnstile.transport.connection import words_of

LIMITS: dict[str, Any] = {
    **dict.fromkeys(("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "expected_version"), 3),
    **dict.fromkeys(("tz_expected", "tz_actual", "actual_length", "max_digits", "decimal_places"), 3),
    **dict.fromkeys(("pattern", "error", "class", "class_name", "expected", "attribute", "method_name"), "text"),
    **dict.fromkeys(("function_name", "discriminator", "tag", "expected_tags", "expected_schemes"), "text"),
    **dict.fromkeys(("encoding", "encoding_error", "field_type", "assertion", "type", "qualname"), "text"),
    "whole_digits": 3,
}
STOCK = re.compile(
    r"\b[Ii]nput\b|should|valid (?:string|integer|number|dictionary|list|boolean)|permitted|Field required"
)


class Part(Strict):
    name: str
    count: int = Field(1, ge=1, le=9)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Circle(Strict):
    shape: Literal["circle"]
    radius: float


class Line(Strict):
    shape: Literal["line"]
    length: float


class Parts(RootModel[list[Part]]):
    pass


class Order(Strict):
    instruction: str = Field(min_length=1)
    max_tokens: int | None = None
    parts: list[Part] = Field(default_factory=list[Part])
    by_name: dict[str, Part] = Field(default_factory=dict[str, Part])
    rooted: Parts = Parts([])
    colour: Colour = Colour.RED
    shape: Annotated[Circle | Line, Field(discriminator="shape")] | None = None
    either: str | list[Part] = ""
    any_json: JsonValue = None
    named: str = Field("", alias="sentAs")

    @field_validator("any_json")
    @classmethod
    def _no_marker(cls, value: JsonValue) -> JsonValue:
        if value == "bad":
            raise ValueError("any_json: a sentence of our own, with a comma")
        return value


def faults(**given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"instruction": "x"} | given)
    return describe_faults(caught.value, Order)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"instrction": "secret"}, "instrction: there is no such field; did you mean instruction?"),
        ({"maxtokens": 1}, "maxtokens: there is no such field; did you mean max_tokens?"),
        ({"parts": [{"name": "a", "cuont": 1}]}, "parts.0.cuont: there is no such field; did you mean count?"),
        (
            {"by_name": {"k": {"nam": 1}}},
            "by_name.k.name: is missing; by_name.k.nam: there is no such field; did you mean name?",
        ),
        ({"rooted": [{"name": "a", "x": 1}]}, "rooted.0.x: there is no such field; there are name, count"),
        (
            {"shape": {"shape": "circle", "radios": 1, "radius": 1}},
            "shape.radios: there is no such field; did you mean radius?",
        ),
        ({"shape": {"shape": "cube"}}, "shape: must be of one of the kinds 'circle', 'line'"),
        ({"shape": {}}, "shape: does not say of which kind it is"),
        ({"sendAs": "x"}, "sendAs: there is no such field; did you mean sentAs?"),
        ({"either": 7}, "either: must be text or a list"),
        ({"either": [{"name": 7}]}, "either: must be text; either.0.name: must be text"),
        ({"instruction": ""}, "instruction: must have at least 1 character"),
        ({"max_tokens": 1.5}, "max_tokens: must be a whole number"),
        ({"parts": [{"name": "a", "count": 10}]}, "parts.0.count: must be at most 9"),
        ({"colour": "green"}, "colour: must be 'red' or 'blue'"),
        ({"any_json": "bad"}, "any_json: any_json: a sentence of our own, with a comma"),
    ],
)
def test_a_fault_names_the_field_that_was_meant(given: dict[str, Any], said: str) -> None:
    assert faults(**given) == said


def test_no_fault_quotes_what_was_sent() -> None:
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(
            {
                "instruction": ["marker"],
                "max_tokens": "marker",
                "parts": "marker",
                "colour": "marker",
                "shape": "marker",
            }
        )
    assert "marker" not in describe_faults(caught.value, Order)


def test_every_kind_of_pydantics_faults_is_a_sentence_of_ours() -> None:
    said = dict[str, str]()
    for kind in cast("tuple[str, ...]", get_args(core_schema.ErrorType)):
        details: InitErrorDetails = {"type": kind, "loc": ("a",), "input": "value-marker", "ctx": LIMITS}
        error = ValidationError.from_exception_data("Order", [details])
        [fault] = faults_in(error, Order)
        said[kind] = fault.sentence
    assert len(said) > 90
    assert {kind: words for kind, words in said.items() if STOCK.search(words) or "value-marker" in words} == {}


def test_a_fault_of_a_kind_of_ones_own_keeps_its_words() -> None:
    details: InitErrorDetails = {"type": PydanticCustomError("ours", "has two names"), "loc": ("a",), "input": 1}
    assert describe_faults(ValidationError.from_exception_data("Order", [details])) == "a: has two names"


def test_nobody_else_reads_the_words_of_a_validation_error() -> None:
    """`describe_faults` is the one way from pydantic's errors to a sentence."""
    rooms = [path.resolve() for path in (ROOT / "turnstile").iterdir() if path.is_dir()]
    readers = {
        str(path.relative_to(ROOT))
        for room in rooms
        for path in Path(room).rglob("*.py")
        if ".errors(" in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "errors"
    }
    assert readers == {"schema/validation.py"}


def test_a_model_has_names(  # the guard of the suggestions: without fields nothing could be suggested
) -> None:
    class Empty(BaseModel, extra="forbid"):
        pass

    with pytest.raises(ValidationError) as caught:
        Empty.model_validate({"x": 1})
    assert describe_faults(caught.value, Empty) == "x: there is no such field"


VALIDATES = (".model_validate", ".validate_python", ".validate_json")


def names_of(caught: ast.expr | None) -> set[str]:
    """The classes that a handler catches."""
    return {node.id for node in ast.walk(caught or ast.Pass()) if isinstance(node, ast.Name)}


def handlers() -> Iterator[tuple[str, str, ast.Try, ast.ExceptHandler]]:
    """All that catch something by a name: the module, the name, the statement and the handler."""
    for room in (*modules(), *(ROOT / "schema").rglob("*.py")):
        for node in ast.walk(ast.parse(room.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Try):
                yield from (
                    (str(room.relative_to(ROOT)), handler.name, node, handler)
                    for handler in node.handlers
                    if handler.name
                )


def shown(handler: ast.ExceptHandler, name: str) -> list[int]:
    """The lines that put the error itself into a text."""
    lines: list[int] = []
    for node in ast.walk(handler):
        if not isinstance(node, ast.FormattedValue | ast.Call):
            continue
        value = node.value if isinstance(node, ast.FormattedValue) else None
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("str", "repr") and node.args:
            value = node.args[0]
        if isinstance(value, ast.Name) and value.id == name:
            lines.append(node.lineno)
    return lines


def test_no_handler_puts_an_error_of_pydantic_into_a_text() -> None:
    wrong: list[str] = []
    for path, name, trying, handler in handlers():
        caught = names_of(handler.type)
        before = trying.handlers[: trying.handlers.index(handler)]
        validates = any(word in ast.unparse(statement) for statement in trying.body for word in VALIDATES)
        apart = any("ValidationError" in names_of(other.type) for other in before)
        if "ValidationError" in caught or ("ValueError" in caught and validates and not apart):
            wrong += [f"{path}:{line}" for line in shown(handler, name)]
    assert wrong == []


def test_whoever_renders_an_error_renders_that_of_pydantic_in_our_words() -> None:
    with pytest.raises(ValidationError) as raised:
        ProgressRequest.model_validate({"tool_call_id": "c", "progress": "half", "colour": 1})
    assert worded(raised.value) == "it is not as the protocol says"
    for told in (words_of(raised.value), failure_of(raised.value).message):
        assert "must be a number" in told
        assert "validation error" not in told
        assert "pydantic.dev" not in told
