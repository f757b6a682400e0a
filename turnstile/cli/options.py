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
    as_json: bool = False
    verbose: bool = False


_PANEL = "Common options"
OPTIONS: dict[str, tuple[object, object]] = {
    "config": (
        Annotated[
            Path | None,
            typer.Option(help="Settings file, instead of ./config.toml.", metavar="FILE", rich_help_panel=_PANEL),
        ],
        None,
    ),
    "data": (
        Annotated[
            Path | None,
            typer.Option(
                help="Data directory of a `turnstile up`, instead of .turnstile here or above.",
                metavar="DIR",
                rich_help_panel=_PANEL,
            ),
        ],
        None,
    ),
    "project": (
        Annotated[
            str | None,
            typer.Option(help="Project, instead of the settings' default_project.", rich_help_panel=_PANEL),
        ],
        None,
    ),
    "channel": (
        Annotated[
            str | None,
            typer.Option(help="Channel, instead of the settings' default_channel.", rich_help_panel=_PANEL),
        ],
        None,
    ),
    "as_json": (
        Annotated[bool, typer.Option("--json", help="Print JSON, errors included.", rich_help_panel=_PANEL)],
        False,
    ),
    "verbose": (
        Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.", rich_help_panel=_PANEL)],
        False,
    ),
}
"""Annotation and default of each, by its field of `Options`."""
