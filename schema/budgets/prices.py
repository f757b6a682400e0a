"""What a model costs: `ModelPrice` (protocol §15). Pure.

US dollars per million tokens are micro-dollars per token, so that costs are whole numbers without a conversion.
"""

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, TypeGuard

from pydantic import Field, PlainSerializer

from turnstile.schema.base import Strict

DEFAULT_MAX_TOKENS = 4096
"""The most tokens of an answer in a turn with a budget, if the profile gives no limit; sent to the provider."""

Rate = Annotated[
    Decimal,
    Field(ge=0, le=1_000_000, allow_inf_nan=False),
    PlainSerializer(float, return_type=float, when_used="json"),
]
"""US dollars per million tokens."""


class ModelPrice(Strict):
    """What tokens of a model cost, in US dollars per million; 0 for a model that costs nothing."""

    input_per_million: Rate
    output_per_million: Rate
    cached_input_per_million: Rate | None = None
    """Of input that the provider had cached; null: as other input."""
    max_output_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The most tokens that the model answers, if that is known."""

    def cost(self, prompt: int, completion: int, cached: int = 0) -> int:
        """The cost of a request in micro-dollars, rounded up; `cached` of its prompt's tokens came from a cache."""
        cheap = self.input_per_million if self.cached_input_per_million is None else self.cached_input_per_million
        cached = min(max(cached, 0), prompt)
        read = self.input_per_million * (prompt - cached) + cheap * cached
        return ceiled(read + self.output_per_million * completion)

    def cost_of(self, usage: Mapping[str, object]) -> int | None:
        """The cost in micro-dollars of a request of which a provider counted this; None without both counts."""
        counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens"))
        prompt, completion, cached = (count if is_count(count) else None for count in counts)
        return None if prompt is None or completion is None else self.cost(prompt, completion, cached or 0)


def is_count(value: object) -> TypeGuard[int]:
    """Whether a provider's count can be one."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def ceiled(number: Decimal) -> int:
    """The number rounded up to a whole one."""
    return int(number.to_integral_value(ROUND_CEILING))
