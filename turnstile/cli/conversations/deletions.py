"""`turnstile end-user`: delete an end user, and look for what is left of one; what deletions print."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session
    from turnstile.schema.wire.deletion_requests import DeleteReply
    from turnstile.sdk.turns import Client

app = typer.Typer()
_LOOK_SECONDS: Final = 0.5


@command(app, "delete", project=True, client=True)
async def delete(
    session: "Session",
    end_user: Annotated[str, typer.Argument(help="The end user, as requests named them.", metavar="ID")],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing is left of them.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete an end user for good: all their turns are stopped, and all that only these reach is removed."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.deletion_requests import EndUserDeleteRequest
    from turnstile.sdk.requests import parse_request

    confirm(session, f"end user {end_user} with all their turns", yes=yes)
    async with session.client() as client:
        request = parse_request(EndUserDeleteRequest, {"end_user": end_user})
        await follow(session, client, await client.call(verbs.END_USER_DELETE, request), wait=wait)


@command(app, "traces", project=True)
async def traces(
    session: "Session",
    text: Annotated[str, typer.Argument(help="A name, an address, anything that may have been said.")],
) -> None:
    """Look for a text in every column of every table of a project; exit code 1 if a row has it. Reads all of them."""
    from turnstile.ledger.operations.deletion import find_text
    from turnstile.schema.ids import ProjectId

    async with session.ledger() as pool:
        found = await find_text(pool, ProjectId(session.project), text)
    session.out.records(
        "rows with the text", found, {"table": lambda row: row.table_name, "rows": lambda row: row.found}
    )
    session.exit_code = 1 if found else 0


def confirm(session: "Session", what: str, *, yes: bool) -> None:
    """Ask whether to delete; raises `BadRequest` if that is not confirmed."""
    from turnstile.schema.errors import BadRequest

    if not (yes or session.out.confirm(f"Delete {what}, for good?")):
        raise BadRequest("nothing was deleted: --yes confirms it")


async def follow(session: "Session", client: "Client", reply: "DeleteReply", *, wait: bool) -> None:
    """Print the deletion, once it is done if that is waited for."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.deletion_requests import DeletionRequest

    request = DeletionRequest(deletion_id=reply.deletion_id or "")
    deletion = (await client.call(verbs.DELETION_GET, request)).deletion
    while wait and deletion is not None and deletion.status == "running":
        await asyncio.sleep(_LOOK_SECONDS)
        deletion = (await client.call(verbs.DELETION_GET, request)).deletion
    if deletion is None:
        return
    what = f"{deletion.turns} turns, {deletion.boxes} boxes, {deletion.cards} cards"
    session.out.result(deletion, f"deletion {deletion.deletion_id} is {deletion.status}: {what} removed")
