"""Loads scripts: the built-in ones (`echo`, `demo`, `instant`, `look`, `slow`), YAML files, and Python modules.

A Python module lists its scripts in `SCRIPTS: dict[str, Script]`. It runs with the rights of the worker, so only the
operator's settings can name one. Files are read once, at start; a faulty one raises a `ConfigError` that names the
file, the key and what is allowed.
"""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import yaml
from pydantic import ValidationError

from turnstile.activities.models.script import Script, ScriptSteps
from turnstile.schema.errors import ConfigError
from turnstile.schema.validation import ValidationFault, faults_in

BUILTIN_SCRIPTS = Path(__file__).parent / "scripts"

_YAML = (".yaml", ".yml")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


def load_scripts(paths: Sequence[Path] = ()) -> dict[str, Script]:
    """The built-in scripts and those of `paths`, by name; a path's script replaces a built-in one of its name.

    A path is a YAML file, a directory of YAML files, or a Python file. Raises `ConfigError` for a path that cannot be
    read as one of these, and for a name that two paths give.
    """
    scripts: dict[str, Script] = {}
    origin: dict[str, Path] = {}
    for path in paths:
        for file, name, script in _read(path):
            if not _NAME.match(name):
                raise ConfigError(f"{file}: script name {name!r} must be 1 to 128 characters of A-Z a-z 0-9 . _ -")
            if name in scripts:
                raise ConfigError(f"{file}: script {name!r} is already defined in {origin[name]}; rename one of them")
            scripts[name], origin[name] = script, file
    return {name: script for _, name, script in _read(BUILTIN_SCRIPTS)} | scripts


def _read(path: Path) -> list[tuple[Path, str, Script]]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _YAML)
        return [_read_yaml(file) for file in files]
    if not path.is_file():
        raise ConfigError(f"{path}: no such file or directory of scripts")
    if path.suffix in _YAML:
        return [_read_yaml(path)]
    if path.suffix == ".py":
        return [(path, name, script) for name, script in _read_python(path).items()]
    raise ConfigError(f"{path}: scripts are read from .yaml, .yml or .py files, or a directory of YAML files")


def _read_yaml(file: Path) -> tuple[Path, str, Script]:
    try:
        steps = ScriptSteps.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file}: not readable as YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        problems = "; ".join(map(_problem, faults_in(error, ScriptSteps)))
        raise ConfigError(f"{file}: {problems}") from None
    return file, steps.name or file.stem, steps


def _problem(fault: ValidationFault) -> str:
    """`steps[0].error.code: …`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault.path).lstrip(".")
    return f"{path or 'the file'}: {fault.sentence}"


def _read_python(file: Path) -> dict[str, Script]:
    spec = importlib.util.spec_from_file_location(f"turnstile_script_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file}: not importable as a Python module")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{file}: failed while it was loaded: {type(error).__name__}: {error}") from error
    scripts: object = getattr(module, "SCRIPTS", None)
    if not isinstance(scripts, Mapping):
        raise ConfigError(f"{file}: needs SCRIPTS, a dict of names and functions from a ModelRequest to a ScriptLine")
    for name, script in cast("Mapping[object, object]", scripts).items():
        if not isinstance(name, str) or not callable(script):
            raise ConfigError(f"{file}: SCRIPTS[{name!r}] must be a function under a text name")
    return dict(cast("Mapping[str, Script]", scripts))
