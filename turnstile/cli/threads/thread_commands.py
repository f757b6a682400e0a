"""`turnstile thread`: send a message to a listener, show and list threads."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "send", project=True, channel=True)
async def send(
    session: "Session",
    to: Annotated[str, typer.Argument(help="Name of the listener.")],
    payload: Annotated[str, typer.Argument(help="XML or JSON; `@FILE` reads a file, `-` standard input.")],
    thread: Annotated[
        str | None, typer.Option(help="A thread that you began, which the message joins.", metavar="ID")
    ] = None,
    correlation_id: Annotated[
        str | None, typer.Option(help="Idempotency key: a message repeated with the same key is sent once.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait and print the reply, or print only the ids.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the reply.", min=0.1, max=86_400)] = 60.0,
) -> None:
    """Send a message and print its reply as XML.

    Exit code 0 with a reply; 1 if the message was refused, could not be delivered or ended without a reply; 3 if no
    bridge answers, or no reply comes in time.
    """
    from turnstile.cli.threads.sending import MessageOptions, send_message

    await send_message(session, MessageOptions(to, payload, thread, correlation_id), wait=wait, timeout=timeout)


@command(app, "show", project=True)
async def show(
    session: "Session",
    thread: Annotated[str, typer.Argument(help="The thread's id.")],
    payloads: Annotated[bool, typer.Option("--payloads", help="Show the payloads of the messages.")] = False,
    limit: Annotated[int, typer.Option(help="How many messages to show.", min=1, max=100_000)] = 1000,
) -> None:
    """Show a thread: its messages with sender, listener and effect, the replies, and its page in the Web UI."""
    from turnstile.cli.threads.thread_report import document_of, print_thread, read_thread

    async with session.bridge() as client:
        report = await read_thread(session, client, thread, payloads=payloads, limit=limit)
    if session.out.as_json:
        session.out.document(document_of(report))
    else:
        print_thread(session.out, report)


@command(app, "list", project=True)
async def show_all(
    session: "Session",
    only_open: Annotated[bool, typer.Option("--open", help="Only threads with a message in flight.")] = False,
    limit: Annotated[int, typer.Option(help="How many threads to show.", min=1, max=10_000)] = 20,
) -> None:
    """List threads, the newest first."""
    from turnstile.cli.turns.turn_report import duration_between
    from turnstile.schema.ledger_reads import ReadRequest, ThreadsRead

    request = ReadRequest(threads=ThreadsRead(status="open" if only_open else None, limit=limit))
    rows = (await session.read(request)).threads
    session.out.records(
        f"{'open ' if only_open else ''}threads of {session.project}",
        rows,
        {
            "created": lambda row: row.created_at,
            "thread": lambda row: row.thread_id,
            "from": lambda row: row.requester,
            "status": lambda row: row.status,
            "ended by": lambda row: row.end_reason,
            "messages": lambda row: row.message_count,
            "in flight": lambda row: row.open_count or None,
            "took": lambda row: duration_between(row.created_at, row.ended_at),
        },
    )
