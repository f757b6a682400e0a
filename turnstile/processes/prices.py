"""Stores what models cost: the installed litellm's list, and over it what `[model.prices]` says (docs/models.md)."""

import asyncio
import logging

from turnstile.activities.models.price_list import list_version, listed_prices
from turnstile.ledger.budgets.prices import CONFIGURATION, price_sources, store_prices
from turnstile.ledger.pool import Pool
from turnstile.settings import Settings

log = logging.getLogger(__name__)


async def bring_prices(settings: Settings, pool: Pool, *, again: bool = False) -> int:
    """Store the prices that differ from the ledger's; returns how many were written.

    Costs one round trip where the ledger has this list, unless it shall be compared `again`, and one more with
    `[model.prices]`. What the ledger has of other workers' settings stays.
    """
    version, configured = list_version(), settings.model.prices
    sources = await pool.run(price_sources)
    written = 0
    if version is not None and (again or version not in sources):
        set_elsewhere = sources[CONFIGURATION].models if CONFIGURATION in sources else []
        kept = {*configured, *set_elsewhere}
        listed = await asyncio.to_thread(listed_prices)
        prices = {model: price for model, price in listed.items() if model not in kept}
        written += await pool.run(lambda conn: store_prices(conn, version, prices))
    if configured:
        written += await pool.run(lambda conn: store_prices(conn, CONFIGURATION, configured))
    if written:
        log.info("%d prices of models are new", written)
    return written
