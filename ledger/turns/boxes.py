"""The verbs on boxes: `box_fork`, `box_make`, `box_replace`, and `conversation.put`, which makes one (protocol §6).

Guarantees: a fork copies its source's list at one moment, a box of parts is made whole or not at all, and each has an
id by which a repeat finds it. Pointers are set only to boxes of the agent's project that no other agent's turn writes
at that moment; a later turn of another agent may still write them, since pointers are outside the gate. All lock the
boxes they name, so retention cannot remove them meanwhile. One round trip each.
"""

import json
from collections.abc import Mapping

from turnstile.ledger.files.artifacts import file_parts
from turnstile.ledger.queries import Again, Connection, query
from turnstile.ledger.turns.cards import card_columns
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    Card,
    CardType,
    FieldsSchemaContent,
    FilePart,
    Role,
    TextContent,
    ThoughtCall,
    ToolResultContent,
    make_card,
    with_lines,
)
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, ArtifactId, BoxId, CardId, ChannelId, ProjectId, ToolCallId
from turnstile.schema.json_reading import storable_json
from turnstile.schema.states import AfterExecution, ReplyStatus, TurnStatus
from turnstile.schema.wire.box_requests import (
    CARD_LIMIT,
    AgentBoxes,
    BoxMakeRequest,
    BoxPart,
    BoxReplaceRequest,
    CallsPart,
    CardPart,
    FieldsPart,
    ResultPart,
    TextPart,
)
from turnstile.schema.wire.conversation_requests import (
    ConversationNotes,
    ConversationPutReply,
    ConversationPutRequest,
)
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES
from turnstile.schema.wire.limits import MADE_LIMITS, UNCOUNTED, Maker, made_limited

_REFUSALS = {
    "correlation_conflict": "this correlation_id was used before, with other content",
    "too_many_cards": f"a box is made of at most {CARD_LIMIT} cards: take the last ones, or only some types",
    "unknown_box": "box_id names no box of this project and channel",
    "unknown_agent": "the project has no such agent: add it first",
    "unknown_context_box": "memory_context_box_id names no box of this project and channel",
    "unknown_output_box": "last_output_box_id names no box of this project and channel",
    "ambiguous": "several agents of the channel have a conversation of this id: say agent_id",
    "conversation_changed": "the conversation is in another box by now: read it again",
    "conversation_locked": "a turn of this conversation is not over: wait for its end, or stop it",
    "being_deleted": "the conversation is being deleted: make it anew when that is done",
    "conversation_of_another": "the conversation is another agent's: make one for each agent",
    "unknown_card": "drop_card_ids: the conversation has no such card",
    "unknown_conversation": "the channel has no such conversation",
    "output_box_busy": "a turn of another agent is writing the box: fork it, or wait for its end",
}


async def fork_box(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    source: BoxId,
    new_box: BoxId,
    maker: Maker = UNCOUNTED,
) -> bool:
    """Make `new_box` a copy of the box `source`; returns False if an earlier fork made it.

    Raises `Refused` (correlation_conflict, unknown_box), `Limited` (boxes_full, cards_full), or `Again`.
    """
    named = {"project_id": project, "channel_id": channel, "box_id": source, "new_box_id": new_box}
    row = await query("fork_box").one(conn, **named, **_counted(maker))
    match row["verdict"]:
        case "accepted" | "duplicate" as verdict:
            return verdict == "accepted"
        case verdict:
            raise _refusal(verdict, maker)


def _counted(maker: Maker) -> JsonObject:
    limits = maker.limits
    return {"maker": maker.name, "most_boxes": limits.max_unused_boxes, "most_cards": limits.max_unused_cards}


def _refusal(verdict: str, maker: Maker) -> Again | Refused:
    if verdict == "again":
        return Again()
    return made_limited(verdict, maker) if verdict in MADE_LIMITS else Refused(verdict, _REFUSALS[verdict])


async def compose_box(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    request: BoxMakeRequest,
    new_box: BoxId,
    author: str,
    maker: Maker = UNCOUNTED,
) -> tuple[int, bool]:
    """Make `new_box` of the parts; returns the number of its cards, and False if an earlier request made it.

    Raises `Refused` (text_too_large, correlation_conflict, unknown_box, unknown_card, too_many_cards), `Limited`
    (boxes_full, cards_full), or `Again`.
    """
    if request.text_bytes() > TEXT_LIMIT_BYTES:
        raise Refused("text_too_large", f"text in a request is limited to {TEXT_LIMIT_BYTES} bytes: make several boxes")
    named = await file_parts(conn, project, request.files) if request.files else ()
    parts, cards = _stored_parts(request, channel, new_box, author, {part.artifact_id: part for part in named})
    columns = card_columns(cards)
    row = await query("compose_box").one(
        conn,
        project_id=project,
        channel_id=channel,
        new_box_id=new_box,
        request_digest=request.digest(channel),
        parts=json.dumps(parts),
        card_limit=CARD_LIMIT,
        card_ids=columns["card_ids"],
        card_contents=columns["card_contents"],
        card_tool_calls=columns["card_tool_calls"],
        card_tool_call_ids=columns["card_tool_call_ids"],
        card_metadatas=columns["card_metadatas"],
        **_counted(maker),
    )
    match row["verdict"]:
        case "accepted" | "duplicate" as verdict:
            return row["cards"], verdict == "accepted"
        case "unknown_box" | "unknown_card" as code:
            what = "box" if code == "unknown_box" else "card that is in a box"
            raise Refused(code, f"part {row['refused_place']} names no {what} of this project and channel")
        case verdict:
            raise _refusal(verdict, maker)


def _stored_parts(
    request: BoxMakeRequest, channel: ChannelId, new_box: BoxId, author: str, files: Mapping[ArtifactId, FilePart]
) -> tuple[list[JsonObject], list[Card]]:
    """The parts as the statement reads them, counted from 1, and the cards that are new."""
    parts: list[JsonObject] = []
    cards: list[Card] = []
    for place, part in enumerate(request.parts, 1):
        match part:
            case BoxPart(box_id=box, last=last, types=types):
                most = CARD_LIMIT + 1 if last is None else last  # one more than the limit is enough to refuse
                named = None if types is None else [str(t) for t in types]
                parts.append({"place": place, "box_id": box, "most": most, "types": [*named] if named else None})
            case CardPart(card_id=card):
                parts.append({"place": place, "card_id": card, "most": 1, "is_new": False})
            case TextPart() | FieldsPart() | CallsPart() | ResultPart():
                new_card = _new_card(part, CardId(f"{new_box}-{place}"), author, files)
                metadata = new_card.metadata.model_copy(update={"channel_id": channel})
                card = new_card.model_copy(update={"metadata": metadata})
                cards.append(card)
                parts.append({"place": place, "card_id": card.card_id, "is_new": True})
    return parts, cards


def _new_card(
    part: TextPart | FieldsPart | CallsPart | ResultPart,
    card: CardId,
    author: str,
    files: Mapping[ArtifactId, FilePart],
) -> Card:
    match part:
        case CallsPart(calls=past_calls, text=text):
            calls = [
                ThoughtCall(
                    tool_call_id=ToolCallId(call.tool_call_id), tool_name=call.tool_name, arguments=call.arguments
                )
                for call in past_calls
            ]
            thought = TextContent(text=text)
            return make_card(card, CardType.THOUGHT, Role.ASSISTANT, thought, author=author, tool_calls=calls)
        case ResultPart(result=result):
            output = ToolResultContent(
                status=TurnStatus.SUCCESS, after_execution=AfterExecution.SUSPEND, result=storable_json(result.output)
            )
            call = ToolCallId(result.tool_call_id)
            return make_card(card, CardType.TOOL_RESULT, Role.TOOL, output, author=author, tool_call=call)
        case FieldsPart(fields=fields):
            content = FieldsSchemaContent(fields=fields)
            return make_card(card, CardType.RESULT_FIELDS, Role.SYSTEM, content, author=author)
        case TextPart(text=text, type=kind):
            role = Role.USER if kind == CardType.INSTRUCTION else Role.ASSISTANT
            own = tuple(files[file] for file in dict.fromkeys(part.files))
            return make_card(
                card, CardType(kind), role, TextContent(text=with_lines(text, own), parts=own), author=author
            )


async def replace_boxes(
    conn: Connection, project: ProjectId, channel: ChannelId, request: BoxReplaceRequest
) -> AgentBoxes:
    """Set the agent's pointers in the channel that `request` names; returns both.

    Raises `Refused` (unknown_agent, unknown_context_box, unknown_output_box, output_box_busy).
    """
    row = await query("replace_boxes").one(
        conn,
        project_id=project,
        channel_id=channel,
        agent_id=request.agent_id,
        memory_box_id=request.memory_context_box_id,
        output_box_id=request.last_output_box_id,
        sets_memory="memory_context_box_id" in request.model_fields_set,
    )
    if (verdict := row["verdict"]) != "accepted":
        raise Refused(verdict, _REFUSALS[verdict])
    return AgentBoxes.model_validate(dict(row))


async def put_conversation(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    request: ConversationPutRequest,
    new_box: BoxId,
    maker: Maker = UNCOUNTED,
) -> ConversationPutReply:
    """Make or change a conversation of the channel; a box that it needs has the id `new_box`. Returns it as it is now.

    Raises `Refused` (unknown_conversation, ambiguous, unknown_box, unknown_card, too_many_cards,
    conversation_changed, conversation_locked, conversation_of_another), `Limited` (conversations_full), or `Again`.
    """
    fields = {"metadata": request.metadata, "removed": request.removed}
    notes = {name: value for name, value in fields.items() if value is not None}
    row = await query("put_conversation").one(
        conn,
        project_id=project,
        channel_id=channel,
        conversation_id=request.conversation_id,
        agent_id=request.agent_id,
        notes=json.dumps(notes) if notes else None,
        box_id=request.box_id,
        add_box_id=request.add_box_id,
        drop_card_ids=list(request.drop_card_ids),
        new_box_id=new_box,
        card_limit=CARD_LIMIT,
        maker=maker.name,
        most=maker.limits.max_unused_conversations,
    )
    match row["verdict"]:
        case "accepted" | "duplicate":
            return ConversationPutReply(
                status=ReplyStatus.ACCEPTED,
                conversation_id=request.conversation_id,
                agent_id=row["agent_id"],
                box_id=row["box_id"],
                notes=ConversationNotes.model_validate_json(row["notes"]),
            )
        case verdict:
            raise _refusal(verdict, maker)


async def agent_boxes(conn: Connection, project: ProjectId, channel: ChannelId, agent: AgentId) -> AgentBoxes:
    """The boxes that the agent's pointers in the channel name; raises `Refused` (unknown_agent)."""
    row = await query("agent_boxes").opt(conn, project_id=project, channel_id=channel, agent_id=agent)
    if row is None:
        raise Refused("unknown_agent", _REFUSALS["unknown_agent"])
    return AgentBoxes.model_validate(dict(row))
