"""Picks the adapter of a model by the part of the model id before its first `/`.

It keeps no state of a turn and returns the adapter's own iterator, but for models that the operator has priced: the end
of such a stream has the cost by that price, so that records, usage and budgets have the same figure. `turnstile`
decides which adapters there are, and which one serves all other ids.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace

from turnstile.runtime.ports import Model, ModelDone, ModelEvent, ModelRequest, TokenCount
from turnstile.schema.budgets.prices import ModelPrice
from turnstile.schema.errors import ModelError


class ModelRouter:
    """A `Model` that delegates to others: `adapters` by prefix, `default` for every other id."""

    def __init__(
        self,
        adapters: Mapping[str, Model],
        default: Model | None = None,
        prices: Mapping[str, ModelPrice] | None = None,
    ) -> None:
        self._adapters = dict(adapters)
        self._default = default
        self._prices = prices or {}

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The stream of the model's adapter; raises `ModelError` (`model_unknown`) at once if no adapter serves it."""
        model = request.config.model
        events = self._adapter(model).stream(request)
        price = self._prices.get(model)
        return events if price is None else _priced(events, price)

    async def count(self, request: ModelRequest) -> TokenCount:
        """As the model's adapter counts; raises `ModelError` (`model_unknown`) if no adapter serves it."""
        return await self._adapter(request.config.model).count(request)

    async def check(self, model: str) -> None:
        """Raises `ModelError` if no adapter serves `model`, or its adapter's `check` raises."""
        await self._adapter(model).check(model)

    async def close(self) -> None:
        """Close every adapter once."""
        adapters = [*self._adapters.values(), *([self._default] if self._default else [])]
        for adapter in {id(a): a for a in adapters}.values():
            await adapter.close()

    def _adapter(self, model: str) -> Model:
        prefix, slash, _ = model.partition("/")
        adapter = self._adapters.get(prefix) if slash else None
        if adapter is not None:
            return adapter
        if self._default is not None:
            return self._default
        served = ", ".join(f"{name}/…" for name in sorted(self._adapters)) or "none"
        raise ModelError(
            "model_unknown", f"no adapter serves the model {model!r}; ids served here: {served}", retryable=False
        )


async def _priced(events: AsyncIterator[ModelEvent], price: ModelPrice) -> AsyncGenerator[ModelEvent, None]:
    try:
        async for event in events:
            if isinstance(event, ModelDone) and (cost := price.cost_of(event.usage)) is not None:
                yield replace(event, response_cost=cost / 1_000_000)
            else:
                yield event
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
