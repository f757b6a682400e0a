"""How many requests and tokens a minute an operator lets through to a model: `[model.rates]`. Pure."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Self

from pydantic import Field, model_validator

from turnstile.schema.base import Strict


class ModelRate(Strict):
    """The most of each in any minute, by one key at one model; null: no limit."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=10_000_000)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=1_000_000_000_000)

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            raise ValueError("needs requests_per_minute or tokens_per_minute")
        return self


def rate_of(rates: Mapping[str, ModelRate], model: str) -> ModelRate | None:
    """The rate of the entry that is this model's name, or else of the longest pattern (`openai/*`) that matches it."""
    if not rates or model in rates:
        return rates.get(model)
    fitting = [entry for entry in rates if fnmatchcase(model, entry)]
    return rates[max(fitting, key=len)] if fitting else None
