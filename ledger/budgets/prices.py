"""What models cost, as the ledger reserves by it: `store_prices`, `drop_prices`, `has_price` (protocol §15).

Guarantees: a repeat writes nothing. Each is one round trip.
"""

from collections.abc import Collection, Mapping

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.budgets.prices import ModelPrice

CONFIGURATION = "configuration"
"""The source of the prices that operators have set."""


class PriceSource(Tolerant):
    """A source of stored prices; its `models` only of the configuration."""

    source: str
    prices: int
    models: list[str]


async def price_sources(conn: Connection) -> dict[str, PriceSource]:
    """The sources of the stored prices, by name."""
    sources = await query("price_sources").all_as(conn, PriceSource, configuration=CONFIGURATION)
    return {s.source: s for s in sources}


async def has_price(conn: Connection, model: str) -> bool:
    """Whether the model has a price, which a turn whose cost is limited needs."""
    row = await query("has_price").one(conn, model=model)
    return bool(row["known"])


async def store_prices(conn: Connection, source: str, prices: Mapping[str, ModelPrice]) -> int:
    """Store these prices, in the place of what else is stored for their models; returns how many were new."""
    listed = list(prices.values())
    row = await query("store_prices").one(
        conn,
        source=source,
        models=list(prices),
        inputs=[p.input_per_million for p in listed],
        outputs=[p.output_per_million for p in listed],
        cached=[p.cached_input_per_million for p in listed],
        most=[p.max_output_tokens for p in listed],
    )
    return int(row["written"])


async def drop_prices(conn: Connection, configured: Collection[str], price_list: str | None) -> int:
    """Remove what the configuration has no more, and what other versions of the list had; returns how many went."""
    row = await query("drop_prices").one(
        conn, configuration=CONFIGURATION, configured=list(configured), list=price_list
    )
    return int(row["gone"])
