"""`turnstile doctor`: whether turns could run here, line by line, with what to do."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command
from turnstile.cli.errors import REFUSED

if TYPE_CHECKING:
    from turnstile.cli.session import Session

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def register(root: typer.Typer) -> None:
    """Add the command to the top level."""
    command(root, "doctor")(doctor)


async def doctor(
    session: "Session",
    model: Annotated[
        list[str] | None, typer.Option(help="A model to check, besides those of profiles; may be repeated.")
    ] = None,
) -> None:
    """Check versions, servers, models and keys. Exit code 1 if something fails. No provider is asked."""
    from turnstile.doctor.examine import examine

    checks = await examine(session.settings, session.options.data, model or ())
    if session.out.as_json:
        session.out.document(checks)
    else:
        for check in checks:
            session.out.line(f"{check.status:4}  {check.name}: {check.says}", style=_STYLES[check.status])
            if check.hint and check.status != "ok":
                session.out.line(f"      {check.hint}", style="dim")
    if any(check.status == "fail" for check in checks):
        session.exit_code = REFUSED
