"""Reads a conversation by a bridge and prints it; text of users and models is indented below who said it."""

import json

from turnstile.cli.output import Output
from turnstile.cli.session import Session
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import conversation_named, token
from turnstile.schema.ledger_reads import ConversationLine, ConversationsRead, ReadRequest, SaidRead, SaidTurn
from turnstile.sdk.requests import parse_request

KEPT = "-"
"""How the conversation that a profile's memory keeps is named on the command line."""


class ConversationReport(Tolerant):
    """A conversation and its last turns."""

    conversation: ConversationLine
    turns: list[SaidTurn]


def shown_id(line: ConversationLine) -> str:
    """The conversation's id as the command line has it."""
    return line.conversation_id or KEPT


async def read_conversation(session: Session, named: str, agent: str | None, *, limit: int) -> ConversationReport:
    """The conversation; raises `Refused` (`unknown_conversation`, `ambiguous_conversation` if several have the id)."""
    fields: JsonObject = {
        "conversation_id": "" if named == KEPT else conversation_named(named, "CONVERSATION"),
        "agent_id": None if agent is None else token(agent, "--agent"),
        "channel_id": session.channel if session.options.channel else None,
        "limit": 6,
    }
    which = ReadRequest(conversations=parse_request(ConversationsRead, fields))
    async with session.bridge() as client:
        rows = (await session.read_on(client, which)).conversations
        if not rows:
            raise Refused("unknown_conversation", f"project {session.project} has no conversation {named!r}")
        one, *others = rows
        if others:
            whose = [f"with {row.agent_id} in channel {row.channel_id}" for row in rows]
            raise Refused(
                "ambiguous_conversation",
                "\n".join((f"several conversations are called {named!r}: name --agent or --channel", *whose)),
            )
        request = ReadRequest(said=SaidRead(**one.name._asdict(), limit=limit))
        turns = (await session.read_on(client, request)).said
    return ConversationReport(conversation=one, turns=list(turns))


def print_conversation(out: Output, report: ConversationReport) -> None:
    """Print the conversation for people."""
    line = report.conversation
    out.facts(
        f"conversation {shown_id(line)}",
        {
            "agent": f"{line.agent_id} in channel {line.channel_id}",
            "turns": line.turn_count,
            "output box": line.output_box_id,
        },
    )
    for turn in report.turns:
        out.line(f"\n{turn.created_at.astimezone():%Y-%m-%d %H:%M:%S}  you", style="bold", note=turn.agent_turn_id)
        out.indented(turn.asked or "(no instruction)")
        code = f" ({turn.error_code})" if turn.error_code else ""
        note = "" if turn.status == "success" else f"{turn.status}{code}"
        out.line(line.agent_id, style="bold", note=note)
        if turn.deliverable is not None:
            out.indented(said_in(turn.deliverable))


def said_in(content: JsonObject) -> str:
    """A deliverable's content as text."""
    value = content.get("text", content.get("data"))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
