"""Loads the listeners that `[pump].listeners` names: Python modules, and YAML files (docs/pump.md)."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from schema.ids import AgentId
from schema.listeners import BadListener, Listener, Registry
from schema.payloads import Payload
from turnstile.yaml_files import ListenerEntry, read_listeners

_YAML = (".yaml", ".yml")


def load_registry(names: Iterable[str]) -> Registry:
    """All listeners of these modules (`package.module`) and YAML files; raises `BadListener`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # handlers live where the program is started, as with `python -m`
    found: list[Listener] = []
    for name in names:
        found += _from_yaml(Path(name)) if name.endswith(_YAML) else _from_module(name)
    return Registry(found)


def _from_module(name: str) -> list[Listener]:
    listeners = [each for each in _names(_module(name, name)).values() if isinstance(each, Listener)]
    if not listeners:
        raise BadListener(f"module {name} declares no listeners: decorate its handlers with @listener(...)")
    return listeners


def _from_yaml(path: Path) -> list[Listener]:
    return [_listener(each) for each in read_listeners(path)]


def _listener(entry: ListenerEntry) -> Listener:
    where = f"listener {entry.name!r}"
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
        answers=tuple(_payload(each, where) for each in entry.answers),
        deadline_seconds=entry.deadline_seconds,
        retries=entry.retries,
    )


def _payload(path: str, where: str) -> type[Payload]:
    found = _object(path, where)
    if not (isinstance(found, type) and issubclass(found, Payload)):
        raise BadListener(f"{where}: {path} is no payload: derive it from schema.payloads.Payload")
    return found


def _object(path: str, where: str) -> object:
    """What `package.module:name` names."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise BadListener(f"{where}: {path!r} must be of the form package.module:name")
    found = _names(_module(module, where)).get(name)
    if found is None:
        raise BadListener(f"{where}: module {module} has no {name}")
    return found


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadListener(f"{where}: cannot import {name}: {error}") from None


def _names(module: ModuleType) -> dict[str, object]:
    return vars(module)
