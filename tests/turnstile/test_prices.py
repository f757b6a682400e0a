"""What models cost, in the ledger: the installed list, and over it the operator's settings."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from turnstile.activities.models.price_list import list_version
from turnstile.ledger.pool import Pool
from turnstile.processes.migration import renew_prices
from turnstile.processes.models import bring_prices
from turnstile.schema.errors import ConfigError
from turnstile.settings import Settings, load_settings

GPT = "openai/gpt-4o"
OWN = """
[model.prices]
"openai/gpt-4o" = { input_per_million = 0.15, output_per_million = 1 }
"local/qwen" = { input_per_million = 0, output_per_million = 0, max_output_tokens = 512 }
"""


def settings(directory: Path, text: str = "") -> Settings:
    """The settings of a config.toml of this text."""
    file = directory / "config.toml"
    file.write_text(text)
    return load_settings(file)


async def price(pool: Pool, model: str) -> tuple[Any, ...] | None:
    """Input price, output price and source of a model."""
    async with pool.connection() as conn:
        found = await conn.fetch(
            "SELECT input_per_million, output_per_million, source FROM state.model_prices WHERE model = $1", model
        )
    return tuple(found[0].values()) if found else None


async def test_prices_are_those_of_the_list_and_over_it_the_settings(pool: Pool, tmp_path: Path) -> None:
    plain, own = settings(tmp_path), settings(tmp_path, OWN)
    version = list_version()
    assert await bring_prices(plain, pool) > 3000
    assert await bring_prices(plain, pool) == 0
    assert await price(pool, GPT) == (Decimal("2.5"), Decimal(10), version)
    assert await bring_prices(own, pool) == 2
    assert await bring_prices(own, pool) == 0
    assert await price(pool, GPT) == (Decimal("0.15"), Decimal(1), "configuration")
    assert await price(pool, "local/qwen") == (0, 0, "configuration")


async def test_what_is_set_no_more_goes_with_the_next_migration(pool: Pool, tmp_path: Path) -> None:
    """A worker leaves it, since another may have other settings; an older list goes, and what others wrote stays."""
    plain, own = settings(tmp_path), settings(tmp_path, OWN)
    await bring_prices(own, pool)
    assert await price(pool, GPT) == (Decimal("0.15"), Decimal(1), "configuration")
    assert await bring_prices(plain, pool) == 0
    assert await price(pool, "local/qwen") == (0, 0, "configuration")
    async with pool.connection() as conn:
        for source in ("litellm 0.1", "by hand"):
            await conn.fetch("INSERT INTO state.model_prices VALUES ($1, 1, 1, NULL, NULL, $1)", source)
    await renew_prices(plain, pool)
    assert await price(pool, GPT) == (Decimal("2.5"), Decimal(10), list_version())
    assert await price(pool, "local/qwen") is None
    assert await price(pool, "litellm 0.1") is None
    assert await price(pool, "by hand") == (1, 1, "by hand")


async def test_a_newer_list_leaves_the_settings_of_another_worker(pool: Pool, tmp_path: Path) -> None:
    await bring_prices(settings(tmp_path, OWN), pool)
    async with pool.connection() as conn:
        await conn.fetch("UPDATE state.model_prices SET source = 'litellm 0.1' WHERE source LIKE 'litellm %'")
    assert await bring_prices(settings(tmp_path), pool) > 3000
    assert await price(pool, GPT) == (Decimal("0.15"), Decimal(1), "configuration")


@pytest.mark.parametrize(
    "text", ["input_per_million = 1", "input_per_million = -1, output_per_million = 1", "input = 1, output = 1"]
)
def test_a_price_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="prices"):
        settings(tmp_path, f'[model.prices]\n"a/b" = {{ {text} }}\n')
