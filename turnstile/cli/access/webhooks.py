"""`turnstile webhook`: put, list and remove where a project's events are sent."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnstile.cli.command import command
from turnstile.schema.wire.webhook_requests import WebhookEvent

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()
Id = Annotated[str, typer.Argument(help="Your own name for the webhook.", metavar="ID")]


@command(app, "put", project=True, client=True)
async def put(
    session: "Session",
    webhook_id: Id,
    address: Annotated[str, typer.Argument(help="Where events are posted.", metavar="URL")],
    profile: Annotated[str | None, typer.Option(help="Only turns of this profile.", metavar="NAME")] = None,
    event: Annotated[list[WebhookEvent] | None, typer.Option(help="Only this event; repeat for more.")] = None,
    secret: Annotated[
        str | None,
        typer.Option(help="The secret that signs events: whsec_ and base64; without it one is made.", metavar="SECRET"),
    ] = None,
) -> None:
    """Send the ends, questions and budget warnings of the project's turns to an address; again, to change it."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.webhook_requests import WebhookPutRequest
    from turnstile.sdk.requests import parse_request

    fields: dict[str, Any] = {
        "webhook_id": webhook_id,
        "url": address,
        "profile_name": profile,
        "secret": secret,
        "events": event or None,
    }
    request = parse_request(WebhookPutRequest, {name: value for name, value in fields.items() if value is not None})
    async with session.client() as client:
        reply = await client.call(verbs.WEBHOOK_PUT, request)
    session.out.result(reply, f"webhook {webhook_id} is set")
    if reply.secret is not None:
        session.out.remark(f"its secret, shown this once: {reply.secret}")


@command(app, "list", project=True, client=True)
async def show_all(session: "Session") -> None:
    """List the webhooks of the project and its profiles."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.webhook_requests import WebhookListRequest

    async with session.client() as client:
        webhooks = (await client.call(verbs.WEBHOOK_LIST, WebhookListRequest())).webhooks
    if session.out.as_json:
        session.out.document(webhooks)
        return
    for webhook in webhooks:
        about = [f"of {webhook.profile_name}"] if webhook.profile_name else []
        about += [", ".join(webhook.events), f"{webhook.waiting} waiting"] if webhook.status == "active" else ["gone"]
        about += [webhook.last_error] if webhook.last_error else []
        session.out.line(f"{webhook.webhook_id}  {webhook.url}", note="; ".join(about))
    if not webhooks:
        session.out.remark("the project has no webhooks")


@command(app, "remove", project=True, client=True)
async def remove(session: "Session", webhook_id: Id) -> None:
    """Remove a webhook; what was still to be sent to it is not sent."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.webhook_requests import WebhookRemoveRequest
    from turnstile.sdk.requests import parse_request

    request = parse_request(WebhookRemoveRequest, {"webhook_id": webhook_id})
    async with session.client() as client:
        reply = await client.call(verbs.WEBHOOK_REMOVE, request)
    session.out.result(reply, f"webhook {webhook_id} is removed")
