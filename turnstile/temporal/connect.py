"""Connects to Temporal: address and namespace, with the TLS, credentials and codec of `[temporal]`."""

from collections.abc import Sequence
from pathlib import Path

from temporalio.client import Client, Plugin
from temporalio.runtime import Runtime
from temporalio.service import TLSConfig

from turnstile.embedded import Endpoints
from turnstile.schema.errors import ConfigError
from turnstile.settings.model import TemporalSettings
from turnstile.temporal.converters import codec_of, with_codec


async def connect_engine(
    settings: TemporalSettings,
    endpoints: Endpoints,
    *,
    plugins: Sequence[Plugin] = (),
    runtime: Runtime | None = None,
    identity: str | None = None,
) -> Client:
    """Connect once; raises `RuntimeError` if that fails, `ConfigError` for a file that cannot be read."""
    return await Client.connect(
        endpoints.temporal_address,
        namespace=endpoints.temporal_namespace,
        tls=_tls(settings),
        api_key=_secret(settings, "api_key_file"),
        data_converter=with_codec(codec_of(settings)),
        plugins=plugins,
        runtime=runtime,
        identity=identity,
    )


def _tls(settings: TemporalSettings) -> TLSConfig | bool:
    if not settings.tls:
        return False
    return TLSConfig(
        server_root_ca_cert=_content(settings, "tls_ca_file"),
        client_cert=_content(settings, "tls_cert_file"),
        client_private_key=_content(settings, "tls_key_file"),
    )


def _secret(settings: TemporalSettings, key: str) -> str | None:
    content = _content(settings, key)
    return None if content is None else content.decode().strip()


def _content(settings: TemporalSettings, key: str) -> bytes | None:
    """The content of the file that the setting names; None if the setting is empty."""
    file = str(getattr(settings, key))
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"[temporal].{key}: {file} cannot be read ({error.strerror})") from None
