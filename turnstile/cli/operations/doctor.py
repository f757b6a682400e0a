"""`turnstile doctor`: checks whether turns can run here; one line per check, with a hint if it fails."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.errors import REFUSED

if TYPE_CHECKING:
    from turnstile.cli.session import Session

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


async def doctor(
    session: "Session",
    model: Annotated[
        list[str] | None, typer.Option(help="A model to check, in addition to those of profiles; may be repeated.")
    ] = None,
) -> None:
    """Check versions, servers, models and keys, without calling a provider. Exit code 1 if a check fails."""
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
