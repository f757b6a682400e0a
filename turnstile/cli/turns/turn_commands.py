"""`turnstile enqueue`, and `turnstile turn`: show, list, stop, steer and run again."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnstile.cli.command import command
from turnstile.schema.states import MultitaskStrategy

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()

_BUDGET = typer.Option(
    help="What the turn and all turns below it may use: any of tokens=, usd=, turns=, seconds=.",
    metavar="tokens=N,usd=N,…",
)
_WIDE = 140
_BEGINNING = 18
"""From `_WIDE` columns on a list shows whole ids, else their first `_BEGINNING` characters, which identify a turn."""


@command(app, "show", project=True, client=True)
async def show(
    session: "Session",
    turn: Annotated[str, typer.Argument(help="The turn's id, or the beginning of it.")],
    full: Annotated[bool, typer.Option("--full", help="Do not shorten anything.")] = False,
) -> None:
    """Show a turn as a transcript: the request, each step with its calls, the deliverable, its Web UI page.

    Through a gateway only its status and deliverable are shown, without the transcript, which operators read over NATS.
    """
    from turnstile.cli.turns.turn_report import TurnReport, document_of, link_of, print_report, print_view, read_report

    async with session.client() as client:
        report = await read_report(session, client, turn)
    link = link_of(session, report.turn.agent_turn_id)
    if session.out.as_json:
        session.out.document(document_of(report, link))
    elif isinstance(report, TurnReport):
        print_report(session.out, report, link, whole=full)
    else:
        print_view(session.out, report)


@command(app, "list", project=True)
async def show_all(
    session: "Session",
    agent: Annotated[str | None, typer.Option(help="Only turns of this agent.")] = None,
    limit: Annotated[int, typer.Option(help="How many turns to show.", min=1, max=10_000)] = 20,
) -> None:
    """List turns, the newest first."""
    from turnstile.cli.turns.turn_report import duration_between, list_of, note_of
    from turnstile.schema.ledger_reads import ReadRequest, TurnsRead
    from turnstile.sdk.requests import parse_request

    page = ReadRequest(turns=parse_request(TurnsRead, {"agent_id": agent, "limit": limit}))
    rows = (await session.read(page)).turns
    session.out.records(
        f"turns of {agent or session.project}",
        rows,
        {
            "created": lambda row: row.created_at,
            "turn": lambda row: row.agent_turn_id,
            "agent": lambda row: row.agent_id,
            "status": lambda row: row.status,
            "note": note_of,
            "took": lambda row: duration_between(row.created_at, row.ended_at),
            "asked": lambda row: " ".join((row.asked or "").split()),
        }
        if session.out.width >= _WIDE
        else {
            "turn": lambda row: row.agent_turn_id[:_BEGINNING],
            "agent": lambda row: row.agent_id,
            "status": lambda row: " ".join(filter(None, (row.status, note_of(row)))),
            "asked": lambda row: " ".join((row.asked or "").split()),
        },
        cut="asked",
    )
    if not session.out.as_json and (link := list_of(session, agent)):
        session.out.remark(f"turns that did not succeed, in Temporal: {link}")


@command(app, "tree", project=True, client=True)
async def tree(
    session: "Session",
    turn: Annotated[str, typer.Argument(help="The id of a turn in the tree, or the beginning of it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Update it live until every turn has ended.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.1, max=3600)] = 0.5,
) -> None:
    """Show the tree of turns that a turn is in: status, time, tokens and cost, of the turn and of all below it.

    --json prints one document, --follow --json one line for each change.
    """
    from turnstile.cli.turns.turn_tree import show_tree

    await show_tree(session, turn, follow=follow, interval=interval)


@command(app, "stop", project=True, channel=True, client=True)
async def stop(
    session: "Session",
    turn: Annotated[str, typer.Argument(help="The turn's id, or the beginning of it.")],
    reason: Annotated[str, typer.Option(help="The reason to record.")] = "",
    cascade: Annotated[
        Literal["waited", "all"], typer.Option(help="Which turns below it to cancel: those that it waits for, or all.")
    ] = "waited",
) -> None:
    """Cancel a turn and the turns that it waits for; its deliverable has the partial results."""
    from turnstile.cli.turns.asking import stop_turn, told_of_stop, told_of_wait
    from turnstile.cli.turns.lookup import whole_id

    turn = await whole_id(session, turn)
    reply, waiting = await stop_turn(session, turn, reason, cascade)
    session.out.result(reply, told_of_stop(turn, reply, over=waiting is None))
    if waiting is not None:
        session.out.remark(told_of_wait(waiting))


@command(app, "steer", project=True, channel=True, client=True)
async def steer(
    session: "Session",
    turn: Annotated[str, typer.Argument(help="The turn's id, or the beginning of it.")],
    text: Annotated[str, typer.Argument(help="The message; `-` reads standard input.")],
    when_idle: Annotated[
        bool, typer.Option("--when-idle", help="Only when the turn would otherwise end; it then continues.")
    ] = False,
    correlation_id: Annotated[
        str | None, typer.Option(help="Idempotency key: a message repeated with the same key is sent once.")
    ] = None,
) -> None:
    """Send a message to a turn while it runs: the model reads it in the next step."""
    from turnstile.cli.turns.asking import steer_turn, told_of_steer
    from turnstile.cli.turns.lookup import whole_id
    from turnstile.cli.turns.texts import given_text

    turn, message = await whole_id(session, turn), given_text(text, None)
    reply = await steer_turn(session, turn, message, when_idle=when_idle, correlation_id=correlation_id)
    session.out.result(reply, told_of_steer(turn, reply, when_idle=when_idle))


@command(app, "rerun", project=True, channel=True, client=True)
async def rerun(
    session: "Session",
    turn: Annotated[str, typer.Argument(help="The id of a turn that has ended, or the beginning of it.")],
    from_step: Annotated[
        int | None, typer.Option(help="The step to begin with; by default the step that failed, else 1.", min=1)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, instead of the one that the turn had.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting for the new turn, such as temperature=0.2.", metavar="NAME=VALUE"),
    ] = None,
    budget: Annotated[str | None, _BUDGET] = None,
    wait: Annotated[bool, typer.Option(help="Print the answer as it streams, and the deliverable.")] = True,
    correlation_id: Annotated[
        str | None, typer.Option(help="Idempotency key: a request repeated with the same key returns the same turn.")
    ] = None,
) -> None:
    """Run a turn again from one of its steps, as a new turn on copies of its boxes. Exit code 1 if the new turn fails.

    By default a failed turn continues at the step that failed. Earlier steps are kept, later ones are run again.
    """
    from turnstile.cli.turns.asking import RerunArguments, run_again
    from turnstile.cli.turns.lookup import whole_id
    from turnstile.cli.turns.texts import budget_option, setting_of

    chosen = dict(map(setting_of, settings or ()))
    if model is not None:
        chosen["model"] = model
    limits = budget_option(budget)
    again = RerunArguments(await whole_id(session, turn), from_step, chosen or None, correlation_id, limits)
    await run_again(session, again, wait=wait)


async def enqueue(
    session: "Session",
    agent: Annotated[
        str | None, typer.Argument(help="The agent's id; leave it out with --profile.", show_default=False)
    ] = None,
    text: Annotated[str | None, typer.Argument(help="The request; `-` reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the request, instead of TEXT.")] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(help="A path, or the id of a file, that goes with the request; repeat.", metavar="FILE"),
    ] = None,
    context_box: Annotated[
        str | None, typer.Option(help="A box that the turn reads before the request.", metavar="BOX")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(help="The conversation; its turns see what was said in it before.", metavar="ID")
    ] = None,
    output_box: Annotated[
        str | None, typer.Option(help="The box that the turn writes to, instead of a new one.", metavar="BOX")
    ] = None,
    remember: Annotated[
        bool, typer.Option("--remember", help="Keep the request in the output box, for later turns with that box.")
    ] = False,
    multitask: Annotated[
        MultitaskStrategy,
        typer.Option(help="What happens to your unfinished turns of the conversation.", show_default=True),
    ] = MultitaskStrategy.ENQUEUE,
    wait: Annotated[bool, typer.Option("--wait", help="Print the answer as it streams, and the deliverable.")] = False,
    correlation_id: Annotated[
        str | None, typer.Option(help="Idempotency key: a request repeated with the same key returns the same turn.")
    ] = None,
    fields: Annotated[
        str | None, typer.Option(help="Fields that the deliverable must have, separated by commas.", metavar="A,B")
    ] = None,
    output_schema: Annotated[
        Path | None,
        typer.Option(help="File with a JSON schema: the deliverable is a value that matches it.", metavar="FILE"),
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Profile, instead of the agent's; without an agent, an instance of it answers.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, instead of the profile's.")] = None,
    budget: Annotated[str | None, _BUDGET] = None,
    end_user: Annotated[str | None, typer.Option(help="The person for whom you ask.", metavar="ID")] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Write directly to the database, without NATS or a bridge.")
    ] = False,
) -> None:
    """Send a request to an agent: one turn, exactly one deliverable. With --wait, exit code 1 if the turn fails."""
    from turnstile.cli.turns.asking import EnqueueArguments, ask
    from turnstile.cli.turns.texts import budget_option, given_schema, given_text

    if profile is not None and text is None and file is None:
        agent, text = None, agent  # the one argument is the text
    instruction = None if (text, file) == (None, None) and context_box else given_text(text, file)
    question = EnqueueArguments(
        agent,
        instruction,
        correlation_id,
        fields,
        profile,
        model,
        context_box,
        conversation=conversation,
        output_box_id=output_box,
        remember=remember,
        multitask=multitask,
        budget=budget_option(budget),
        output_schema=None if output_schema is None else given_schema(output_schema),
        end_user=end_user,
        attached=attach or (),
    )
    await ask(session, question, wait=wait, direct=direct)
