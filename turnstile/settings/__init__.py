"""Settings: `config.toml`, overridden by `TURNSTILE__SECTION__KEY`, as one frozen model built once in the CLI."""

from turnstile.settings.load import load_settings
from turnstile.settings.model import (
    BridgeSettings,
    DatabaseSettings,
    ModelSettings,
    NatsSettings,
    ObservabilitySettings,
    ProtocolSettings,
    Settings,
    TemporalSettings,
    ToolsSettings,
    WorkerSettings,
)

__all__ = [
    "BridgeSettings",
    "DatabaseSettings",
    "ModelSettings",
    "NatsSettings",
    "ObservabilitySettings",
    "ProtocolSettings",
    "Settings",
    "TemporalSettings",
    "ToolsSettings",
    "WorkerSettings",
    "load_settings",
]
