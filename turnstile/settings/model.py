"""Every setting with its default and its bounds; `config.example.toml` explains them, and a test compares the two.

Constructing `Settings` reads the environment, so only `load_settings` does it, once. An empty address means the
embedded server: the one of this process, or that of a running `turnstile up`.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from turnstile.schema.base import Strict
from turnstile.schema.budgets.prices import DEFAULT_MAX_TOKENS, ModelPrice
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import worker_target
from turnstile.schema.model_rates import ModelRate
from turnstile.schema.profiles import DEFAULT_MAX_STEPS, DEFAULT_WORKER_TARGET, OUTPUT_REPAIRS
from turnstile.schema.tools import INLINE_RESULT_CHARS
from turnstile.schema.wire.limits import Admission

ENV_PREFIX = "TURNSTILE__"
TRACE_ID = "{trace_id}"
"""What stands for a trace's id in `[observability].trace_url`."""
AES_GCM = "aes-gcm"
"""The built-in codec of `[temporal].codec`."""


def _listed(value: object) -> object:
    """A list from the text of an environment variable: JSON if it starts with `[`, else comma-separated."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return cast("object", json.loads(value))
        except ValueError:
            raise ValueError("starts like a JSON list and is not valid JSON") from None
    return [part.strip() for part in value.split(",") if part.strip()]


def _starts_with(*prefixes: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value and not value.startswith(prefixes):
            raise ValueError(f"an address starts with {' or '.join(prefixes)}, or is empty for the embedded server")
        return value

    return check


def _address(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError:
        raise ValueError("is an IP address to listen on, such as 127.0.0.1 or 0.0.0.0") from None


def _traces(value: str) -> str:
    if value and (not value.startswith(("http://", "https://")) or TRACE_ID not in value):
        raise ValueError(f"must begin with http:// or https:// and have {TRACE_ID} where the trace's id belongs")
    return value


def _distinct(values: list[str]) -> list[str]:
    if len(set(values)) != len(values):
        raise ValueError("names the same thing twice")
    return values


def _well_named(values: list[str]) -> list[str]:
    for value in values:
        try:
            worker_target(value, "a worker target")
        except BadRequest as error:
            raise ValueError(str(error)) from None
    return values


Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
DatabaseUrl = Annotated[str, AfterValidator(_starts_with("postgresql://", "postgres://")), Field(repr=False)]
RoleName = Annotated[str, Field(pattern=r"^[^\x00]{0,63}$")]
HostPort = Annotated[str, Field(pattern=r"^$|^[^/\s]+:[0-9]{1,5}$")]


class ProtocolSettings(Strict):
    """`[protocol]`: the defaults of commands, and the limit for every project."""

    default_project: Token = "demo"
    default_channel: Token = "public"
    max_recursion_depth: int = Field(default=20, ge=1, le=10_000)


class DatabaseSettings(Strict):
    """`[database]`: PostgreSQL 16 or newer."""

    url: DatabaseUrl = ""
    patience_seconds: Seconds = 20.0
    bridge_role: RoleName = ""
    worker_role: RoleName = ""
    gateway_role: RoleName = ""


class NatsSettings(Strict):
    """`[nats]`: a server with JetStream, or the servers of a cluster."""

    servers: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default_factory=list[str], max_length=32, repr=False
    )
    patience_seconds: Seconds = 20.0
    replicas: Literal[1, 3, 5] = 1
    storage: Literal["file", "memory"] = "file"
    max_commands_mb: int = Field(default=1024, ge=0, le=1 << 24)
    max_events_mb: int = Field(default=8192, ge=0, le=1 << 24)
    monitoring_url: Annotated[str, AfterValidator(_starts_with("http://", "https://"))] = ""

    @property
    def url(self) -> str:
        """All servers, joined as `turnstile.transport.connection.connect` expects; empty if there are none."""
        return ",".join(self.servers)


class TemporalSettings(Strict):
    """`[temporal]`: address, namespace and Web UI of a Temporal service, TLS, credentials, and encryption."""

    address: HostPort = ""
    namespace: str = Field(default="", max_length=255)
    web_ui_url: Annotated[str, AfterValidator(_starts_with("http://", "https://"))] = ""
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    api_key_file: str = ""
    codec: Annotated[str, Field(pattern=rf"^$|^{AES_GCM}$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = ""
    codec_keys_file: str = ""
    codec_keys: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default_factory=list[str], max_length=32, repr=False
    )

    @model_validator(mode="after")
    def _codec_has_keys(self) -> Self:
        sources = bool(self.codec_keys) + bool(self.codec_keys_file)
        if sources and self.codec != AES_GCM:
            raise ValueError(f'codec_keys and codec_keys_file are for codec = "{AES_GCM}"')
        if self.codec == AES_GCM and sources != 1:
            raise ValueError(f'codec = "{AES_GCM}" needs one of codec_keys_file and codec_keys')
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if self.tls and not self.address:
            raise ValueError("tls needs an address: the embedded server has none")
        named = [key for key in ("tls_ca_file", "tls_cert_file", "tls_key_file", "api_key_file") if getattr(self, key)]
        if named and not self.tls:
            raise ValueError(f"{named[0]} needs tls = true")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self


class WorkerSettings(Strict):
    """`[worker]`: the process that runs turns."""

    worker_targets: Annotated[
        list[Token], BeforeValidator(_listed), AfterValidator(_distinct), AfterValidator(_well_named)
    ] = Field(default=[DEFAULT_WORKER_TARGET], min_length=1, max_length=256)
    processes: int = Field(default=1, ge=1, le=256)
    max_concurrency: int = Field(default=100, ge=1, le=10_000)
    max_cached_turns: int = Field(default=500, ge=10, le=100_000)
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, le=1000)
    max_step_attempts: int = Field(default=25, ge=1, le=1000)
    inline_result_chars: int = Field(default=INLINE_RESULT_CHARS, ge=1024, le=524_288)
    output_repairs: int = Field(default=OUTPUT_REPAIRS, ge=0, le=100)
    activity_heartbeat_timeout_seconds: Annotated[float, Field(ge=1, le=300, allow_inf_nan=False)] = 10.0
    stream_gather_ms: int = Field(default=50, ge=0, le=1000)
    database_pool_size: int = Field(default=10, ge=1, le=1000)
    box_cache_mb: int = Field(default=64, ge=0, le=65_536)
    deployment_name: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,128}$")
    build_id: str = Field(default="", pattern=r"^[A-Za-z0-9._+-]{0,128}$")

    @model_validator(mode="after")
    def _versions_whole(self) -> Self:
        if bool(self.deployment_name) != bool(self.build_id):
            raise ValueError("deployment_name and build_id are set together, or neither")
        return self


class BridgeSettings(Strict):
    """`[bridge]`: doorbells, verbs and the safety net (protocol §8)."""

    max_concurrency: int = Field(default=64, ge=1, le=10_000)
    database_pool_size: int = Field(default=10, ge=1, le=1000)
    poll_interval_seconds: Annotated[float, Field(ge=0.05, le=3600, allow_inf_nan=False)] = 1.0
    inbox_processing_timeout_seconds: Seconds = 300.0
    pending_wakeup_seconds: Seconds = 5.0
    dispatched_retry_seconds: Seconds = 10.0
    dispatched_timeout_seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 30.0
    active_reap_seconds: Seconds = 300.0
    engine_interval_seconds: Seconds = 10.0
    engine_list_seconds: Seconds = 600.0
    command_retry_seconds: Seconds = 30.0
    stop_grace_seconds: Seconds = 3.0
    ui_actions: bool = False


class ModelSettings(Strict):
    """`[model]`: timeouts and retries of model calls, keys, and the directories of scripted models."""

    timeout_seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 120.0
    model_attempts: int = Field(default=4, ge=1, le=100)
    retry_initial_seconds: Annotated[float, Field(ge=0.01, le=600, allow_inf_nan=False)] = 1.0
    retry_max_seconds: Annotated[float, Field(ge=0.01, le=3600, allow_inf_nan=False)] = 30.0
    fallback_patience_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10.0
    patience_seconds: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 600.0
    rates: dict[Annotated[str, Field(min_length=1, max_length=256)], ModelRate] = Field(
        default_factory=dict[str, ModelRate], max_length=256
    )
    scripts: Annotated[list[Path], BeforeValidator(_listed)] = Field(default_factory=list[Path], max_length=256)
    api_key_files: dict[str, Path] = Field(default_factory=dict[str, Path], max_length=256)
    api_bases: dict[str, Annotated[str, AfterValidator(_starts_with("http://", "https://"))]] = Field(
        default_factory=dict[str, str], max_length=256
    )
    provider_messages: bool = True
    reader: Literal["bytes", "litellm"] = "bytes"
    prices: dict[Annotated[str, Field(min_length=1, max_length=256)], ModelPrice] = Field(
        default_factory=dict[str, ModelPrice], max_length=10_000
    )

    @model_validator(mode="after")
    def _delays_in_order(self) -> Self:
        if self.retry_max_seconds < self.retry_initial_seconds:
            raise ValueError("retry_max_seconds must not be less than retry_initial_seconds")
        return self


class BudgetSettings(Strict):
    """`[budget]`: turns that may spend so much and no more (docs/models.md)."""

    max_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=1, le=10_000_000)


class LocalSettings(Strict):
    """`[local]`: models that run on this machine, by name (docs/models.md)."""

    weights: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")], Path] = Field(
        default_factory=dict[str, Path], max_length=64
    )
    slots: int = Field(default=2, ge=1, le=64)
    context_tokens: int = Field(default=4096, ge=256, le=10_000_000)
    threads: int = Field(default=0, ge=0, le=1024)


class ToolsSettings(Strict):
    """`[tools]`: how long a turn waits for tools."""

    suspend_timeout_seconds: Seconds = 120.0


class PumpSettings(Strict):
    """`[pump]`: threads of listeners (protocol §9)."""

    listeners: Annotated[list[str], BeforeValidator(_listed), AfterValidator(_distinct)] = Field(
        default_factory=list[str], max_length=256
    )
    worker_target: Token = "pump"
    max_messages: int = Field(default=10_000, ge=1, le=1_000_000)
    max_hops: int = Field(default=200, ge=1, le=100_000)
    max_depth: int = Field(default=20, ge=1, le=1000)
    max_open: int = Field(default=100, ge=1, le=10_000)


class PmoSettings(Strict):
    """`[pmo]`: agents that delegate to others (protocol §12); the names are v1r4's."""

    fork_join_max_tasks: int = Field(default=1000, ge=1, le=10_000)
    fork_join_default_deadline_seconds: Seconds = 900.0
    fork_join_summary_chars: int = Field(default=2000, ge=500, le=100_000)
    accept_timeout_seconds: Seconds = 120.0


class LimitsSettings(Strict):
    """`[limits]`: what one project has in hand, and what one caller makes; 0 means no limit (docs/limits.md)."""

    requests_per_second: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 200.0
    request_burst: int = Field(default=1000, ge=1, le=1_000_000)
    max_queued_turns: int = Field(default=1000, ge=0, le=1_000_000)
    max_live_turns: int = Field(default=10_000, ge=0, le=1_000_000)
    max_open_threads: int = Field(default=10_000, ge=0, le=1_000_000)
    max_instances: int = Field(default=10_000, ge=0, le=1_000_000)
    max_wakes_per_agent: int = Field(default=100, ge=0, le=10_000)
    max_unused_conversations: int = Field(default=10_000, ge=0, le=1_000_000)
    max_unused_boxes: int = Field(default=10_000, ge=0, le=1_000_000)
    max_unused_cards: int = Field(default=2_000_000, ge=0, le=1_000_000_000)
    max_agents: int = Field(default=10_000, ge=0, le=1_000_000)
    max_open_pushes: int = Field(default=10_000, ge=0, le=1_000_000)

    @property
    def admission(self) -> Admission:
        """The limits that verbs check in the ledger."""
        named = {field.name for field in fields(Admission)}
        return Admission(**self.model_dump(include=named))


def _network(value: str) -> str:
    try:
        return str(ip_network(value, strict=False))
    except ValueError:
        raise ValueError("needs an address or a network, such as 10.0.0.0/8") from None


class GatewaySettings(Strict):
    """`[gateway]`: HTTP for applications and people (protocol §14)."""

    host: Annotated[str, AfterValidator(_address)] = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65_535)
    url: Annotated[str, AfterValidator(_starts_with("http://", "https://"))] = ""
    allowed_hosts: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list[str], max_length=64)
    allowed_origins: Annotated[list[str], BeforeValidator(_listed)] = Field(default_factory=list[str], max_length=64)
    trusted_proxies: Annotated[list[Annotated[str, AfterValidator(_network)]], BeforeValidator(_listed)] = Field(
        default_factory=list[str], max_length=64
    )
    database_pool_size: int = Field(default=6, ge=1, le=1000)
    statement_timeout_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10.0
    max_body_kb: int = Field(default=1024, ge=1, le=65_536)
    max_connections: int = Field(default=5000, ge=1, le=1_000_000)
    max_streams_per_token: int = Field(default=2000, ge=1, le=1_000_000)
    requests_per_second: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 100.0
    request_burst: int = Field(default=500, ge=1, le=1_000_000)
    request_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)] = 10.0
    idle_timeout_seconds: Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)] = 30.0
    slow_reader_seconds: Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)] = 20.0
    heartbeat_seconds: Annotated[float, Field(ge=0.1, le=3600, allow_inf_nan=False)] = 15.0
    stream_buffer_kb: int = Field(default=2048, ge=64, le=1_048_576)
    default_agent: str = Field(default="", max_length=200)
    organization: str = Field(default="", max_length=200)
    organization_url: Annotated[str, AfterValidator(_starts_with("http://", "https://"))] = ""
    push_to_private_addresses: bool = False


class ArtifactSettings(Strict):
    """`[artifacts]`: files of projects, and the store of their bytes (protocol §22)."""

    store: Annotated[str, AfterValidator(_starts_with("file:///", "s3://", "gs://", "az://"))] = ""
    """Empty: the data directory of the running `up`; without one no files are kept."""
    max_file_mb: int = Field(default=100, ge=1, le=100_000)
    project_mb: int = Field(default=10_000, ge=0, le=1_000_000_000)
    max_uploads: int = Field(default=100, ge=0, le=100_000)
    inline_chars: int = Field(default=20_000, ge=0, le=1_000_000)
    """The longest text file that a model is shown whole."""


class RetentionSettings(Strict):
    """`[retention]`: what `turnstile prune` does beside removing what is old (docs/operations.md)."""

    instances_after_days: float = Field(default=30.0, gt=0, le=36_500, allow_inf_nan=False)


class ObservabilitySettings(Strict):
    """`[observability]`: logs, metrics and traces."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    otlp_endpoint: Annotated[str, AfterValidator(_starts_with("http://", "https://"))] = ""
    capture_content: bool = False
    trace_url: Annotated[str, AfterValidator(_traces)] = ""
    metrics_host: Annotated[str, AfterValidator(_address)] = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    temporal_metrics_port: int = Field(default=0, ge=0, le=65_535)
    metrics_labels: Annotated[list[Literal["project", "agent"]], BeforeValidator(_listed)] = Field(
        default_factory=list[Literal["project", "agent"]], max_length=2
    )

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.metrics_port and self.metrics_port == self.temporal_metrics_port:
            raise ValueError("metrics_port and temporal_metrics_port must differ")
        return self


class Settings(BaseSettings):
    """All settings."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        enable_decoding=False,
        validate_default=False,
    )

    protocol: ProtocolSettings = ProtocolSettings()
    database: DatabaseSettings = DatabaseSettings()
    nats: NatsSettings = NatsSettings()
    temporal: TemporalSettings = TemporalSettings()
    worker: WorkerSettings = WorkerSettings()
    bridge: BridgeSettings = BridgeSettings()
    model: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    local: LocalSettings = LocalSettings()
    tools: ToolsSettings = ToolsSettings()
    pump: PumpSettings = PumpSettings()
    pmo: PmoSettings = PmoSettings()
    limits: LimitsSettings = LimitsSettings()
    gateway: GatewaySettings = GatewaySettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    retention: RetentionSettings = RetentionSettings()
    observability: ObservabilitySettings = ObservabilitySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment overrides the file, whose content is passed to the constructor."""
        return env_settings, init_settings
