"""What a pool says of a server that refuses it: at once, and what to mend."""

from urllib.parse import urlsplit

import pytest

from ledger.pool import Pool
from ledger.usage import list_profile_models
from schema.errors import ConfigError


def changed(url: str, *, password: str = "", database: str = "", query: str = "") -> str:
    """The address with another password, database or query."""
    split = urlsplit(url)
    login = f"{split.username}:{password or split.password}@{split.hostname}:{split.port}"
    return f"postgresql://{login}/{database or split.path[1:]}{query}"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"password": "s3cret"}, "password authentication failed"),
        ({"database": "not_there"}, 'database "not_there" does not exist'),
        ({"query": "?sslmode=always"}, "sslmode"),
    ],
)
async def test_a_refusal_is_a_config_error_at_once(what: dict[str, str], told: str, database_url: str) -> None:
    pool = Pool(changed(database_url, **what), size=1)
    with pytest.raises(ConfigError, match=told) as opening:
        await pool.open()
    with pytest.raises(ConfigError, match=told) as running:
        await pool.run(list_profile_models)
    for refused in (opening, running):
        assert "[database].url" in str(refused.value)
        assert "s3cret" not in str(refused.value)
    await pool.close()
