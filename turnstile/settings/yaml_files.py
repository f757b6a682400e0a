"""Reads profiles, tools and listeners from YAML files; a `ConfigError` names file, key and what is allowed."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from turnstile.schema.errors import ConfigError, ModelError
from turnstile.schema.profiles import Profile
from turnstile.schema.pump.listeners import ListenerEntry, ListenerFile
from turnstile.schema.tools import ToolDefinition

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


async def check_scripted(profile: Profile, scripts: Sequence[Path]) -> None:
    """Raise `ModelError` (`model_unknown`) if the profile names a scripted model that does not exist.

    Other models are checked by the worker, which has their keys.
    """
    from turnstile.activities.models.script_files import load_scripts  # noqa: PLC0415 -- only profiles with a script need it
    from turnstile.activities.models.scripted import PREFIX, ScriptedModel  # noqa: PLC0415

    summary = None if profile.memory is None else profile.memory.summary_model
    named = [model for model in (profile.llm_config.model, summary) if model and model.startswith(f"{PREFIX}/")]
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
        problems = [_problem(form, each, cast("object", value)) for each in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems)) from None


def _problem(form: type[BaseModel], error: ErrorDetails, value: object) -> str:
    path = [str(part) for part in error["loc"]]
    key = _key(value, error["loc"])
    if error["type"] == "extra_forbidden":
        known = _keys(form, path[:-1])
        close = difflib.get_close_matches(path[-1], known, n=3)
        names = [*close, *(name for name in known if name not in close)]
        return f"unknown key {key!r}; allowed: {', '.join(names)}"
    if error["type"] == "missing":
        return f"the key {key!r} is missing"
    message = error["msg"].removeprefix("Value error, ")
    return f"{key} = {error['input']!r:.80}: {message}" if path else message


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


def _keys(form: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys allowed at `path` of a form."""
    for part in path:
        if part.isdigit():
            continue  # the index of a list item
        field = form.model_fields.get(part)
        nested = None if field is None else field.annotation
        if get_origin(nested) is list:
            nested = get_args(nested)[0]
        if isinstance(nested, UnionType):  # a form, or nothing
            nested = next((each for each in get_args(nested) if each is not NoneType), None)
        if not isinstance(nested, type) or not issubclass(nested, BaseModel):
            return []
        form = nested
    return list(form.model_fields)
