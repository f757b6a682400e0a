"""Composes the models of a process from the settings: scripted and local ones by prefix, litellm for every other id.

Their prices are brought into the ledger: those of the installed litellm's list, and over them `[model.prices]`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from turnstile.activities.models import LitellmModel, LocalModel, ModelAccess, ModelRouter, ScriptedModel, load_scripts
from turnstile.activities.models.price_list import list_version, listed_prices
from turnstile.activities.models.scripted import PREFIX
from turnstile.ledger.budgets.prices import CONFIGURATION, price_sources, store_prices
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.usage import list_profile_models
from turnstile.local import weights
from turnstile.local.model_servers import check_local, served_elsewhere
from turnstile.runtime.event_loop import spare_collector
from turnstile.schema.errors import TurnstileError
from turnstile.settings import Settings

log = logging.getLogger(__name__)
LocalAddress = Callable[[str], Awaitable[str]]
"""The base URL of the server of `local/NAME`, by its name; it may start the server first."""


class Models:
    """The models of a process. Nothing is loaded or started before a model is asked for, or `warm_up`."""

    def __init__(
        self, settings: Settings, local: LocalAddress = served_elsewhere, real: LitellmModel | None = None
    ) -> None:
        """Raises `ConfigError` for a script that cannot be read."""
        model = settings.model
        self.access = access = ModelAccess(model.api_key_files, model.api_bases, model.provider_messages)
        gather_seconds = settings.worker.stream_gather_ms / 1000  # what is published every 50 ms is read as often
        reads_bytes = model.reader == "bytes"
        self._real = real or LitellmModel(access, reads_bytes=reads_bytes, gather_seconds=gather_seconds)
        self._local = LocalModel(self._real, access, local, partial(check_local, settings=settings.local))
        adapters = {PREFIX: ScriptedModel(load_scripts(settings.model.scripts)), weights.PREFIX: self._local}
        self.router = ModelRouter(adapters, default=self._real, prices=settings.model.prices)

    async def warm_up(self, pool: Pool) -> None:
        """Load litellm if any profile names a real model, and start local ones, so that no turn waits for it."""
        try:
            named = {row.model for row in await pool.run(list_profile_models)}
            real = {model for model in named if not model.startswith(f"{PREFIX}/")}
            if real:
                await self._real.warm_up()
                spare_collector(again=True)
            for model in sorted(real):
                if model.startswith(f"{weights.PREFIX}/"):
                    await self._local.warm_up(model)
        except TurnstileError as error:
            log.warning("real models are not warmed up: %s", error)


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
