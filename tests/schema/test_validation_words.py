"""What pydantic finds wrong is never shown in pydantic's own words: one function renders it, everywhere."""

import ast
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from tests.schema.test_amounts import modules
from tests.support.paths import ROOT
from turnstile.cli.errors import failure_of
from turnstile.schema.wire.progress import ProgressRequest
from turnstile.sdk.mcp.mcp_connection import worded
from turnstile.transport.connection import words_of

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
