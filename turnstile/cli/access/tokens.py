"""`turnstile token`: add, list and revoke bearer tokens of the gateway (protocol §14.3)."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command
from turnstile.schema.access import GatewayRole, TokenId

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "add", project=True)
async def add(
    session: "Session",
    role: Annotated[GatewayRole, typer.Option(help="What the token may do.")],
    channel: Annotated[
        str | None, typer.Option(help="The only channel that it may use; by default all.", metavar="CHANNEL")
    ] = None,
    label: Annotated[str, typer.Option(help="A label for people, such as who has it.", metavar="TEXT")] = "",
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            help="A profile that its requests may name for an agent; by default those with `free: true`.",
            metavar="NAME",
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            help="A model that its requests may name, or `begin*`; by default as profiles say (`models`, `free`).",
            metavar="MODEL",
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(min=0.0, help="How long it is valid.", metavar="DAYS")] = None,
) -> None:
    """Create a token and print it. It cannot be shown again: the database has only its hash."""
    from turnstile.ledger.access.tokens import add_token
    from turnstile.schema.ids import ChannelId, token

    only = None if channel is None else ChannelId(token(channel, "--channel"))
    valid_for = None if days is None else timedelta(days=days)
    async with session.ledger() as pool:
        secret, line = await pool.run(
            lambda conn: add_token(
                conn,
                session.project,
                role,
                channel=only,
                label=label[:256],
                valid_for=valid_for,
                profiles=profiles or None,
                models=models or None,
            )
        )
    session.out.result({"token": secret.text, **line.model_dump(mode="json")}, secret.text)
    session.out.remark(f"token {line.token_id}: {role} of {line.project_id}. It is not shown again")


@command(app, "list", project=True)
async def show(session: "Session") -> None:
    """List the project's tokens, without their secrets."""
    from turnstile.ledger.access.tokens import list_tokens

    async with session.ledger() as pool:
        lines = await pool.run(lambda conn: list_tokens(conn, session.project))
    session.out.records(
        f"tokens of {session.project}",
        lines,
        {
            "id": lambda line: line.token_id,
            "role": lambda line: line.role,
            "channel": lambda line: line.channel_id or "all",
            "label": lambda line: line.label,
            "created": lambda line: line.created_at,
            "expires": lambda line: line.expires_at,
            "revoked": lambda line: line.revoked_at,
        },
    )


@command(app, "revoke", project=True)
async def revoke(
    session: "Session", token: Annotated[str, typer.Argument(help="The token's id.", metavar="ID")]
) -> None:
    """Revoke a token. Gateways refuse it within seconds, and end its streams."""
    from turnstile.ledger.access.tokens import revoke_token

    async with session.ledger() as pool:
        line = await pool.run(lambda conn: revoke_token(conn, session.project, TokenId(token)))
    session.out.result(line.model_dump(mode="json"), f"token {line.token_id} is revoked")
