"""Finds the servers' addresses: in the settings, else those that a running `turnstile up` announces."""

from pathlib import Path
from urllib.parse import quote, urlsplit

from pydantic import ValidationError

from turnstile.embedded import DEFAULT_DATA, Endpoints, find_endpoints
from turnstile.schema.errors import ConfigError
from turnstile.settings import Settings

NAMESPACE = "default"


class NothingRuns(ConfigError):
    """An address is not set, and no `turnstile up` announces one."""


def resolve_endpoints(settings: Settings, data: Path | None) -> Endpoints:
    """All three addresses; raises `ConfigError`, which says what to start or set, if one is not known."""
    endpoints = announced(data)
    addresses = {
        "[database].url": settings.database.url or (endpoints.database_url if endpoints else ""),
        "[nats].servers": settings.nats.url or (endpoints.nats_url if endpoints else ""),
        "[temporal].address": settings.temporal.address or (endpoints.temporal_address if endpoints else ""),
    }
    if missing := [key for key, address in addresses.items() if not address]:
        raise nothing_runs(data, missing)
    database, nats, temporal = addresses.values()
    return Endpoints(
        database_url=database,
        nats_url=nats,
        nats_monitoring_url=endpoints.nats_monitoring_url if endpoints else None,
        temporal_address=temporal,
        temporal_namespace=settings.temporal.namespace or (endpoints.temporal_namespace if endpoints else NAMESPACE),
        web_ui_url=web_ui_url(settings, endpoints),
    )


def database_url(settings: Settings, data: Path | None) -> str:
    """The ledger's address; raises `ConfigError` as `resolve_endpoints` does."""
    if settings.database.url:
        return settings.database.url
    if (endpoints := announced(data)) is None:
        raise nothing_runs(data, ["[database].url"])
    return endpoints.database_url


def nats_url(settings: Settings, data: Path | None) -> str:
    """The address of NATS; raises `ConfigError` as `resolve_endpoints` does."""
    if settings.nats.url:
        return settings.nats.url
    if (endpoints := announced(data)) is None:
        raise nothing_runs(data, ["[nats].servers"])
    return endpoints.nats_url


def with_store(settings: Settings, data: Path | None) -> Settings:
    """The settings with the store of files: theirs, else that of the running `up`, else none."""
    if settings.artifacts.store or announced(data) is None:
        return settings
    return beside(settings, DEFAULT_DATA if data is None else data)


def beside(settings: Settings, data: Path) -> Settings:
    """The settings whose store of files is in the data directory, if they name none."""
    if settings.artifacts.store:
        return settings
    store = settings.artifacts.model_copy(update={"store": (data.absolute() / "artifacts").as_uri()})
    return settings.model_copy(update={"artifacts": store})


def announced(data: Path | None) -> Endpoints | None:
    """The addresses that a running `turnstile up` announces; raises `ConfigError` if this user may not read them."""
    try:
        return find_endpoints(data)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read ({error.strerror}): run as the user of `up`") from None
    except ValidationError:
        where = DEFAULT_DATA if data is None else data
        raise ConfigError(f"{where}/endpoints.json is of another version of turnstile: start `up` again") from None


def web_ui_url(settings: Settings, endpoints: Endpoints | None) -> str | None:
    """The address of Temporal's Web UI: the configured one, or the embedded one."""
    if settings.temporal.web_ui_url or settings.temporal.address:
        return settings.temporal.web_ui_url or None
    return endpoints.web_ui_url if endpoints else None


def turn_link(web_ui: str, namespace: str, workflow_id: str) -> str:
    """The page of a turn's workflow in the Web UI."""
    return f"{web_ui.rstrip('/')}/namespaces/{namespace}/workflows/{workflow_id}"


def list_link(web_ui: str, namespace: str, query: str) -> str:
    """The list of workflows in the Web UI that a query finds."""
    return f"{web_ui.rstrip('/')}/namespaces/{namespace}/workflows?query={quote(query)}"


def nothing_runs(data: Path | None, missing: list[str]) -> "NothingRuns":
    """The error for addresses that are not known."""
    where = f"in {data}" if data is not None else f"here (no {DEFAULT_DATA} with servers in this directory or above)"
    keys = " and ".join(missing)
    return NothingRuns(f"nothing is running {where}: start `turnstile up`, pass --data DIR of one, or set {keys}")


def without_password(url: str) -> str:
    """The address with its user and without password or parameters."""
    split = urlsplit(url)
    login, _, hosts = split.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    # a NATS URL may hold a token in place of user and password
    return f"{split.scheme}://{f'{user}@' if user and colon else ''}{hosts}{split.path}"
