"""A turn that is run again from one of its steps (protocol §6, rerun): copies of its boxes, and a new turn in them.

Guarantees: both happen in one transaction, or neither. A request that is refused changes nothing, and a repeat finds
the first one's turn. The old turn and its boxes stay as they are. Costs two statements. Never publishes: the caller
then rings the doorbell of `Enqueued.lease`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Json, JsonValue, ValidationError

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection, query
from turnstile.ledger.turns.intake import Enqueue, Enqueued, enqueue_turn
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, InboxId, ProjectId, new_box_id, uuid7
from turnstile.schema.people.reruns import LINE_LIMIT, RerunRequest
from turnstile.schema.profiles import RuntimeConfig
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES, EnqueueRequest, RerunOf
from turnstile.schema.wire.limits import UNLIMITED, Admission

_REFUSALS = {
    "unknown_turn": "the project and channel have no such turn",
    "not_yours": "only who asked for the turn, or an operator, may run it again",
    "turn_not_over": "the turn is not over: wait for its end, or stop it",
    "not_repeatable": "a UI action is not run again: send another one",
    "step_gone": "what the turn had read before that step has expired or was deleted: choose another step",
}


class CopiedBoxes(Tolerant):
    """The verdict on a rerun, and what the new turn has of the old one."""

    verdict: str
    agent_id: AgentId | None
    from_step: int
    last_step: int | None
    runtime_config: Json[JsonObject]
    config_text: Json[JsonValue] | None = None
    """What is on the card that the settings name."""
    line: Json[tuple[AgentTurnId, ...]]
    profile_name: str | None


@dataclass(frozen=True, slots=True)
class Rerun:
    """A rerun with its new ids, so that a repeat of the transaction uses the same ids."""

    project_id: ProjectId
    channel_id: ChannelId
    request: RerunRequest
    caller: Caller
    context_headers: dict[str, str]
    depth_limit: int
    agent_turn_id: AgentTurnId
    inbox_id: InboxId
    context_copy_id: BoxId
    output_copy_id: BoxId
    admission: Admission = UNLIMITED
    amended_box_id: BoxId = field(default_factory=new_box_id)
    """The context box of a turn whose settings have another text: the copy, and the card with it."""

    @property
    def correlation_id(self) -> str:
        """The name by which a repeat of the request is known."""
        return self.request.correlation_id or self.agent_turn_id


async def rerun_turn(
    pool: Pool,
    project: ProjectId,
    channel: ChannelId,
    request: RerunRequest,
    caller: Caller,
    incoming: Mapping[str, str],
    *,
    depth_limit: int,
    admission: Admission = UNLIMITED,
) -> tuple[Enqueued, RerunOf]:
    """Run a turn again from one of its steps; returns the new turn, and which it runs again.

    Raises `Refused` (unknown_turn, not_yours, turn_not_over, not_repeatable, unknown_step, step_gone, too_many_reruns,
    text_too_large), and `BadRequest`, `Refused` and `Limited` as `enqueue` does.
    """
    carried = {name: value for name, value in incoming.items() if name in (headers.TRACEPARENT, headers.TRACESTATE)}
    command = Rerun(
        project_id=project,
        channel_id=channel,
        request=request,
        caller=caller,
        context_headers={**headers.context_headers(carried), headers.SENDER: caller.name},
        depth_limit=depth_limit,
        agent_turn_id=AgentTurnId(uuid7()),
        inbox_id=InboxId(uuid7()),
        context_copy_id=new_box_id(),
        output_copy_id=new_box_id(),
        admission=admission,
    )
    return await pool.transact(lambda conn: rerun_on(conn, command))


async def rerun_on(conn: Connection, command: Rerun) -> tuple[Enqueued, RerunOf]:
    """The two statements of a rerun, within a transaction of the caller's; raises as `rerun_turn` does, or `Again`."""
    request = command.request
    copied = await query("copy_boxes_of_turn").one_as(
        conn,
        CopiedBoxes,
        project_id=command.project_id,
        channel_id=command.channel_id,
        agent_turn_id=request.agent_turn_id,
        from_step=request.from_step,
        correlation_id=command.correlation_id,
        caller=command.caller.name,
        operates=command.caller.operates,
        context_copy_id=command.context_copy_id,
        output_copy_id=command.output_copy_id,
    )
    match copied.verdict:
        case "accepted" | "known":
            pass
        case "unknown_step":
            raise Refused("unknown_step", f"the turn has the steps 1 to {copied.last_step}")
        case refusal:
            raise Refused(refusal, _REFUSALS[refusal])
    if len(copied.line) >= LINE_LIMIT:
        raise Refused("too_many_reruns", f"{LINE_LIMIT} reruns of reruns came before: run an earlier turn again")
    turn = request.agent_turn_id
    of = RerunOf(of=turn, from_step=copied.from_step, line=(turn, *copied.line))
    new = _enqueue(command, copied, of)
    enqueued = await enqueue_turn(conn, new)
    if copied.verdict == "accepted" and enqueued.reply.duplicate:
        raise Again  # its twin has committed meanwhile: the copies are not needed
    return enqueued, of


def _enqueue(command: Rerun, copied: CopiedBoxes, of: RerunOf) -> Enqueue:
    """The new turn: the old one's agent, profile and settings, in the copies; a card for settings with another text."""
    known, before = _before(copied)
    settings = _settings(command.request, before)
    request = EnqueueRequest(
        agent_id=copied.agent_id or AgentId("unknown"),
        profile_name=copied.profile_name,
        context_box_id=command.context_copy_id,
        output_box_id=command.output_copy_id,
        runtime_config=settings,
        budget=command.request.budget,
        correlation_id=command.request.correlation_id,
    )
    return Enqueue(
        project_id=command.project_id,
        channel_id=command.channel_id,
        request=request,
        context_headers=command.context_headers,
        depth_limit=command.depth_limit,
        sender=command.caller.name,
        agent_turn_id=command.agent_turn_id,
        inbox_id=command.inbox_id,
        new_context_box_id=command.amended_box_id,
        new_output_box_id=command.output_copy_id,
        admission=command.admission,
        rerun=of,
        rerun_model=command.request.model or command.request.runtime_config.model,
        caller=command.caller,
        rerun_digest=command.request.digest(command.caller.name),
        known_config_card_id=known if settings.split()[1] == copied.config_text else None,
    )


def _before(copied: CopiedBoxes) -> tuple[CardId | None, JsonObject]:
    """The settings of the old turn, and the card that has their text."""
    settings = dict(copied.runtime_config)
    match settings.pop("card_id", None), copied.config_text:
        case str(card), dict(text):
            return CardId(card), settings | text
        case str(), _ if copied.verdict == "accepted":
            raise Refused("step_gone", _REFUSALS["step_gone"])
        case _:
            return None, settings


def _settings(request: RerunRequest, before: JsonObject) -> RuntimeConfig:
    try:
        settings = request.settings(before)
    except ValidationError:
        raise BadRequest("the settings of the turn and those of the request do not fit together") from None
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in settings.texts()) > TEXT_LIMIT_BYTES:
        raise Refused("text_too_large", f"text in a request is limited to {TEXT_LIMIT_BYTES} bytes")
    return settings
