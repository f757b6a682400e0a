"""`turnstile thread`: send a message to a listener, and see what became of conversations."""

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
    to: Annotated[str, typer.Argument(help="The listener.")],
    payload: Annotated[str, typer.Argument(help="XML or JSON; `@FILE` reads a file, `-` standard input.")],
    thread: Annotated[str | None, typer.Option(help="A thread of yours that the message joins.", metavar="ID")] = None,
    correlation_id: Annotated[
        str | None, typer.Option(help="A name for this message: the same message again is sent once.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Print the answer, or only the ids.")] = True,
    timeout: Annotated[float, typer.Option(help="How many seconds to wait for it.", min=0.1, max=86_400)] = 60.0,
) -> None:
    """Send a message and print its answer as XML.

    Exits 0 with an answer; 1 if it was refused, could not be delivered or has ended without an answer; 3 if no bridge
    answers, or nobody in time.
    """
    from turnstile.cli.threads.sending import MessageOptions, send_letter

    await send_letter(session, MessageOptions(to, payload, thread, correlation_id), wait=wait, timeout=timeout)


@command(app, "show", project=True)
async def show(
    session: "Session",
    thread: Annotated[str, typer.Argument(help="The thread's id.")],
    payloads: Annotated[bool, typer.Option("--payloads", help="Also what the messages say.")] = False,
    limit: Annotated[int, typer.Option(help="Messages at most.", min=1, max=100_000)] = 1000,
) -> None:
    """Show a thread: who sent what to whom, what came of it, the answers, and its page in the Web UI."""
    from turnstile.cli.threads.thread_report import document_of, print_thread, read_thread
    from turnstile.schema.pump.threads import ThreadId

    async with session.ledger() as pool:
        report = await read_thread(session, pool, ThreadId(thread), payloads=payloads, row_limit=limit)
    if session.out.as_json:
        session.out.document(document_of(report))
    else:
        print_thread(session.out, report)


@command(app, "list", project=True)
async def show_all(
    session: "Session",
    only_open: Annotated[bool, typer.Option("--open", help="Only those with a message in flight.")] = False,
    limit: Annotated[int, typer.Option(help="Threads at most.", min=1, max=10_000)] = 20,
) -> None:
    """List threads, the newest first."""
    from turnstile.cli.turns.turn_report import duration
    from turnstile.ledger.pump.thread_views import list_threads

    status = "open" if only_open else None
    async with session.ledger() as pool:
        rows = await pool.run(lambda conn: list_threads(conn, session.project, status, row_limit=limit))
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
            "took": lambda row: duration(row.created_at, row.ended_at),
        },
    )
