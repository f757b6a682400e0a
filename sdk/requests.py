"""What callers say, checked before it is sent: the bridge would refuse the same."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.errors import BadRequest
from turnstile.schema.validation import describe_faults

Request = TypeVar("Request", bound=BaseModel)

Budget: TypeAlias = BudgetLimits | Mapping[str, Any]
"""What a turn may use: `{"max_tokens": 50_000, "max_cost_usd": 0.5, "max_turns": 8, "max_seconds": 600}`."""


def budget_of(given: Budget | None) -> JsonObject | None:
    """The budget as a request has it; raises `BadRequest` naming the field that is wrong."""
    if given is None:
        return None
    limits = given if isinstance(given, BudgetLimits) else parse_request(BudgetLimits, dict(given))
    return limits.model_dump(mode="json", exclude_none=True)


def parse_request(form: type[Request], given: JsonObject) -> Request:
    """The request; raises `BadRequest` naming each field that is wrong."""
    try:
        return form.model_validate(given)
    except ValidationError as error:
        raise BadRequest(describe_faults(error, form)) from None
