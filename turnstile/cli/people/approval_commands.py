"""`turnstile approvals`: list, show, approve, edit, reject and respond.

A decision is about what is shown: the command reads the question, checks that its digest is that of the call, prints
it, and sends this digest. A script that has shown it elsewhere gives `--digest`.
"""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from pydantic import JsonValue

    from turnstile.cli.session import Session
    from turnstile.schema.base import JsonObject
    from turnstile.schema.people.interrupt_requests import InterruptView
    from turnstile.schema.people.interrupts import DecideReply
    from turnstile.sdk.interrupts import Interrupt
    from turnstile.sdk.turns import Client

app = typer.Typer()
_PAGE = 100

Id = Annotated[str, typer.Argument(help="The id that `list` shows.", metavar="ID")]
Digest = Annotated[
    str | None, typer.Option(help="The digest that was shown; if it has changed, nothing is decided.", metavar="SHA256")
]
Comment = Annotated[str, typer.Option(help="A comment for the record; the model does not read it.", metavar="TEXT")]


@command(app, "list", project=True, channel=True, client=True)
async def show_all(
    session: "Session",
    status: Annotated[
        Literal["open", "resolved", "expired", "withdrawn", "all"], typer.Option(help="Only those with this status.")
    ] = "open",
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    turn: Annotated[str | None, typer.Option(help="Only those of this turn (its whole id).")] = None,
    limit: Annotated[int, typer.Option(help="How many to show.", min=1, max=1000)] = 50,
) -> None:
    """List approvals and questions, the newest first; for operators of all channels."""
    from datetime import UTC, datetime

    from turnstile.cli.people.approval_report import span, summary_of

    filtered = None if status == "all" else status
    views = await _views(session, filtered, agent, turn, limit)
    now = datetime.now(UTC)
    session.out.records(
        f"questions to people in {session.options.project or 'the project'}",
        views,
        {
            "id": lambda row: row.interrupt_id,
            "status": lambda row: row.status,
            "age": lambda row: span(row.created_at, now),
            "expires in": lambda row: span(now, row.expires_at) if row.status == "open" else "",
            "agent": lambda row: row.agent_id,
            "tool": lambda row: row.tool_name,
            "what": summary_of,
        },
        cut="what",
    )


@command(app, "show", project=True, channel=True, client=True)
async def show(session: "Session", interrupt: Id) -> None:
    """Show an approval or question with the exact call. Text that a model wrote is quoted behind bars."""
    from turnstile.cli.people.approval_report import print_interrupt

    async with _found(session, interrupt) as opened:
        if session.out.as_json:
            session.out.document(opened.view)
        else:
            print_interrupt(session.out, opened.view)


@command(app, "approve", project=True, channel=True, client=True)
async def approve(session: "Session", interrupt: Id, digest: Digest = None, comment: Comment = "") -> None:
    """Approve a call: it is sent as it was shown."""
    await _decide(session, interrupt, digest, lambda opened: opened.approve(comment))


@command(app, "edit", project=True, channel=True, client=True)
async def edit(
    session: "Session",
    interrupt: Id,
    arguments: Annotated[
        str | None, typer.Argument(help="All arguments of the call, as a JSON object.", metavar="JSON")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the arguments; `-` reads standard input.")] = None,
    digest: Digest = None,
    comment: Comment = "",
) -> None:
    """Approve a call with other arguments; the model learns that they were edited."""
    from turnstile.cli.turns.texts import given_text

    edited = _object_in(given_text(arguments, file))
    await _decide(session, interrupt, digest, lambda opened: opened.edit(edited, comment))


@command(app, "reject", project=True, channel=True, client=True)
async def reject(
    session: "Session",
    interrupt: Id,
    reason: Annotated[str, typer.Argument(help="The reason; the model reads it.")] = "",
    digest: Digest = None,
) -> None:
    """Reject a call: it is not sent, and the model reads the reason."""
    await _decide(session, interrupt, digest, lambda opened: opened.reject(reason))


@command(app, "respond", project=True, channel=True, client=True)
async def respond(
    session: "Session",
    interrupt: Id,
    answer: Annotated[
        str, typer.Argument(help="The answer: a text, or JSON if the question expects no text.", metavar="ANSWER")
    ],
    as_value: Annotated[bool, typer.Option("--value", help="ANSWER is JSON, whatever the question expects.")] = False,
    digest: Digest = None,
    comment: Comment = "",
) -> None:
    """Answer a question; or answer a call yourself: it is not sent, and this is its result."""
    from turnstile.cli.people.quoting import answer_of

    def answered(opened: "Interrupt") -> "JsonValue":
        return _json_in(answer) if as_value else answer_of(answer, opened.view.response_schema)

    await _decide(session, interrupt, digest, lambda opened: opened.respond(answered(opened), comment))


async def _views(
    session: "Session", status: str | None, agent: str | None, turn: str | None, limit: int
) -> "list[InterruptView]":
    """The questions; of all channels if no channel is named and this user may read them."""
    async with session.client() as client:
        if session.options.channel is None:
            views = await _of_all_channels(session, client, status, agent, turn, limit)
            if views is not None:
                return views
        interrupts = await session.patiently(
            lambda: client.interrupts(status=status, agent_id=agent, agent_turn_id=turn, limit=limit)
        )
        return [interrupt.view for interrupt in interrupts]


async def _of_all_channels(
    session: "Session", client: "Client", status: str | None, agent: str | None, turn: str | None, limit: int
) -> "list[InterruptView] | None":
    """The questions, in pages; None if this user may not read them."""
    from turnstile.schema.ledger_reads import ReadRequest
    from turnstile.schema.people.interrupt_requests import InterruptListRequest
    from turnstile.sdk.requests import parse_request

    page = parse_request(InterruptListRequest, {"status": status, "agent_id": agent, "agent_turn_id": turn})
    views: list[InterruptView] = []
    while len(views) < limit:
        page = page.model_copy(update={"limit": min(_PAGE, limit - len(views))})
        if (reply := await session.read_if_operator(client, ReadRequest(interrupts=page))) is None:
            return None
        views += reply.interrupts
        if reply.next is None:
            break
        page = page.model_copy(update={"after": reply.next})
    return views


@asynccontextmanager
async def _found(session: "Session", interrupt: str) -> "AsyncGenerator[Interrupt]":
    """The question, and a connection to decide it; raises `Refused` (unknown_interrupt)."""
    from turnstile.schema.ledger_reads import ReadRequest
    from turnstile.schema.people.interrupt_requests import InterruptRequest
    from turnstile.sdk.requests import parse_request

    named = ReadRequest(interrupt=parse_request(InterruptRequest, {"interrupt_id": interrupt}))
    async with session.client() as client:
        reply = await session.read_if_operator(client, named)
        if reply is not None and reply.interrupt is not None:
            yield client.interrupt_of(reply.interrupt)
        else:
            yield await session.patiently(lambda: client.interrupt(interrupt))


async def _decide(
    session: "Session",
    interrupt: str,
    digest: str | None,
    make: "Callable[[Interrupt], Awaitable[DecideReply]]",
) -> None:
    """Show the question, decide it, and print what came of it."""
    from turnstile.cli.people.approval_report import print_interrupt
    from turnstile.schema.errors import Refused

    async with _found(session, interrupt) as opened:
        if digest is not None and digest != opened.view.action_digest:
            raise Refused("digest_mismatch", "the call has changed (another digest): look at it again")
        if not session.out.as_json:
            print_interrupt(session.out, opened.view)
        reply = await session.patiently(lambda: make(opened))
    if reply.tool_changed:
        line = "the tool has changed since this was asked: the call was not sent, and the model sees why"
    else:
        line = f"{reply.decision}{', as before' if reply.duplicate else ''}: turn {opened.view.agent_turn_id} goes on"
    session.out.result(reply, line)


def _json_in(text: str) -> "JsonValue":
    import json

    from turnstile.schema.errors import BadRequest

    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRequest(f"not valid JSON: {error}") from None


def _object_in(text: str) -> "JsonObject":
    from turnstile.schema.errors import BadRequest

    match _json_in(text):
        case dict() as arguments:
            return arguments
        case _:
            raise BadRequest("arguments are a JSON object")
