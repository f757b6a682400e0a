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
