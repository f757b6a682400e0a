"""Profiles: what an agent is, as written in YAML and pinned by every turn (protocol §7.1)."""

import re

from pydantic import Field, JsonValue

from schema.base import Strict

DEFAULT_WORKER_TARGET = "worker_generic"
DEFAULT_MAX_STEPS = 16

_TARGET = r"^[A-Za-z0-9_-]{1,128}$"


class LlmConfig(Strict):
    """How the model is asked. `timeout_seconds` bounds one attempt; null takes the worker's `[model]` default."""

    model: str = Field(min_length=1, max_length=256)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    stop: list[str] | None = Field(default=None, max_length=16)
    seed: int | None = None
    reasoning_effort: str | None = Field(default=None, max_length=32)
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Further parameters of one provider, passed on as they are."""


class Profile(Strict):
    """A profile as `turnstile profile put` reads it and a `sys.profile` card holds it."""

    name: str = Field(min_length=1, max_length=128)
    worker_target: str = Field(default=DEFAULT_WORKER_TARGET, pattern=_TARGET)
    tags: list[str] = Field(default_factory=list)
    system_prompt_template: str = Field(default="", max_length=524_288)
    allowed_tools: list[str] = Field(default_factory=list)
    must_end_with: list[str] = Field(default_factory=list)
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, le=1000)
    llm_config: LlmConfig


class RuntimeConfig(Strict):
    """What one enqueue may override, and nothing else."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    max_steps: int | None = Field(default=None, ge=1, le=1000)


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def render(template: str, values: dict[str, str]) -> str:
    """`template` with the placeholders named in `values` filled in (protocol §7.3); other braces stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
