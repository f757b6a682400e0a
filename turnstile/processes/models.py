"""Composes the models of a process from the settings: scripted ones by their prefix, litellm for every other id."""

import logging

from turnstile.activities.models import LitellmModel, ModelAccess, ModelRouter, ScriptedModel, load_scripts
from turnstile.activities.models.scripted import PREFIX
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.usage import list_profile_models
from turnstile.schema.errors import TurnstileError
from turnstile.settings import ModelSettings

log = logging.getLogger(__name__)


def real_model(settings: ModelSettings) -> LitellmModel:
    """The adapter of real models; it loads nothing yet."""
    return LitellmModel(ModelAccess(settings.api_key_files, settings.api_bases))


def route_models(settings: ModelSettings, real: LitellmModel) -> ModelRouter:
    """The router of all models; raises `ConfigError` for a script that cannot be read."""
    return ModelRouter({PREFIX: ScriptedModel(load_scripts(settings.scripts))}, default=real)


async def warm_up(pool: Pool, real: LitellmModel) -> None:
    """Load litellm now if any profile names a real model, so that no turn waits for it."""
    try:
        named = await pool.run(list_profile_models)
        if any(not each.model.startswith(f"{PREFIX}/") for each in named):
            await real.warm_up()
    except TurnstileError as error:
        log.warning("real models are not warmed up: %s", error)
