"""Settings from `config.toml`, overridden by `TURNSTILE__SECTION__KEY`: one frozen model, built once by the CLI."""

from turnstile.settings.load import load_settings
from turnstile.settings.model import (
    TRACE_ID,
    ArtifactSettings,
    BridgeSettings,
    BudgetSettings,
    DatabaseSettings,
    GatewaySettings,
    LocalSettings,
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
    "TRACE_ID",
    "ArtifactSettings",
    "BridgeSettings",
    "BudgetSettings",
    "DatabaseSettings",
    "GatewaySettings",
    "LocalSettings",
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
