"""`turnstile box`: store texts in a new box, make a box of parts, and show a box."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "put", project=True, channel=True)
async def put(
    session: "Session",
    files: Annotated[
        list[Path], typer.Argument(help="Text files, one card each; `-` reads standard input.", metavar="FILE...")
    ],
) -> None:
    """Put texts into a new box, for `enqueue --context-box`. A text may have at most 512 KiB."""
    from turnstile.cli.turns.box_options import put_texts
    from turnstile.cli.turns.texts import bounded, given_text
    from turnstile.schema.json_reading import storable

    await put_texts(session, [bounded(storable(given_text(None, file)), str(file)) for file in files])


@command(app, "make", project=True, channel=True)
async def make(
    session: "Session",
    parts: Annotated[
        list[str],
        typer.Argument(
            help="`box:BOX`, `box:BOX:LAST`, `card:CARD`, `text:TEXT`, `@FILE`, `-` (standard input), or JSON.",
            metavar="PART...",
        ),
    ],
    correlation_id: Annotated[
        str | None, typer.Option(help="Idempotency key: a request repeated with the same key returns the same box.")
    ] = None,
) -> None:
    """Make a box of parts, in this order: cards of boxes, single cards and new texts.

    If the project and channel do not have one of the parts, no box is made.
    """
    from turnstile.cli.turns.box_options import make_of_parts

    await make_of_parts(session, parts, correlation_id)


@command(app, "show", project=True)
async def show(
    session: "Session",
    box: Annotated[str, typer.Argument(help="The box (uuid).")],
    last: Annotated[int | None, typer.Option(help="Only this many of its last cards.", min=1)] = None,
) -> None:
    """List the cards of a box in order; `--json` has their content."""
    from turnstile.cli.turns.box_options import show_box

    await show_box(session, box, last)
