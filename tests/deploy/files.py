"""What the files that ship say, read as data."""

import re
from typing import Any, cast

import yaml

from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
REQUIRED = re.compile(r"\$\{([A-Z_]+):\?set \1 in \.env\}")

Service = dict[str, Any]


def compose() -> dict[str, Any]:
    """docker-compose.yml, its anchors merged."""
    return cast("dict[str, Any]", yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


def services() -> dict[str, Service]:
    """Its services."""
    return cast("dict[str, Service]", compose()["services"])


def is_once(service: Service) -> bool:
    """Whether it runs, ends, and is not started again."""
    return service["restart"] != "unless-stopped"


def filled(text: str) -> str:
    """With a password in every place for one, and the default where there is one."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", REQUIRED.sub("secret1", text))


def instructions(name: str) -> list[str]:
    """The arguments of an instruction of the Dockerfile, one for each time it stands there."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(f"{name} ").strip() for line in joined.splitlines() if line.startswith(f"{name} ")]
