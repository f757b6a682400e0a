"""What callers say, checked before it is sent: the bridge would refuse the same."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.validation import describe_faults

Request = TypeVar("Request", bound=BaseModel)

_OF_PROJECT: Final = re.compile(r"\A[^/]+/(day|month)/")
"""How the id of a project's budget begins: a token's project is known, and the path has the day or month alone."""

Budget: TypeAlias = BudgetLimits | Mapping[str, Any]
"""What a turn may use: `{"max_tokens": 50_000, "max_cost_usd": 0.5, "max_turns": 8, "max_seconds": 600}`."""


def budget_of(budget: Budget | None) -> JsonObject | None:
    """The budget as a request has it; raises `BadRequest` naming the field that is wrong."""
    if budget is None:
        return None
    limits = budget if isinstance(budget, BudgetLimits) else parse_request(BudgetLimits, dict(budget))
    return limits.model_dump(mode="json", exclude_none=True)


def parse_request(form: type[Request], fields: JsonObject) -> Request:
    """The request; raises `BadRequest` naming each field that is wrong."""
    try:
        return form.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(describe_faults(error, form)) from None


def part_of(key: str, named: str) -> str:
    """The part of a path that names what a request is about; raises `Refused` for what nothing is called."""
    named, noun = _OF_PROJECT.sub("", named), key.removeprefix("agent_").removesuffix("_id")
    if not named or "/" in named or named in (".", ".."):
        raise Refused(f"unknown_{noun}", f"there is no {noun} {named[:60]!r}")
    return quote(named, safe="")


def idempotent(correlation_id: str) -> dict[str, str]:
    """The header for a caller's own name of a request, in quotes so that no blank of it is lost."""
    if not (correlation_id.isascii() and correlation_id.isprintable()):
        raise BadRequest("correlation_id: over HTTP it has ASCII characters only")
    return {"idempotency-key": f'"{correlation_id}"'}
