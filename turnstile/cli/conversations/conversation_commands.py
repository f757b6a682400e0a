"""`turnstile conversation`: list, show and stop, and `turnstile chat`."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "list", project=True)
async def show_all(
    session: "Session",
    agent: Annotated[str | None, typer.Option(help="Only conversations with this agent.")] = None,
    limit: Annotated[int, typer.Option(help="How many conversations to show.", min=1, max=10_000)] = 20,
) -> None:
    """List conversations, the last used first."""
    from turnstile.cli.conversations.conversation_report import shown_id
    from turnstile.schema.ledger_reads import ConversationsRead, ReadRequest
    from turnstile.sdk.requests import parse_request

    page = parse_request(ConversationsRead, {"agent_id": agent, "limit": limit})
    rows = (await session.read(ReadRequest(conversations=page))).conversations
    session.out.records(
        f"conversations of {agent or session.project}",
        rows,
        {
            "last used": lambda row: row.updated_at,
            "conversation": shown_id,
            "agent": lambda row: row.agent_id,
            "channel": lambda row: row.channel_id,
            "turns": lambda row: row.turn_count,
        },
    )


@command(app, "show", project=True, channel=True)
async def show(
    session: "Session",
    conversation: Annotated[str, typer.Argument(help="The conversation's id; `-` is that of the agent's memory.")],
    agent: Annotated[str | None, typer.Option(help="The agent, if several have a conversation with this id.")] = None,
    limit: Annotated[int, typer.Option(help="How many of its last turns to show.", min=1, max=10_000)] = 50,
) -> None:
    """Show what was said in a conversation: each turn's request and answer."""
    from turnstile.cli.conversations.conversation_report import print_conversation, read_conversation

    report = await read_conversation(session, conversation, agent, limit=limit)
    if session.out.as_json:
        session.out.document(report)
    else:
        print_conversation(session.out, report)


@command(app, "stop", project=True, channel=True, client=True)
async def stop(
    session: "Session",
    conversation: Annotated[str, typer.Argument(help="The conversation's id.")],
    agent: Annotated[str | None, typer.Option(help="The agent, if several have a conversation with this id.")] = None,
    reason: Annotated[str, typer.Option(help="The reason, for people.")] = "",
) -> None:
    """Stop the running and queued turns of a conversation."""
    from turnstile.schema.amounts import counted

    async with session.client() as client:
        stop = await client.conversation(conversation, agent_id=agent).stop(reason)
    session.out.result(stop, f"{counted(len(stop.stopped), 'turn')} will end")
    if stop.others:
        session.out.remark(f"{counted(stop.others, 'turn')} that somebody else asked for: an operator may stop them")


@command(app, "delete", project=True, channel=True, client=True)
async def delete(
    session: "Session",
    conversation: Annotated[str, typer.Argument(help="The conversation's id.")],
    agent: Annotated[str | None, typer.Option(help="The agent, if several have a conversation with this id.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until nothing is left of it.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a conversation for good: its turns are stopped, and all that only they reach is removed."""
    from turnstile.cli.conversations.deletions import confirm, follow
    from turnstile.schema import verbs
    from turnstile.schema.base import JsonObject
    from turnstile.schema.wire.deletion_requests import ConversationDeleteRequest
    from turnstile.sdk.requests import parse_request

    confirm(session, f"conversation {conversation}", yes=yes)
    fields: JsonObject = {"conversation_id": conversation, **({} if agent is None else {"agent_id": agent})}
    async with session.client() as client:
        reply = await client.call(verbs.CONVERSATION_DELETE, parse_request(ConversationDeleteRequest, fields))
        await follow(session, client, reply, wait=wait)


async def chat(
    session: "Session",
    agent: Annotated[
        str | None,
        typer.Argument(
            help="The agent's id; leave it out with --profile, or to talk to a model alone.", show_default=False
        ),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="A profile; an instance of it answers.")] = None,
    conversation: Annotated[
        str | None,
        typer.Option(help="The conversation; by default that of the last chat with the agent.", metavar="ID"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model, instead of the profile's; alone, the model itself answers.")
    ] = None,
    steer: Annotated[
        bool | None,
        typer.Option(
            "--steer/--no-steer",
            help="What you type during an answer goes to the running turn (default at a terminal), not the next.",
        ),
    ] = None,
) -> None:
    """Talk to an agent or a model line by line, continuing the last chat.

    The turn's next step reads what you type during an answer. Ctrl-C or `/stop` stops the answer, `/new` begins another
    conversation. Ctrl-D ends the chat, and so does Ctrl-C when nothing is being answered.
    """
    from turnstile.cli.conversations.chat import Chat, Partner

    steers = sys.stdin.isatty() if steer is None else steer
    await Chat(session, Partner(agent, profile, model), steers=steers).run(conversation)
