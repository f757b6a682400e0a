"""`turnstile file`: files of the project: put, get, list, show and remove them, through a gateway."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command
from turnstile.schema.amounts import data_size

if TYPE_CHECKING:
    from turnstile.cli.session import Session
    from turnstile.schema.wire.file_requests import FileView

app = typer.Typer()
Id = Annotated[str, typer.Argument(help="The file's id.", metavar="ID")]


@command(app, "put", channel=True, client=True)
async def put(
    session: "Session",
    paths: Annotated[list[Path], typer.Argument(help="The files to send.", metavar="PATH...")],
    name: Annotated[str | None, typer.Option(help="What it is called; by default as the path.", metavar="NAME")] = None,
    mime: Annotated[str | None, typer.Option(help="Its media type; by default by its name.", metavar="TYPE")] = None,
    key: Annotated[str | None, typer.Option(help="A repeat with the same key makes no second file.")] = None,
) -> None:
    """Keep files. Each is kept whole, or not at all."""
    from turnstile.schema.errors import BadRequest
    from turnstile.schema.ids import uuid7

    if len(paths) > 1 and (name is not None or key is not None):
        raise BadRequest("--name and --key are for one file")
    views: list[FileView] = []
    async with session.web() as client:
        for path in paths:
            named = key or str(uuid7())
            view = await session.patiently(
                lambda path=path, named=named: client.files.put(path, filename=name, mime=mime, correlation_id=named)
            )
            views.append(view)
            if not session.out.as_json:
                session.out.line(view.artifact_id, note=f"{view.filename}, {data_size(view.size)}")
    if session.out.as_json:
        session.out.document(views)


@command(app, "get", channel=True, client=True)
async def get(
    session: "Session",
    artifact_id: Id,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; by default its name, here.", metavar="PATH")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a file here. What breaks off goes on; until all of it is there, nothing is."""
    from turnstile.schema.errors import BadRequest

    async with session.web() as client:
        view = await session.patiently(lambda: client.files.show(artifact_id))
        name = view.filename.lstrip(".") or "file"
        path = Path(name) if output is None else output / name if output.is_dir() else output
        if path.exists() and not force:
            raise BadRequest(f"{path} is there: replace it with --force, or name another path with --output")
        await client.files.get(artifact_id, path)
    session.out.result(view.model_dump(mode="json") | {"path": str(path)}, f"{path}: {data_size(view.size)}")


@command(app, "list", channel=True, client=True)
async def show_all(
    session: "Session",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List files, newest first."""
    async with session.web() as client:
        files = await session.patiently(lambda: client.files.list(limit=limit))
    session.out.records(
        "files",
        files,
        {
            "file": lambda row: row.artifact_id,
            "name": lambda row: row.filename,
            "kind": lambda row: row.mime,
            "size": lambda row: data_size(row.size),
            "sent": lambda row: row.created_at,
            "by": lambda row: row.created_by,
        },
        cut="name",
    )


@command(app, "show", channel=True, client=True)
async def show_one(session: "Session", artifact_id: Id) -> None:
    """Show what a file is."""
    async with session.web() as client:
        view = await session.patiently(lambda: client.files.show(artifact_id))
    if session.out.as_json:
        session.out.document(view)
        return
    facts = {
        "name": view.filename,
        "kind": view.mime,
        "size": data_size(view.size),
        "sha256": view.sha256,
        "channel": view.channel_id,
        "sent": view.created_at,
        "by": view.created_by,
        "turn": view.agent_turn_id,
    }
    session.out.facts(f"file {view.artifact_id}", facts)


@command(app, "remove", channel=True, client=True)
async def remove(session: "Session", artifact_id: Id) -> None:
    """Let nobody read a file any more; its bytes leave the store some seconds later."""
    async with session.web() as client:
        await client.files.remove(artifact_id)
    session.out.result({"artifact_id": artifact_id}, f"file {artifact_id} is removed")
