"""Enqueue: one statement that makes a turn, also of a UI action, and leases the agent if it is idle (protocol §6).

Guarantees: the statement writes everything or nothing. A repeat with the same correlation returns the first turn's ids
and writes nothing. An agent's next turn is the oldest one whose output box is free. Costs one round trip. Never
publishes: the caller then rings the doorbell of `Enqueued.lease`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Required, TypedDict, Unpack

from pydantic import Json

from turnstile.ledger.budgets.steering import EXCEEDED
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, Row, query
from turnstile.ledger.turns.cards import new_card
from turnstile.ledger.turns.lease import Claim, dispatch_next
from turnstile.rules.turn_ends import NewLease
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import (
    Card,
    CardContent,
    CardType,
    FieldsSchemaContent,
    FilePart,
    JsonContent,
    Role,
    TextContent,
    make_card,
    with_lines,
)
from turnstile.schema.errors import BadRequest, Limited, Refused
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    SteerId,
    new_box_id,
    turn_card_id,
    uuid7,
)
from turnstile.schema.message_types import FILES
from turnstile.schema.states import HeadStatus, MessageType, ReplyStatus, TurnStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.inbox import IN_PARTS, TEXT_LIMIT_BYTES, EnqueueReply, EnqueueRequest, RerunOf
from turnstile.schema.wire.limits import PROJECT_FULL_FOR_CHILDREN, UNLIMITED, Admission, rate_limited
from turnstile.schema.wire.schedule_requests import RESERVED
from turnstile.schema.wire.ui_actions import UiAction

_REFUSALS = {
    "correlation_conflict": "this correlation_id was used before, with other content",
    "unknown_project": "there is no such project: it exists once it has a profile or an agent",
    "unknown_agent": "the project has no such agent: add it first",
    "agent_inactive": "the agent is not active",
    "unknown_profile": "the project has no profile of this name",
    "profile_not_allowed": "the request may not name this profile: let it say `free: true`, or the token list it",
    "model_not_allowed": "the request may not name this model: let the profile list it in `models`, or the token",
    "no_instances": "the profile has no instances: name an agent, or put the profile with `instances: true`",
    "agent_exists": "an agent that is no instance of this profile has the instance's id",
    "recursion_depth_exceeded": "the chain of agents that ask each other is too deep",
    "unknown_context_box": "context_box_id names no box of this project and channel",
    "unknown_output_box": "output_box_id names no box of this project and channel",
    "being_deleted": "the conversation or the end user is being deleted: enqueue again when that is done",
}
LIMITS = {
    "queue_full": "too many turns wait for the agent: again when some have ended",
    "project_full": "the project has too many turns queued and active: again when some have ended",
    "upgrade_under_way": "a process of an earlier version runs, which does not know what this asks for: again when all"
    " are upgraded",
    "instances_full": "the project has too many instances of profiles: again when retention has put some to sleep",
}


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The reply to the caller, and the lease to ring for if the request made one."""

    reply: EnqueueReply
    lease: NewLease | None
    is_new: bool = True
    """Whether the statement wrote the turn; False also for its own repeat, after an answer that was lost."""
    claim: Claim | None = None
    """The claimed row of the lease, whose workflow the caller must start instead of ringing."""


@dataclass(frozen=True, slots=True)
class Enqueue:
    """An enqueue with its new ids, so that a repeat of the statement uses the same ids."""

    project_id: ProjectId
    channel_id: ChannelId
    request: EnqueueRequest
    context_headers: dict[str, str]
    depth_limit: int
    sender: str
    """The author of its cards."""
    agent_turn_id: AgentTurnId
    inbox_id: InboxId
    new_context_box_id: BoxId
    new_output_box_id: BoxId
    admission: Admission = UNLIMITED
    action: UiAction | None = None
    """The action of a `ui_action` turn; `request` then holds its agent, correlation and metadata only."""
    rerun: RerunOf | None = None
    """The turn that this one runs again, in copies of its boxes."""
    rerun_digest: str | None = None
    """The fingerprint of the request to do so."""
    rerun_model: str | None = None
    """The model that this request names: what the turn had before was let it then."""
    caller: Caller | None = None
    """Who asks, if that is known: only who operates names any profile or model."""
    files: tuple[FilePart, ...] = ()
    """The files of its instruction."""
    known_config_card_id: CardId | None = None
    """The card that has the text of its settings already, in the context box that it names: a rerun's."""

    @property
    def message_type(self) -> MessageType:
        """`ui_action` of an action, else `turn`."""
        return MessageType.TURN if self.action is None else MessageType.UI_ACTION

    @property
    def correlation_id(self) -> str:
        """The name by which a repeat is known: by default the turn's."""
        return self.request.correlation_id or self.agent_turn_id

    @property
    def agent_id(self) -> AgentId:
        """The agent that the request names, or the instance of its profile that it means; a repeat means the same."""
        return self.request.agent(self.project_id, self.channel_id, self.agent_turn_id)

    @property
    def may_remember(self) -> bool:
        """Whether the turn goes on in the conversation that its profile's memory keeps, if that keeps one."""
        request = self.request
        boxes = (request.context_box_id, request.output_box_id)
        return self.action is None and request.agent_id is not None and boxes == (None, None)

    @property
    def digest(self) -> str:
        """A fingerprint of what was asked; the same correlation with a different one is a conflict."""
        request = self.request if self.action is None else self.action
        return self.rerun_digest or request.digest()

    @property
    def stored_config(self) -> JsonObject:
        """The settings as the inbox row has them: their text is on a card, whose id they have."""
        settings, text = self.request.runtime_config.split()
        card_id = self.known_config_card_id or turn_card_id(self.agent_turn_id, "config")
        return settings | {"card_id": card_id} if text else settings

    @property
    def cards(self) -> list[Card]:
        """Its new cards: the instruction, the fields of its result, and the text of its settings."""
        content, fields, text = self._instruction, self.request.result_fields, self.request.runtime_config.split()[1]
        cards: list[Card] = []
        if content is not None:
            cards.append(self._card("instruction", CardType.INSTRUCTION, Role.USER, content))
        if fields is not None:
            cards.append(self._card("fields", CardType.RESULT_FIELDS, Role.SYSTEM, FieldsSchemaContent(fields=fields)))
        if text and self.known_config_card_id is None:
            cards.append(self._card("config", CardType.RUNTIME_CONFIG, Role.SYSTEM, JsonContent(data=text)))
        return cards

    @property
    def _instruction(self) -> TextContent | JsonContent | None:
        """The content of the turn's instruction card: a text, or an action's call."""
        if (action := self.action) is not None:
            return JsonContent(data={"tool_name": action.tool_name, "arguments": action.args})
        text = self.request.instruction
        if text is None and not self.files:
            return None
        return TextContent(text=with_lines(text or "", self.files), parts=self.files)

    def _card(self, name: str, kind: CardType, role: Role, content: CardContent) -> Card:
        turn = self.agent_turn_id
        return make_card(turn_card_id(turn, name), kind, role, content, author=self.sender, turn=turn)


class QueuedStop(Tolerant):
    """The outcome of a turn that ended while queued, at epoch 0."""

    channel_id: ChannelId
    inbox_id: InboxId
    status: TurnStatus
    deliverable_card_id: CardId
    output_box_id: BoxId
    stats: Json[JsonObject]
    ended_at: datetime
    context_headers: ContextHeaders
    in_tree: bool
    """As `EndedTurn.in_tree`."""
    skipped_steers: list[SteerId]
    """As `EndedTurn.skipped_steers`."""


class EnqueueOptions(TypedDict, total=False):
    """What an enqueue is held against, and who asks."""

    depth_limit: Required[int]
    sender: Required[str]
    admission: Admission
    caller: Caller | None
    files: tuple[FilePart, ...]


async def enqueue(
    pool: Pool,
    project: ProjectId,
    channel: ChannelId,
    request: EnqueueRequest | UiAction,
    incoming: Mapping[str, str],
    **options: Unpack[EnqueueOptions],
) -> Enqueued:
    """Make a turn of `request`; raises `BadRequest`, or `Refused` or `Limited` with the code for the reply.

    The limit behind `queue_full` is exact. Turns enqueued at the same time may all pass those behind `project_full` and
    `instances_full`. A UI action leases its agent at once, or is answered `busy` and writes nothing (protocol §7.10);
    the caller must have checked that its tool may be called.
    """
    command = planned(project, channel, request, incoming, **options)
    return await pool.run(lambda conn: enqueue_turn(conn, command))


def planned(
    project: ProjectId,
    channel: ChannelId,
    request: EnqueueRequest | UiAction,
    incoming: Mapping[str, str],
    *,
    scheduled: bool = False,
    **options: Unpack[EnqueueOptions],
) -> Enqueue:
    """The enqueue with its ids; raises `BadRequest` or `Refused` for what no ledger is asked about.

    `scheduled`: its correlation is a schedule's.
    """
    if not scheduled:
        refuse_reserved(request.correlation_id)
    action = request if isinstance(request, UiAction) else None
    if request.text_bytes() > TEXT_LIMIT_BYTES:
        what = "text in a request is" if action is None else "the arguments of an action are"
        hint = f": {IN_PARTS}, and name that box as the turn's context" if action is None else ""
        raise Refused("text_too_large", f"{what} limited to {TEXT_LIMIT_BYTES} bytes{hint}")
    if isinstance(request, UiAction):
        named = {"agent_id": request.agent_id, "correlation_id": request.correlation_id, "metadata": request.metadata}
        request = EnqueueRequest.model_validate(named)
    return Enqueue(
        project_id=project,
        channel_id=channel,
        request=request,
        context_headers=headers.context_headers(incoming) | _conversation(request),
        agent_turn_id=AgentTurnId(uuid7()),
        inbox_id=InboxId(uuid7()),
        new_context_box_id=new_box_id(),
        new_output_box_id=new_box_id(),
        action=action,
        **options,
    )


def refuse_reserved(correlation: str | None) -> None:
    """Raise `BadRequest` for a correlation that only a schedule's firings have (protocol §20)."""
    if correlation is not None and correlation.startswith(RESERVED):
        raise BadRequest(f"a correlation_id may not begin with {RESERVED}: firings of schedules have these")


def _conversation(request: EnqueueRequest) -> dict[str, str]:
    """The conversation that the request names; else the turn is in its requester's, or in its output box's."""
    return {} if request.conversation_id is None else {headers.CONVERSATION_ID: request.conversation_id}


async def enqueue_turn(conn: Connection, command: Enqueue, claimed_targets: Sequence[str] = ()) -> Enqueued:
    """Run the statement once; raises `Refused` or `Limited` if it is not allowed.

    A turn of one of `claimed_targets` that its agent is leased to is claimed as well.
    """
    row = await query("enqueue_turn").one(
        conn, request=enqueue_arguments(command), claimed_targets=list(claimed_targets)
    )
    return await enqueued(conn, command, row)


def enqueue_arguments(command: Enqueue) -> str:
    """The enqueue as `state.enqueue_turn` takes it."""
    request, action, admission = command.request, command.action, command.admission
    settings: JsonObject = {"runtime_config": command.stored_config}
    if action is not None:
        settings["ui_action"] = action.ref.model_dump(mode="json")
    if command.rerun is not None:
        settings["rerun"] = command.rerun.model_dump(mode="json")
    new = {
        "project_id": command.project_id,
        "channel_id": command.channel_id,
        "agent_id": command.agent_id,
        "agent_turn_id": command.agent_turn_id,
        "inbox_id": command.inbox_id,
        "message_type": command.message_type,
        "correlation_id": command.correlation_id,
        "request_digest": command.digest,
        "instance_of": request.profile_name.lower() if request.agent_id is None and request.profile_name else None,
        "conversation_id": request.conversation_id,
        "may_remember": command.may_remember,
        "context_headers": command.context_headers,
        "depth": headers.depth(command.context_headers),
        "depth_limit": command.depth_limit,
        "over_rate": admission.wait_seconds > 0,
        "max_queued_turns": admission.max_queued_turns,
        "max_live_turns": admission.max_live_turns,
        "max_instances": admission.max_instances,
        "child_share": PROJECT_FULL_FOR_CHILDREN,
        "profile_name": request.profile_name,
        "named_profile": None if command.rerun is not None else request.profile_name,
        "named_model": request.runtime_config.model if command.rerun is None else command.rerun_model,
        "caller": None if command.caller is None else command.caller.name,
        "operates": command.caller is not None and command.caller.operates,
        "has_instruction": request.instruction is not None or bool(request.files) or action is not None,
        "context_box_id": request.context_box_id,
        "output_box_id": request.output_box_id,
        "new_context_box_id": command.new_context_box_id,
        "new_output_box_id": command.new_output_box_id,
        "settings": settings,
        "end_user": request.end_user,
        "budget": (request.budget.stored() or None) if request.budget is not None else None,
        "metadata": request.metadata,
        "cards": [new_card(card) for card in command.cards],
        "needs_level": FILES if request.files else request.runtime_config.needs_level,
    }
    return json.dumps(new)


async def enqueued(conn: Connection, command: Enqueue, row: Row) -> Enqueued:
    """What the statement came to; raises as `enqueue_turn` does."""
    match row["verdict"]:
        case "accepted" | "duplicate" as verdict:
            repeated = verdict == "duplicate" and row["inbox_id"] != command.inbox_id  # else this enqueue's own row
            lease = None if row["leased_at"] is None else _lease(row, command)
            claim = None if lease is None or not row["claimed"] else _claim(row, command, lease)
            if row["is_stranded"]:
                [lease] = await dispatch_next(conn, [(command.project_id, command.agent_id)]) or [None]
            reply = EnqueueReply.model_validate(dict(row) | {"status": ReplyStatus.ACCEPTED, "duplicate": repeated})
            return Enqueued(reply, lease, verdict == "accepted", claim)
        case "busy":
            why = "the agent is not idle, or is paused"
            return Enqueued(EnqueueReply(status=ReplyStatus.BUSY, error_code="agent_busy", error=why), None)
        case "nothing_to_do":
            raise BadRequest(
                "one of instruction and context_box_id is needed: the agent has no memory box to start from"
            )
        case "context_is_output":
            raise BadRequest("context_box_id and output_box_id must differ: a turn never writes what it reads")
        case "no_budget":
            raise Refused(EXCEEDED, "a limit of 0 in the turn's budget is nothing: leave it out, or raise it")
        case "rate_limited":
            raise rate_limited(command.admission.wait_seconds)
        case limit if limit in LIMITS:
            raise Limited(limit, LIMITS[limit])
        case refusal:
            raise Refused(refusal, _REFUSALS[refusal])


def _lease(row: Row, command: Enqueue) -> NewLease:
    return NewLease.model_validate(dict(row) | {"project_id": command.project_id, "channel_id": command.channel_id})


def _claim(row: Row, command: Enqueue, lease: NewLease) -> Claim:
    """The claim of the row that was just written."""
    return Claim.model_validate(
        dict(row)
        | lease.model_dump()
        | {
            "verdict": "start",
            "message_type": command.message_type,
            "correlation_id": command.correlation_id,
            "active_inbox_id": lease.inbox_id,
            "last_error": None,
            "head_status": HeadStatus.DISPATCHED,
            "root_turn_id": None,  # only what a batch enqueues has a place in a tree
            "parent_turn_id": None,
        }
    )


async def stop_queued_turn(
    conn: Connection,
    project: ProjectId,
    agent: AgentId,
    turn: AgentTurnId,
    card: Card,
    error_code: str,
    error: str | None = None,
) -> QueuedStop | None:
    """End a queued turn (protocol §6, stop), for the reason in `error`; returns None if it is not queued."""
    return await query("stop_queued_turn").opt_as(
        conn,
        QueuedStop,
        project_id=project,
        agent_id=agent,
        agent_turn_id=turn,
        card_id=card.card_id,
        content=json.dumps(card.content),
        metadata=card.metadata.model_dump_json(exclude_none=True),
        new_box_id=new_box_id(),
        error_code=error_code,
        error=error,
    )
