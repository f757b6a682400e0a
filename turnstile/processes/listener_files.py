"""Loads the listeners that `[pump].listeners` names: Python modules, and YAML files (docs/pump.md).

A faulty one raises a `ConfigError` that names it and its module or file.
"""

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from turnstile.schema.ids import AgentId
from turnstile.schema.pump.listeners import BadListener, Listener, ListenerEntry, Registry
from turnstile.schema.pump.payloads import Payload
from turnstile.settings.yaml_files import read_listeners

_YAML = (".yaml", ".yml")


def load_registry(names: Iterable[str]) -> Registry:
    """All listeners of these modules (`package.module`) and YAML files; raises `ConfigError`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # handlers live where the program is started, as with `python -m`
    listeners: dict[int, tuple[Listener, str]] = {}
    for name in names:
        for listener in _from_yaml(Path(name)) if name.endswith(_YAML) else _from_module(name):
            listeners.setdefault(id(listener), (listener, name))  # a module may have imported the listener of another
    try:
        return Registry(listener for listener, _ in listeners.values())
    except BadListener as error:
        _, name = listeners[id(error.listener)]
        raise BadListener(f"{name}: {error}", error.listener) from None


def _from_module(name: str) -> list[Listener]:
    listeners = [n for n in _names(_module(name, name)).values() if isinstance(n, Listener)]
    if not listeners:
        raise BadListener(f"module {name} declares no listeners: decorate its handlers with @listener(...)")
    return listeners


def _from_yaml(path: Path) -> list[Listener]:
    return [_listener(listener, f"{path}: listener {listener.name!r}") for listener in read_listeners(path)]


def _listener(entry: ListenerEntry, where: str) -> Listener:
    handler = None if entry.handler is None else _object(entry.handler, where)
    if isinstance(handler, Listener):
        handler = handler.handler
    if handler is not None and not callable(handler):
        raise BadListener(f"{where}: {entry.handler} is no handler")
    return Listener(
        name=entry.name,
        payload=_payload(entry.payload, where),
        description=entry.description,
        handler=cast("Any", handler),
        agent_id=None if entry.agent_id is None else AgentId(entry.agent_id),
        agent=entry.agent or entry.agent_id is not None,
        peers=tuple(entry.peers),
        answers=tuple(_payload(answer, where) for answer in entry.answers),
        deadline_seconds=entry.deadline_seconds,
        retries=entry.retries,
        place=where.partition(": listener ")[0],
    )


def _payload(path: str, where: str) -> type[Payload]:
    value = _object(path, where)
    if not (isinstance(value, type) and issubclass(value, Payload)):
        raise BadListener(f"{where}: {path} is no payload: derive it from turnstile.schema.pump.payloads.Payload")
    return value


def _object(path: str, where: str) -> object:
    """The object at `package.module:name`."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise BadListener(f"{where}: {path!r} must be of the form package.module:name")
    value = _names(_module(module, where)).get(name)
    if value is None:
        raise BadListener(f"{where}: module {module} has no {name}")
    return value


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 -- a module of others may raise anything
        raise BadListener(f"{where}: cannot import {name}: {type(error).__name__}: {error}{_place(error)}") from None


def _place(error: Exception) -> str:
    """The file and line of the error in the imported module; empty if the module was not found."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    return (
        "" if frames[-1].filename in {__file__, importlib.__file__} else f" ({frames[-1].filename}:{frames[-1].lineno})"
    )


def _names(module: ModuleType) -> dict[str, object]:
    return vars(module)
