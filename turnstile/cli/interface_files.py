"""Writes and compares the interface documents: `asyncapi.yaml`, and a JSON Schema for each payload (docs/interface).

The same catalog gives the same bytes, so a comparison with the committed files shows whether they are up to date.
"""

import json
from pathlib import Path

import yaml

from turnstile.schema.interface.asyncapi import document
from turnstile.schema.interface.json_schemas import schemas

ASYNCAPI = "asyncapi.yaml"
SCHEMAS = "schemas"
_HEADER = "# Made by `turnstile schema export`: change the models, or schema/interface/catalog.py, instead.\n"


def files() -> dict[str, str]:
    """The text of every file by its path below the directory."""
    generated = {
        f"{SCHEMAS}/{name}.json": f"{json.dumps(each, indent=2, ensure_ascii=False)}\n"
        for name, each in schemas().items()
    }
    text = yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)
    return {ASYNCAPI: _HEADER + text, **generated}


def differences(directory: Path, wanted: dict[str, str]) -> list[str]:
    """Paths below the directory of files that are missing, differ, or belong to no model."""
    changed = {name for name, text in wanted.items() if _read(directory / name) != text}
    strays = {f"{SCHEMAS}/{path.name}" for path in (directory / SCHEMAS).glob("*.json")} - set(wanted)
    return sorted(changed | strays)


def write(directory: Path) -> list[str]:
    """Bring the directory up to date; returns the paths that were written or removed. Other files are left alone."""
    wanted = files()
    changed = differences(directory, wanted)
    for name in changed:
        path = directory / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return changed


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
