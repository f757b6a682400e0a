"""The bridge's verbs: one handler each, called for request/reply and for durable commands (protocol §6).

A handler commits, then publishes the commit's messages, then returns the reply. It raises to refuse a request;
`run_verb` turns the exception into a reply with its code.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import KW_ONLY, dataclass, replace

from turnstile.bridge.inbox.prompt_claims import PromptClaims, start_enqueued
from turnstile.bridge.people.multitask import MultitaskEnqueues
from turnstile.bridge.people.steering import steer_turn
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.publishing.stop import stop_turn
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.access.pages import PageCursor, page_turns
from turnstile.ledger.files.artifacts import file_parts
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.people.reruns import rerun_turn
from turnstile.ledger.people.unknown_calls import begin_call
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.tree_views import tree
from turnstile.ledger.turns.boxes import compose_box, fork_box, put_conversation, replace_boxes
from turnstile.ledger.turns.cards import get_card
from turnstile.ledger.turns.intake import enqueue_turn, planned, refuse_reserved
from turnstile.ledger.turns.views import describe_turn, find_conversations
from turnstile.ledger.turns.waiting import describe_call, report
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    ChannelId,
    ConversationId,
    ProjectId,
    forked_box_id,
    made_box_id,
    new_box_id,
)
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.people.steers import SteerReply
from turnstile.schema.states import MultitaskStrategy, ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.box_requests import (
    BoxForkReply,
    BoxForkRequest,
    BoxMakeReply,
    BoxMakeRequest,
    BoxReplaceReply,
    BoxReplaceRequest,
)
from turnstile.schema.wire.conversation_requests import (
    ConversationPutReply,
    ConversationPutRequest,
    ConversationStopReply,
    ConversationStopRequest,
)
from turnstile.schema.wire.descriptions import DescribeReply
from turnstile.schema.wire.inbox import (
    DescribeRequest,
    EnqueueReply,
    EnqueueRequest,
    ReportReply,
    ReportRequest,
    RerunReply,
    StopReply,
    StopRequest,
)
from turnstile.schema.wire.limits import UNLIMITED, Admission, rate_limited

SHARE = 100
"""Each bridge may exceed the limit by one part in `SHARE`; a limit below twice `SHARE` is never exceeded."""
MAX_PROJECTS = 10_000
MOST_STOPPED = 100
"""Turns of a conversation that one request stops."""


class AdmissionCache:
    """The number of enqueues that each project has left before live turns are counted again (docs/limits.md).

    A count reads one row for each live turn. After a count that is below the limit, the next enqueues, a hundredth of
    the limit, pass without a count. If more than `MAX_PROJECTS` projects enqueue, those that counted longest ago are
    forgotten, and their next enqueue counts again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spare: OrderedDict[ProjectId, int] = OrderedDict()

    def limit_for(self, project: ProjectId) -> int:
        """The limit that the next enqueue must check, or 0 if it needs no count."""
        if (spare := self._spare.pop(project, 0)) == 0:
            return self._limit
        if spare > 1:
            self._spare[project] = spare - 1
        return 0

    def found(self, project: ProjectId) -> None:
        """Record that a count found the project below its limit."""
        if (spare := self._limit // SHARE - 1) > 0:
            self._spare[project] = spare
            if len(self._spare) > MAX_PROJECTS:
                self._spare.popitem(last=False)


@dataclass
class Verbs:
    """The verbs over one ledger."""

    pool: Pool
    publisher: Publisher
    _: KW_ONLY
    depth_limit: int
    admission: Admission = UNLIMITED
    telemetry: Telemetry = SILENT
    claims: PromptClaims | None = None
    """Starts turns that their enqueue has claimed; without it all are left to a claim."""

    def __post_init__(self) -> None:
        self._counts = AdmissionCache(self.admission.max_live_turns)
        self._over = MultitaskEnqueues(self.pool, self.publisher, self.telemetry)

    async def enqueue(self, request: VerbRequest) -> EnqueueReply:
        """Create a turn; a command that is delivered twice creates one."""
        body = request.parse(EnqueueRequest)
        if body.agent_id is not None:
            _same(request, headers.AGENT_ID, body.agent_id)
        if body.runtime_config.client_tools and request.caller is None:
            raise Refused("principal_required", "client_tools: the subject must name the caller, who runs their calls")
        if body.correlation_id is None and request.command_id is not None:
            body = body.model_copy(update={"correlation_id": f"command-{request.command_id}"})
        if request.wait_seconds and body.correlation_id is None:
            raise rate_limited(request.wait_seconds)  # without an id it cannot be a repeat, so it is not looked up
        files = body.files
        parts = await self.pool.run(lambda conn: file_parts(conn, request.project_id, files)) if files else ()
        limit = self._counts.limit_for(request.project_id)
        command = planned(
            request.project_id,
            request.channel_id,
            body,
            request.headers,
            depth_limit=self.depth_limit,
            sender=request.headers.get(headers.SENDER, "client")[:128],
            admission=replace(self.admission, wait_seconds=request.wait_seconds, max_live_turns=limit),
            caller=request.caller,
            files=parts,
        )
        if body.multitask_strategy is MultitaskStrategy.ENQUEUE:
            targets = () if self.claims is None else self.claims.targets()
            enqueued = await self.pool.run(lambda conn: enqueue_turn(conn, command, targets))
            hit(Fault.ENQUEUE_COMMITTED)
        else:
            enqueued = await self._over.enqueue(command, request.caller)
        if limit and headers.PARENT_TURN_ID not in request.headers:  # a child has a higher limit
            self._counts.found(request.project_id)
        await start_enqueued(enqueued, self.claims, self.publisher)
        hit(Fault.ENQUEUE_PUBLISHED)
        return enqueued.reply

    async def describe(self, request: VerbRequest) -> DescribeReply:
        """Describe a turn or card of the caller's channel, or a call of its project; raises `Refused` if there is none.

        A tool serves all channels of its project, and names a call by its id alone.
        """
        body, channel = request.parse(DescribeRequest), request.channel_id
        match body:
            case DescribeRequest(agent_turn_id=None, card_id=str() as card_id, tool_call_id=None):
                card = await self.pool.run(lambda conn: get_card(conn, request.project_id, card_id, channel))
                if card is None:
                    raise Refused("unknown_card", "the channel has no such card")
                return DescribeReply(status=ReplyStatus.ACCEPTED, card=card)
            case DescribeRequest(agent_turn_id=str() as turn_id, card_id=None, tool_call_id=None):
                turn = await self.pool.run(lambda conn: describe_turn(conn, request.project_id, turn_id))
                if turn is None or turn.channel_id != channel:
                    raise Refused("unknown_turn", "the channel has no such turn")
                if not body.tree:
                    return DescribeReply(status=ReplyStatus.ACCEPTED, turn=turn)
                nodes = await self.pool.run(lambda conn: tree(conn, request.project_id, turn_id, channel=channel))
                return DescribeReply(
                    status=ReplyStatus.ACCEPTED,
                    turn=turn,
                    tree=tuple(nodes),
                )
            case DescribeRequest(agent_turn_id=None, card_id=None, tool_call_id=str() as call_id):
                call = await self.pool.run(lambda conn: describe_call(conn, request.project_id, call_id))
                if call is None:
                    raise Refused("unknown_call", "the project has no such call")
                if (begins := body.begins) is not None:
                    may = await self.pool.run(lambda conn: begin_call(conn, request.project_id, call_id, begins))
                    hit(Fault.CALL_BEGUN)
                    call = call.model_copy(update={"may_run": may})
                return DescribeReply(status=ReplyStatus.ACCEPTED, call=call)
            case _:
                raise BadRequest("describe takes exactly one of agent_turn_id, card_id and tool_call_id")

    async def report(self, request: VerbRequest) -> ReportReply:
        """Store a tool's report on a call; a refused report is recorded in `state.rejections`."""
        ids = {"tool_call_id": _claimed_call(request)}
        try:
            body = request.parse(ReportRequest)
            ids = {"tool_call_id": body.tool_call_id, "tool_result_card_id": body.tool_result_card_id or ""}
            _same(request, headers.TOOL_CALL_ID, body.tool_call_id)
            reported = await report(self.pool, request.project_id, body, request.headers)
        except (Refused, BadRequest) as error:
            await self._reject(request, error, ids)
            raise
        hit(Fault.REPORT_COMMITTED)
        if (lease := reported.ring) is not None:
            await publish_best_effort(self.publisher, lease.doorbell(SENDER, "report"))
        hit(Fault.REPORT_PUBLISHED)
        return reported.reply

    async def stop(self, request: VerbRequest) -> StopReply:
        """End a turn, whatever its status is (protocol §6, stop)."""
        body = request.parse(StopRequest)
        _same(request, headers.TURN_ID, body.agent_turn_id)
        return await stop_turn(
            self.pool,
            self.publisher,
            request.project_id,
            body,
            self.telemetry,
            channel=request.channel_id,
            caller=request.caller,
        )

    async def conversation_stop(self, request: VerbRequest) -> ConversationStopReply:
        """Stop the turns of a conversation that are not over, the newest first: so none of them begins meanwhile."""
        caller, body = request.named_caller(), request.parse(ConversationStopRequest)
        project, channel = request.project_id, request.channel_id
        conversation, agent = body.conversation_id, body.agent_id
        if not await self.pool.run(
            lambda conn: find_conversations(conn, project, conversation, agent, channel, row_limit=1)
        ):
            raise Refused("unknown_conversation", "the channel has no such conversation")
        stopped, others = list[AgentTurnId](), 0
        async for turn in self._unended(project, channel, conversation, agent):
            if len(stopped) == MOST_STOPPED:
                return ConversationStopReply(
                    status=ReplyStatus.ACCEPTED, stopped=tuple(stopped), others=others, more=True
                )
            stop = StopRequest(agent_turn_id=turn, reason=body.reason)
            try:
                await stop_turn(
                    self.pool, self.publisher, project, stop, self.telemetry, channel=channel, caller=caller
                )
            except Refused as error:
                if error.code != "not_yours":
                    raise
                others += 1
            else:
                stopped.append(turn)
        return ConversationStopReply(status=ReplyStatus.ACCEPTED, stopped=tuple(stopped), others=others)

    async def _unended(
        self, project: ProjectId, channel: ChannelId, conversation: ConversationId, agent: AgentId | None
    ) -> AsyncGenerator[AgentTurnId]:
        """The turns of a conversation that are not over, the newest first; ends at a page on which all are."""
        place: PageCursor | None = None
        while True:
            page = await self.pool.run(
                lambda conn, place=place: page_turns(
                    conn,
                    project,
                    channel=channel,
                    agent=agent,
                    conversation=conversation,
                    before=place,
                    row_limit=MOST_STOPPED,
                )
            )
            unended = [turn.agent_turn_id for turn in page if turn.ended_at is None]
            for turn in unended:
                yield turn
            if not unended:
                return
            place = PageCursor(page[-1].created_at, page[-1].agent_turn_id)

    async def steer(self, request: VerbRequest) -> SteerReply:
        """Say something to a turn while it runs (protocol §6, steer)."""
        return await steer_turn(self.pool, self.publisher, request)

    async def rerun(self, request: VerbRequest) -> RerunReply:
        """Run a turn again from one of its steps."""
        limit = self._counts.limit_for(request.project_id)
        admission = replace(self.admission, wait_seconds=request.wait_seconds, max_live_turns=limit)
        turn = await run_again(self.pool, self.publisher, request, depth_limit=self.depth_limit, admission=admission)
        if limit:
            self._counts.found(request.project_id)
        return turn

    async def box_fork(self, request: VerbRequest) -> BoxForkReply:
        """Copy a box; a command that is delivered twice makes one copy."""
        body = request.parse(BoxForkRequest)
        name = body.correlation_id or (request.command_id and f"command-{request.command_id}")
        new_box = forked_box_id(request.project_id, name) if name else new_box_id()
        maker = request.maker(self.admission)
        copied = await self.pool.run(
            lambda conn: fork_box(conn, request.project_id, request.channel_id, body.box_id, new_box, maker)
        )
        hit(Fault.BOX_FORKED)
        return BoxForkReply(status=ReplyStatus.ACCEPTED, box_id=new_box, duplicate=not copied and name is not None)

    async def box_make(self, request: VerbRequest) -> BoxMakeReply:
        """Make a box of parts; a command that is delivered twice makes one."""
        body = request.parse(BoxMakeRequest)
        name = body.correlation_id or (request.command_id and f"command-{request.command_id}")
        box = made_box_id(request.project_id, name) if name else new_box_id()
        author, maker = request.headers.get(headers.SENDER, "client")[:128], request.maker(self.admission)
        cards, is_new = await self.pool.run(
            lambda conn: compose_box(conn, request.project_id, request.channel_id, body, box, author, maker)
        )
        hit(Fault.BOX_MADE)
        return BoxMakeReply(
            status=ReplyStatus.ACCEPTED, box_id=box, cards=cards, duplicate=not is_new and name is not None
        )

    async def box_replace(self, request: VerbRequest) -> BoxReplaceReply:
        """Set which boxes an agent's pointers name."""
        body = request.parse(BoxReplaceRequest)
        _same(request, headers.AGENT_ID, body.agent_id)
        boxes = await self.pool.run(lambda conn: replace_boxes(conn, request.project_id, request.channel_id, body))
        hit(Fault.BOX_REPLACED)
        return BoxReplaceReply(status=ReplyStatus.ACCEPTED, **boxes.model_dump())

    async def conversation_put(self, request: VerbRequest) -> ConversationPutReply:
        """Make a conversation, or change it between turns."""
        body, box = request.parse(ConversationPutRequest), new_box_id()
        put = await self.pool.run(
            lambda conn: put_conversation(
                conn, request.project_id, request.channel_id, body, box, request.maker(self.admission)
            )
        )
        hit(Fault.CONVERSATION_PUT)
        return put

    async def _reject(self, request: VerbRequest, error: Refused | BadRequest, ids: dict[str, str]) -> None:
        source = f"{request.source}:{request.headers.get(headers.SENDER, 'client')}"
        why = f"{request.verb}: {error}"
        await self.pool.run(lambda conn: reject(conn, request.project_id, source, error.code, why, ids))


def _claimed_call(request: VerbRequest) -> str:
    """The call id in a report, for its row in `state.rejections`; empty if it cannot be read."""
    try:
        claimed = request.payload.read().get("tool_call_id")
    except BadRequest:
        claimed = None
    return (claimed if isinstance(claimed, str) else request.headers.get(headers.TOOL_CALL_ID, ""))[:128]


def _same(request: VerbRequest, header: str, argument: str) -> None:
    """Raise `BadRequest` if header and argument name different things (protocol §5)."""
    named = request.headers.get(header)
    if named is not None and named != argument:
        raise BadRequest(f"header {header} and the payload name different things")


async def run_again(
    pool: Pool, publisher: Publisher, request: VerbRequest, *, depth_limit: int, admission: Admission
) -> RerunReply:
    """Run a turn again; raises as `ledger.people.reruns.rerun_turn` does, and `BadRequest` if no caller is named."""
    caller, body = request.named_caller(), request.parse(RerunRequest)
    refuse_reserved(body.correlation_id)
    if request.wait_seconds and body.correlation_id is None:
        raise rate_limited(request.wait_seconds)  # without an id it cannot be a repeat, so it is not looked up
    enqueued, of = await rerun_turn(
        pool,
        request.project_id,
        request.channel_id,
        body,
        caller,
        request.headers,
        depth_limit=depth_limit,
        admission=admission,
    )
    hit(Fault.RERUN_COMMITTED)
    if (lease := enqueued.lease) is not None:
        await publish_best_effort(publisher, lease.dispatched(SENDER), lease.doorbell(SENDER, "enqueue"))
    hit(Fault.RERUN_PUBLISHED)
    return RerunReply.model_validate({**enqueued.reply.model_dump(), "rerun_of": of.of, "from_step": of.from_step})
