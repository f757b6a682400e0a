"""One model out of many: picks an adapter by the part of the model id before its first `/`.

It keeps nothing about any turn and adds nothing to a stream: what it hands out is the adapter's own iterator. Which
adapters there are, and which of them serves every other id, is wired in `turnstile`.
"""

from collections.abc import AsyncIterator, Mapping

from turnstile.runtime.ports import Model, ModelEvent, ModelRequest
from turnstile.schema.errors import ModelError


class ModelRouter:
    """A `Model` made of others: `adapters` by prefix, and `default` for every id without one of these prefixes."""

    def __init__(self, adapters: Mapping[str, Model], default: Model | None = None) -> None:
        self._adapters = dict(adapters)
        self._default = default

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The chosen adapter's answer; raises `ModelError` (`model_unknown`) at once if no adapter serves the id."""
        return self._adapter(request.config.model).stream(request)

    async def check(self, model: str) -> None:
        """Raises `ModelError` if no adapter serves `model`, or the one that does cannot ask it."""
        await self._adapter(model).check(model)

    async def close(self) -> None:
        """Close every adapter once."""
        adapters = [*self._adapters.values(), *([self._default] if self._default else [])]
        for adapter in {id(each): each for each in adapters}.values():
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
