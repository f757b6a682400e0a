"""What a step's attempts at a model used, as the ledger books it: `metadata.budget.uses` (protocol §15). Pure.

What nobody can know is null and booked whole: an attempt that was lost or cancelled, or that failed after the provider
had begun. An attempt that the provider refused before any output used nothing.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import ModelPrice, ceiled, is_count
from turnstile.schema.budgets.uses import AttemptUse, StepBudget

NOT_SENT = "not_sent"
"""`error_code` of an attempt that reserved, or may have, and was given up before it was sent."""
_REFUSED = frozenset(
    {
        *(NOT_SENT, "rate_limited", "model_overloaded", "quota_exhausted", "auth_failed", "model_unknown"),
        *("model_bad_request", "model_params_unsupported", "context_window_exceeded", "model_request_invalid"),
        *("model_key_missing", "model_library_missing", "model_weights_missing"),
    }
)
"""Codes of attempts that cost nothing if no output came."""

Prices = Mapping[str, ModelPrice | None]
"""The price of each model that was reserved for; None where it has none."""


def attempt_key(number: int, *, summary: bool) -> int:
    """The number under which an attempt is reserved: summaries have negative ones, since they count from the same."""
    return -number if summary else number


def step_budget(records: Sequence[JsonObject], prices: Prices) -> StepBudget:
    """What these attempts used."""
    found = (attempt_use(record, prices) for record in records)
    return StepBudget(uses=tuple(use for use in found if use is not None))


def attempt_use(record: JsonObject, prices: Prices) -> AttemptUse | None:
    """What this attempt used; None for a record without a number, which others wrote."""
    number = record.get("attempt")
    if not isinstance(number, int):
        return None
    key = attempt_key(number, summary=record.get("summary") is True)
    if record.get("error_code") in _REFUSED and record.get("first_token_ms") is None:
        return AttemptUse(attempt=key, tokens=0, cost=0)
    usage = record.get("usage")
    counts = {name: count for name, count in (usage if isinstance(usage, dict) else {}).items() if is_count(count)}
    return AttemptUse(attempt=key, tokens=_tokens(counts), cost=_cost(record, counts, prices))


def _tokens(counts: Mapping[str, object]) -> int | None:
    total, prompt, completion = (counts.get(f"{name}_tokens") for name in ("total", "prompt", "completion"))
    if isinstance(total, int):
        return total
    return prompt + completion if isinstance(prompt, int) and isinstance(completion, int) else None


def _cost(record: JsonObject, counts: Mapping[str, object], prices: Prices) -> int | None:
    """In micro-dollars: as the provider says, else by the price; 0 where there is none, since nothing was reserved."""
    said = record.get("response_cost")
    if isinstance(said, int | float) and said >= 0:
        return ceiled(Decimal(str(said)) * 1_000_000)
    model = record.get("model")
    if not isinstance(model, str) or model not in prices or _tokens(counts) is None:
        return None
    price = prices[model]
    return 0 if price is None else price.cost_of(counts)
