"""Reads `config.toml` and the environment; raises one `ConfigError` that lists every problem.

A problem names its file or variable, the key, the value and the allowed values. Addresses are never shown: they may
hold a password.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError

from turnstile.schema.errors import ConfigError
from turnstile.schema.validation import ValidationFault, faults_in
from turnstile.settings.model import ENV_PREFIX, Settings

DEFAULT_FILE = Path("config.toml")
_SECRET = {("database", "url"), ("nats", "servers"), ("temporal", "codec_keys")}


def load_settings(path: Path | None = None) -> Settings:
    """The settings of `path`, or of `./config.toml` if it exists, or the defaults; the environment overrides them.

    Raises `ConfigError`.
    """
    file = path if path is not None else DEFAULT_FILE
    values = _read(file, required=path is not None)
    problems = list(_unknown_variables())
    try:
        settings = Settings(**values)
    except ValidationError as error:
        # `_unknown_variables` reports a variable that sets a whole section.
        faults = [fault for fault in faults_in(error, Settings, most=100) if not _is_variable(fault.path)]
        problems.extend(_problem(fault, file) for fault in faults)
        settings = None
    if settings is None or problems:
        raise ConfigError("\n".join(problems))
    return settings


def _read(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{file}: no such file") from None
        return {}
    except RecursionError:
        raise ConfigError(f"{file}: not valid TOML: nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _sections() -> dict[str, type[BaseModel]]:
    fields = Settings.model_fields
    return {name: cast("type[BaseModel]", field.annotation) for name, field in fields.items()}


def _unknown_variables() -> Iterator[str]:
    """Problems of variables with Turnstile's prefix that name no section; keys are checked with the values."""
    sections = _sections()
    for variable in sorted(os.environ):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        section, _, key = variable[len(ENV_PREFIX) :].lower().partition("__")
        if section not in sections:
            yield f"{variable}: there is no section {section!r}; {_allowed(section, sections)}"
        elif not key:
            first = next(iter(sections[section].model_fields)).upper()
            yield f"{variable}: name a key too, such as {variable}__{first}"


def _allowed(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=3)
    return f"allowed: {', '.join([*close, *(name for name in names if name not in close)])}"


def _problem(fault: ValidationFault, file: Path) -> str:
    location = tuple(str(part) for part in fault.path)
    key = ".".join(location[:2])
    where = _origin(location, file)
    if fault.kind == "extra_forbidden":
        sections = _sections()
        if len(location) == 1:
            return f"{where}: there is no section {key!r}; {_allowed(key, sections)}"
        return f"{where}: unknown key {key!r}; {_allowed(location[1], sections[location[0]].model_fields)}"
    value = "" if location[:2] in _SECRET or len(location) == 1 else f" = {fault.value!r:.80}"
    return f"{where}: {key}{value}: {fault.sentence}{_range(location)}"


def _is_variable(location: tuple[int | str, ...]) -> bool:
    name = f"{ENV_PREFIX}{location[0]}".upper()
    return len(location) == 1 and any(variable.upper() == name for variable in os.environ)


def _origin(location: tuple[str, ...], file: Path) -> str:
    name = ENV_PREFIX + "__".join(location[:2]).upper()
    return next((variable for variable in os.environ if variable.upper() == name), str(file))


def _range(location: tuple[str, ...]) -> str:
    """A text such as ` (allowed: 1 to 1000)` for a number with bounds, else empty."""
    field = _sections()[location[0]].model_fields.get(location[1]) if len(location) > 1 else None
    if field is None:
        return ""
    low = next((str(m.ge) for m in field.metadata if isinstance(m, Ge)), None)
    low = low or next((f"more than {m.gt}" for m in field.metadata if isinstance(m, Gt)), None)
    high = next((m.le for m in field.metadata if isinstance(m, Le)), None)
    high = high or next((f"less than {m.lt}" for m in field.metadata if isinstance(m, Lt)), None)
    return f" (allowed: {low} to {high})" if low and high else ""
