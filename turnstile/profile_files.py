"""Profiles from YAML files. Whatever is wrong with one is a `ConfigError` naming file, key and what is allowed."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from schema.errors import ConfigError, ModelError
from schema.profiles import LlmConfig, Profile

_KEYS = {"": list(Profile.model_fields), "llm_config": list(LlmConfig.model_fields)}


def read_profile(file: Path) -> Profile:
    """The profile in the file; raises `ConfigError` listing every problem."""
    try:
        value: object = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: a profile is a mapping with the keys {', '.join(_KEYS[''])}")
    try:
        return Profile.model_validate(value)
    except ValidationError as error:
        problems = [_problem(each) for each in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems)) from None


async def check_scripted(profile: Profile, scripts: Sequence[Path]) -> None:
    """Raise `ModelError` (`model_unknown`) if the profile asks for a scripted model that is none.

    Other models are judged by the worker, which has their keys.
    """
    from activities.models.script_files import load_scripts  # noqa: PLC0415 -- only profiles with a script need it
    from activities.models.scripted import PREFIX, ScriptedModel  # noqa: PLC0415

    if not profile.llm_config.model.startswith(f"{PREFIX}/"):
        return
    try:
        await ScriptedModel(load_scripts(scripts)).check(profile.llm_config.model)
    except ModelError as error:
        raise ModelError(
            error.code, f"profile {profile.name}: {error} (--no-check stores it anyway)", retryable=False
        ) from None


def _problem(error: ErrorDetails) -> str:
    *parents, last = (str(part) for part in error["loc"])
    key = ".".join([*parents, last])
    if error["type"] == "extra_forbidden":
        known = _KEYS.get(".".join(parents), [])
        close = difflib.get_close_matches(last, known, n=3)
        names = [*close, *(name for name in known if name not in close)]
        return f"unknown key {key!r}; allowed: {', '.join(names)}"
    if error["type"] == "missing":
        return f"the key {key!r} is missing"
    return f"{key} = {error['input']!r:.80}: {error['msg'].removeprefix('Value error, ')}"
