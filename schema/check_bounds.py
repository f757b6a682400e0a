"""How much of a stranger's JSON schema is checked, and at what cost at most. Pure."""

from pydantic_core import SchemaError, SchemaValidator, core_schema

from turnstile.schema.errors import TurnstileError

MOST_LOOKS = 50_000
"""The most keywords evaluated in one check, each counted with the length of its value."""
UNCHECKED = {"patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
"""Keywords that are not evaluated."""


class SchemaTooCostly(TurnstileError):
    """Checking arguments against a schema takes too long."""

    code: str = "schema_too_costly"


def linear(pattern: str) -> SchemaValidator | None:
    """A validator of text that matches the pattern in linear time; None if the pattern has no such form."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
