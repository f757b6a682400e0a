"""`turnstile model`: fetches the weights of a local model, and serves one without `turnstile up`."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()
DEFAULT = "smollm2"


@command(app, "fetch")
async def fetch(
    session: "Session",
    name: Annotated[str, typer.Argument(help="The model: smollm2.")] = DEFAULT,
) -> None:
    """Download the weights of a model into the user's cache, once, and check them."""
    from turnstile.local import fetching
    from turnstile.local.weights import KNOWN
    from turnstile.schema.errors import BadRequest

    if (weights := KNOWN.get(name)) is None:
        known = ", ".join(KNOWN)
        raise BadRequest(f"{name!r} cannot be fetched, only {known}; [local].weights names a GGUF file that you have")
    fetched = await fetching.fetch(weights, session.out.remark)
    if session.out.as_json:
        session.out.document({"name": name, "file": str(weights.file), "fetched": fetched})
        return
    session.out.line(f"{weights.about}: {weights.file_bytes / 1e6:.0f} MB in {weights.file}, checked")
    session.out.remark(f"`turnstile chat --model local/{name}` asks it, while `turnstile up` runs")


@command(app, "serve")
async def serve(
    session: "Session",
    model: Annotated[
        str, typer.Option(help="The model: one that was fetched, or one that the settings name.", metavar="NAME")
    ] = DEFAULT,
    gguf: Annotated[
        Path | None, typer.Option(help="A GGUF file, instead of the model's weights.", metavar="FILE")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port on 127.0.0.1.", min=1, max=65_535)] = None,
) -> None:
    """Serve a model to workers of this machine until Ctrl-C; `turnstile up` does this by itself."""
    from turnstile.local.model_servers import SERVE_PORT, become_server

    local = session.settings.local
    if gguf is not None:
        local = local.model_copy(update={"weights": {**local.weights, model: gguf}})
    become_server(model, local, port or SERVE_PORT)
