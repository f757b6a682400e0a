"""`turnstile schema`: writes the AsyncAPI document of the protocol, and prints the JSON Schemas of its payloads."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()

_HEADER = "# Made by `turnstile schema export`: change the models, or schema/interface/catalog.py, instead.\n"


def asyncapi() -> str:
    """The text of `asyncapi.yaml`: the same catalog gives the same bytes."""
    import yaml

    from turnstile.schema.interface.asyncapi import document

    return _HEADER + yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)


@command(app, "export")
async def export(
    session: "Session",
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE")] = Path("docs/interface/asyncapi.yaml"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if it is not up to date.")] = False,
) -> None:
    """Write an AsyncAPI document of every subject, with the schemas of all payloads."""
    from turnstile.cli.errors import CommandFailed

    text = asyncapi()
    changed = not out.is_file() or out.read_text(encoding="utf-8") != text
    if changed and check:
        raise CommandFailed("interface_outdated", f"{out} differs from the models")
    if changed:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    if session.out.as_json:
        session.out.document({"file": str(out), "changed": changed})
    else:
        session.out.line(f"{out} {'written' if changed else 'is up to date'}")


@command(app, "show")
async def show(
    session: "Session",
    name: Annotated[
        str | None, typer.Argument(help="Name of a schema; without it, all names are listed.", metavar="NAME")
    ] = None,
) -> None:
    """Print the self-contained JSON Schema of a payload, of headers, or of a YAML file."""
    from difflib import get_close_matches

    from turnstile.cli.errors import CommandFailed
    from turnstile.schema.interface.json_schemas import schemas

    known = schemas()
    if name is None:
        session.out.result({"schemas": list(known)}, "\n".join(known))
    elif (schema := known.get(name)) is not None:
        session.out.document(schema)
    else:
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else "`turnstile schema show` lists them"
        raise CommandFailed("not_found", f"{name!r} is no schema; {hint}")
