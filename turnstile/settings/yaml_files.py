"""Reads profiles, tools and listeners from YAML files; a `ConfigError` names file, key and what is allowed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError

from turnstile.schema.errors import ConfigError, ModelError
from turnstile.schema.profiles import Profile
from turnstile.schema.pump.listeners import ListenerEntry, ListenerFile
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.validation import ValidationFault, faults_in
from turnstile.schema.wire.schedule_requests import SchedulePutRequest

Form = TypeVar("Form", bound=BaseModel)


def read_profile(file: Path) -> Profile:
    """The profile in the file; raises `ConfigError` listing every problem."""
    return _read(file, Profile, "profile")


def read_listeners(file: Path) -> list[ListenerEntry]:
    """The listeners in the file; raises `ConfigError` listing every problem."""
    return _read(file, ListenerFile, "file of listeners").listeners


def read_tool(file: Path) -> ToolDefinition:
    """The tool in the file; raises `ConfigError` listing every problem."""
    return _read(file, ToolDefinition, "tool")


def read_schedule(file: Path) -> SchedulePutRequest:
    """The schedule in the file; raises `ConfigError` listing every problem."""
    return _read(file, SchedulePutRequest, "schedule")


async def check_scripted(profile: Profile, scripts: Sequence[Path]) -> None:
    """Raise `ModelError` (`model_unknown`) if the profile names a scripted model that does not exist.

    Other models are checked by the worker, which has their keys.
    """
    from turnstile.activities.models.script_files import load_scripts  # noqa: PLC0415 -- only profiles with a script need it
    from turnstile.activities.models.scripted import PREFIX, ScriptedModel  # noqa: PLC0415

    summary = None if profile.memory is None else profile.memory.summary_model
    config = profile.llm_config
    models = (summary, *(() if config is None else (config.model, *config.fallbacks)))
    named = [model for model in models if model and model.startswith(f"{PREFIX}/")]
    if not named:
        return
    try:
        for model in named:
            await ScriptedModel(load_scripts(scripts)).check(model)
    except ModelError as error:
        raise ModelError(
            error.code, f"profile {profile.name}: {error} (--no-check stores it anyway)", retryable=False
        ) from None


def _read(file: Path, form: type[Form], noun: str) -> Form:
    try:
        value: object = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{file}: not valid YAML: nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: a {noun} is a mapping with the keys {', '.join(form.model_fields)}")
    try:
        return form.model_validate(value)
    except ValidationError as error:
        problems = [_problem(fault, cast("object", value)) for fault in faults_in(error, form)]
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems)) from None


def _problem(fault: ValidationFault, value: object) -> str:
    key = _key(value, fault.path)
    if fault.kind == "extra_forbidden":
        return f"unknown key {key!r}; allowed: {', '.join(fault.known)}"
    if fault.kind == "missing":
        return f"the key {key!r} is missing"
    return f"{key} = {fault.value!r:.80}: {fault.sentence}" if key else fault.sentence


def _key(whole: object, path: Sequence[str | int]) -> str:
    """The place of a value in the file; an item of a list is shown with its number and its name if it has one."""
    words: list[str] = []
    at: Any = whole
    for part in path:
        try:
            at = at[part]
        except (LookupError, TypeError):
            at = None
        item: object = at
        name = cast("dict[str, object]", item).get("name") if isinstance(item, dict) else None
        words.append(f"{part} ({name})" if isinstance(part, int) and name is not None else str(part))
    return ".".join(words)
