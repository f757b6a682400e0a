"""`turnstile schema`: writes the interface documents."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "export")
async def export(
    session: "Session",
    out: Annotated[Path, typer.Option(help="Directory to write to.", metavar="DIR")] = Path("docs/interface"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if they are not up to date.")] = False,
) -> None:
    """Write an AsyncAPI document of every subject, and a JSON Schema of every payload."""
    from turnstile.cli import interface_files
    from turnstile.cli.errors import CommandFailed

    changed = interface_files.differences(out, interface_files.files()) if check else interface_files.write(out)
    if check and changed:
        raise CommandFailed("interface_outdated", f"{out} differs from the models: {', '.join(changed)}")
    if session.out.as_json:
        session.out.document({"directory": str(out), "changed": list(changed)})
    elif changed:
        session.out.line(f"{len(changed)} files of {out} updated")
    else:
        session.out.line(f"{out} is up to date")
