"""The options that all commands share: their values, and how typer reads them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all commands share."""

    config: Path | None = None
    data: Path | None = None
    project: str | None = None
    channel: str | None = None
    url: str | None = None
    token_file: Path | None = None
    as_json: bool = False
    verbose: bool = False


def _option(kind: object, text: str, *names: str, metavar: str | None = None) -> tuple[object, object]:
    option = typer.Option(*names, help=text, metavar=metavar, rich_help_panel="Common options")
    return Annotated[kind, option], False if kind is bool else None


_DATA = "Data directory of a `turnstile up`; by default .turnstile in this directory or one above it."

_URL = "Gateway (https://…) or NATS server (nats://…) to use, instead of TURNSTILE_URL and the settings."
_TOKEN_FILE = "File with the gateway's token, instead of TURNSTILE_TOKEN."  # noqa: S105 -- a help text

OPTIONS: dict[str, tuple[object, object]] = {
    "config": _option(Path | None, "Settings file, instead of ./config.toml.", metavar="FILE"),
    "data": _option(Path | None, _DATA, metavar="DIR"),
    "project": _option(str | None, "Project; by default the settings' default_project."),
    "channel": _option(str | None, "Channel; by default the settings' default_channel."),
    "url": _option(str | None, _URL, metavar="URL"),
    "token_file": _option(Path | None, _TOKEN_FILE, metavar="FILE"),
    "as_json": _option(bool, "Print JSON, including errors.", "--json"),
    "verbose": _option(bool, "Log everything.", "--verbose", "-v"),
}
"""Annotation and default of each, by its field of `Options`."""
