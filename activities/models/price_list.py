"""The prices of models that the installed litellm knows, read from its list without loading it.

Nothing is downloaded, and litellm is not imported: its list is a JSON file of its package. Costs some 50 ms.
"""

import importlib.metadata
import importlib.util
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import cast

from turnstile.schema.budgets.prices import ModelPrice

_FILE = "model_prices_and_context_window_backup.json"
_MODES = frozenset({"chat", "completion", "responses"})
_LONGEST = 256
"""Of a model's id in a profile."""
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    "bedrock_converse": ("bedrock", "bedrock/converse"),
    "text-completion-openai": ("openai",),
}
"""Prefixes of ids whose provider the list calls otherwise."""


def list_version() -> str | None:
    """Which list is installed, as `state.model_prices.source` names it; None if there is none."""
    try:
        return f"litellm {importlib.metadata.version('litellm')}"
    except importlib.metadata.PackageNotFoundError:
        return None


def listed_prices() -> dict[str, ModelPrice]:
    """The price of each model of the list that answers with text, under each id that a profile may name it by."""
    prices: dict[str, ModelPrice] = {}
    entries = _entries()
    for name, entry in entries.items():
        if (price := _price(entry)) is None:
            continue
        for model_id in _ids(name, entry):
            if model_id == name or model_id not in entries:
                prices[model_id] = price
    return prices


def _entries() -> Mapping[str, Mapping[str, object]]:
    spec = importlib.util.find_spec("litellm")  # of a package without a parent: nothing is imported
    for place in () if spec is None else spec.submodule_search_locations or ():
        file = Path(place) / _FILE
        if file.is_file():
            # As they are written: a float would make 0.15 of 0.1500000001.
            read: object = json.loads(file.read_text("utf-8"), parse_float=Decimal)
            if isinstance(read, dict):
                entries = cast("dict[str, object]", read)
                return {name: cast("dict[str, object]", e) for name, e in entries.items() if isinstance(e, dict)}
    return {}


def _ids(name: str, entry: Mapping[str, object]) -> list[str]:
    """The entry's name, and that with the prefix of its provider."""
    provider = entry.get("litellm_provider")
    if not isinstance(provider, str):
        return [name]
    prefixes = _PREFIXES.get(provider) or ("vertex_ai" if provider.startswith("vertex_ai-") else provider,)
    named = [name, *(f"{prefix}/{name}" for prefix in prefixes if not name.startswith(f"{prefix}/"))]
    return [n for n in named if len(n) <= _LONGEST]


def _price(entry: Mapping[str, object]) -> ModelPrice | None:
    rates = [_per_million(entry.get(f"{way}_cost_per_token")) for way in ("input", "output")]
    if entry.get("mode") not in _MODES or rates[0] is None or rates[1] is None:
        return None
    most = entry.get("max_output_tokens")
    return ModelPrice.model_construct(
        input_per_million=rates[0],
        output_per_million=rates[1],
        cached_input_per_million=_per_million(entry.get("cache_read_input_token_cost")),
        max_output_tokens=most if isinstance(most, int) and most > 0 else None,
    )


def _per_million(price: object) -> Decimal | None:
    """US dollars per million tokens; None for what is no price."""
    if isinstance(price, bool) or not isinstance(price, int | Decimal):
        return None
    number = Decimal(price) * 1_000_000
    return number if number.is_finite() and number >= 0 else None
