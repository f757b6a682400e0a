"""`turnstile schema`: writes the AsyncAPI document of the protocol, and prints the JSON Schemas of its payloads."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()

_DOCUMENT = Path("docs/interface/asyncapi.yaml")
_MARKED = (Path("docs/protocol.md"), Path("deploy/nats/nats.conf"))
_HEADER = "# Made by `turnstile schema export`: change the models, or schema/interface/catalog.py, instead.\n"


def asyncapi() -> str:
    """The text of `asyncapi.yaml`: the same catalog gives the same bytes."""
    import yaml

    from turnstile.schema.interface.asyncapi import document

    return _HEADER + yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)


def _written(out: Path) -> dict[Path, str]:
    """The files that `export` writes: the document, and in a checkout what others have of the verbs."""
    from turnstile.schema.interface.verb_tables import with_verbs

    marked = (path for path in _MARKED if out == _DOCUMENT and path.is_file())
    return {out: asyncapi()} | {path: with_verbs(path.read_text(encoding="utf-8")) for path in marked}


@command(app, "export")
async def export(
    session: "Session",
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE")] = _DOCUMENT,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if it is not up to date.")] = False,
) -> None:
    """Write an AsyncAPI document of every subject, with the schemas of all payloads.

    In a checkout, the tables of verbs in docs/protocol.md and the permissions in deploy/nats/nats.conf too.
    """
    from turnstile.cli.errors import CommandFailed

    texts = _written(out)
    outdated = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if outdated and check:
        raise CommandFailed("interface_outdated", f"{', '.join(map(str, outdated))} differs from the models")
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    lines = (f"{path} {'written' if path in outdated else 'is up to date'}" for path in texts)
    session.out.result({"files": [*map(str, texts)], "written": [*map(str, outdated)]}, "\n".join(lines))


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
