"""The operators' verb `ledger.read`: rows of the subject's project, of all its channels (protocol §6).

It changes nothing. A list costs one or two statements; a turn's record costs five, and interrupts one more each. What
does not fit into one message is refused as `result_too_large`, but a box, which is read in pages of about `PAGE_BYTES`.
"""

from turnstile.bridge.budgets.budget_verbs import budget_page
from turnstile.bridge.people.interrupt_reads import interrupt_page
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.budgets.budget_views import (
    budget_id_of,
    get_budget,
    list_budgets_of_turn,
    list_charged_turns,
    list_turns_of_tree,
)
from turnstile.ledger.people.interrupt_views import get_interrupt
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import find_thread, list_threads
from turnstile.ledger.roster import get_profile
from turnstile.ledger.trees.tree_views import tree
from turnstile.ledger.turns.boxes import agent_boxes
from turnstile.ledger.turns.cards import get_card, page_of_box
from turnstile.ledger.turns.usage import sum_usage
from turnstile.ledger.turns.views import (
    describe_turn,
    find_conversations,
    find_turns,
    list_calls,
    list_conversation_turns,
    list_conversations,
    list_inbox,
    list_steps,
    list_turns,
)
from turnstile.schema.budgets.budget_requests import BudgetListRequest, BudgetRequest
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ChannelId, ConversationId, InterruptId, ProjectId
from turnstile.schema.ledger_reads import (
    BoxRead,
    ConversationName,
    ConversationsRead,
    InboxRead,
    MemoryRead,
    ProfileRead,
    ReadReply,
    ReadRequest,
    SaidRead,
    ThreadsRead,
    TurnRead,
    TurnsRead,
    UsageRead,
)
from turnstile.schema.people.interrupt_requests import InterruptListRequest, InterruptRequest, InterruptView
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.descriptions import TurnView

PAGE_BYTES = 1_000_000
"""Of the contents of cards in one reply, if it has more than one card."""
_TREE = 2000
"""Turns of a tree in one reply."""
_CANDIDATES = 5
"""Turns listed in the error if the beginning of an id fits several."""


class LedgerReads:
    """The verb over one ledger."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def ledger_read(self, request: VerbRequest) -> ReadReply:
        """What the request names; raises as `answer` does."""
        return await self.answer(request.project_id, request.channel_id, request.parse(ReadRequest))

    async def answer(self, project: ProjectId, channel: ChannelId, body: ReadRequest) -> ReadReply:
        """What the request names; raises `Refused` (`unknown_…`, `ambiguous_turn`) or `BadRequest`.

        Only an agent's memory is of the `channel`.
        """
        match body:
            case ReadRequest(turn=TurnRead() as one):
                return await self._turn(project, one)
            case ReadRequest(turns=TurnsRead() as page):
                return await self._turns(project, channel, page)
            case ReadRequest(inbox=InboxRead() as page):
                return await self._inbox(project, channel, page)
            case ReadRequest(box=BoxRead() as page):
                return await self._box(project, page)
            case ReadRequest(memory=MemoryRead(agent_id=agent)):
                boxes = await self._pool.run(lambda conn: agent_boxes(conn, project, channel, agent))
                return ReadReply(status=ReplyStatus.ACCEPTED, memory=boxes)
            case ReadRequest(conversations=ConversationsRead() as page):
                return await self._conversations(project, page)
            case ReadRequest(said=SaidRead() as page):
                return await self._said(project, page)
            case ReadRequest(threads=ThreadsRead() as page):
                return await self._threads(project, page)
            case _:
                return await self._other(project, body)

    async def _other(self, project: ProjectId, body: ReadRequest) -> ReadReply:
        """What is of no agent: profiles, money and people."""
        match body:
            case ReadRequest(profile=ProfileRead(name=profile)):
                stored = await get_profile(self._pool, project, profile)
                return ReadReply(status=ReplyStatus.ACCEPTED, profile=stored)
            case ReadRequest(usage=UsageRead() as sums):
                return await self._usage(project, sums)
            case ReadRequest(budgets=BudgetListRequest() as page):
                read = await budget_page(self._pool, project, None, page)
                return ReadReply(status=ReplyStatus.ACCEPTED, budgets=read.budgets, limits=read.limits, next=read.next)
            case ReadRequest(budget=BudgetRequest(budget_id=name)):
                return ReadReply(status=ReplyStatus.ACCEPTED, budget=await self._budget(project, name))
            case ReadRequest(interrupts=InterruptListRequest() as page):
                return await self._interrupts(project, page)
            case ReadRequest(interrupt=InterruptRequest(interrupt_id=interrupt)):
                if (view := await self._interrupt(project, interrupt)) is None:
                    raise Refused("unknown_interrupt", f"project {project} has no question {interrupt!r}")
                return ReadReply(status=ReplyStatus.ACCEPTED, interrupt=view)
            case _:
                raise BadRequest("ledger.read names exactly one kind of row to read")

    async def _known(self, project: ProjectId, channel: ChannelId, agent: AgentId | None) -> None:
        """Raise `Refused` (unknown_agent) if an agent is named that the project does not have."""
        if agent is not None:
            await self._pool.run(lambda conn: agent_boxes(conn, project, channel, agent))

    async def _find(self, project: ProjectId, named: str) -> TurnView | None:
        """The turn of this id, or the only one whose id begins so; raises `Refused` (ambiguous_turn) for several."""
        exact = await self._pool.run(lambda conn: describe_turn(conn, project, AgentTurnId(named)))
        if exact is not None:
            return exact
        turns = await self._pool.run(lambda conn: find_turns(conn, project, named, row_limit=_CANDIDATES + 1))
        if len(turns) > 1:
            candidates = [*turns[:_CANDIDATES], *(["…"] if len(turns) > _CANDIDATES else [])]
            raise Refused("ambiguous_turn", "\n".join((f"several turns begin with {named!r}", *candidates)))
        return await self._pool.run(lambda conn: describe_turn(conn, project, turns[0])) if turns else None

    async def _require(self, project: ProjectId, named: str) -> TurnView:
        view = await self._find(project, named)
        if view is None:
            raise Refused("unknown_turn", f"project {project} has no turn {named!r}")
        return view

    async def _turn(self, project: ProjectId, body: TurnRead) -> ReadReply:
        run, view = self._pool.run, await self._require(project, body.agent_turn_id)
        turn, reply = view.agent_turn_id, ReadReply(status=ReplyStatus.ACCEPTED, turn=view)
        if body.record:
            steps = await run(lambda conn: list_steps(conn, project, turn))
            calls = await run(lambda conn: list_calls(conn, project, turn))
            budgets = [] if view.budget is None else await run(lambda conn: list_budgets_of_turn(conn, project, turn))
            names = (view.deliverable_card_id, *(CardId(steer.steer_id) for steer in view.steers or ()))
            cards = [await run(lambda conn, name=name: get_card(conn, project, name)) for name in names if name]
            record = {
                "steps": tuple(steps),
                "calls": tuple(calls),
                "budgets": tuple(budgets),
                "outside": tuple(card for card in cards if card is not None),
            }
            reply = reply.model_copy(update=record)
        if body.tree:
            nodes = await run(lambda conn: tree(conn, project, turn, after=body.after, row_limit=_TREE + 1))
            after = nodes[_TREE - 1].agent_turn_id if len(nodes) > _TREE else None
            reply = reply.model_copy(update={"tree": tuple(nodes[:_TREE]), "next": after})
        return reply

    async def _turns(self, project: ProjectId, channel: ChannelId, page: TurnsRead) -> ReadReply:
        await self._known(project, channel, page.agent_id)
        rows = await self._pool.run(lambda conn: list_turns(conn, project, page.agent_id, row_limit=page.limit))
        return ReadReply(status=ReplyStatus.ACCEPTED, turns=tuple(rows))

    async def _inbox(self, project: ProjectId, channel: ChannelId, page: InboxRead) -> ReadReply:
        await self._known(project, channel, page.agent_id)
        rows = await self._pool.run(
            lambda conn: list_inbox(conn, project, page.agent_id, page.status, row_limit=page.limit)
        )
        return ReadReply(status=ReplyStatus.ACCEPTED, inbox=tuple(rows))

    async def _box(self, project: ProjectId, page: BoxRead) -> ReadReply:
        read = await self._pool.run(
            lambda conn: page_of_box(conn, project, page.box_id, after=page.after, most_bytes=PAGE_BYTES)
        )
        if read is None:
            raise Refused("unknown_box", f"project {project} has no box {page.box_id}")
        return ReadReply(status=ReplyStatus.ACCEPTED, cards=tuple(read[0]), next=read[1])

    async def _conversations(self, project: ProjectId, page: ConversationsRead) -> ReadReply:
        channel = None if page.channel_id is None else ChannelId(page.channel_id)
        named = None if page.conversation_id is None else ConversationId(page.conversation_id)
        if named is None:
            rows = await self._pool.run(
                lambda conn: list_conversations(conn, project, page.agent_id, channel, row_limit=page.limit)
            )
        else:
            rows = await self._pool.run(
                lambda conn: find_conversations(conn, project, named, page.agent_id, channel, row_limit=page.limit)
            )
        return ReadReply(status=ReplyStatus.ACCEPTED, conversations=tuple(rows))

    async def _said(self, project: ProjectId, page: SaidRead) -> ReadReply:
        name = ConversationName(page.agent_id, ConversationId(page.conversation_id), ChannelId(page.channel_id))
        turns = await self._pool.run(lambda conn: list_conversation_turns(conn, project, name, row_limit=page.limit))
        return ReadReply(status=ReplyStatus.ACCEPTED, said=tuple(turns))

    async def _threads(self, project: ProjectId, page: ThreadsRead) -> ReadReply:
        if (thread := page.thread_id) is None:
            rows = await self._pool.run(lambda conn: list_threads(conn, project, page.status, row_limit=page.limit))
            return ReadReply(status=ReplyStatus.ACCEPTED, threads=tuple(rows))
        line = await self._pool.run(lambda conn: find_thread(conn, project, thread))
        if line is None:
            raise Refused("unknown_thread", f"project {project} has no thread {thread!r}")
        return ReadReply(status=ReplyStatus.ACCEPTED, threads=(line,))

    async def _usage(self, project: ProjectId, body: UsageRead) -> ReadReply:
        run, about, turns = self._pool.run, None, None
        if body.tree is not None:
            about = turn = (await self._require(project, body.tree)).agent_turn_id
            turns = await run(lambda conn: list_turns_of_tree(conn, project, turn))
        elif body.budget_id is not None:
            about = budget = (await self._budget(project, body.budget_id)).budget_id
            turns = await run(lambda conn: list_charged_turns(conn, project, budget))
        lines = await run(lambda conn: sum_usage(conn, project, body.by, since=body.since, turns=turns))
        return ReadReply(status=ReplyStatus.ACCEPTED, usage=tuple(lines), about=about)

    async def _budget(self, project: ProjectId, name: str) -> BudgetView:
        budget = await self._pool.run(lambda conn: budget_id_of(conn, project, name))
        view = await self._pool.run(lambda conn: get_budget(conn, project, budget))
        if view is None and (turn := await self._find(project, budget)) is not None:
            of_turn = BudgetId(turn.agent_turn_id)
            view = await self._pool.run(lambda conn: get_budget(conn, project, of_turn))
        if view is None:
            raise Refused("unknown_budget", f"project {project} has no budget {name!r}")
        return view

    async def _interrupts(self, project: ProjectId, page: InterruptListRequest) -> ReadReply:
        read = await interrupt_page(self._pool, project, None, page)
        views = [await self._interrupt(project, line.interrupt_id) for line in read.interrupts]
        interrupts = tuple(view for view in views if view is not None)
        return ReadReply(status=ReplyStatus.ACCEPTED, interrupts=interrupts, next=read.next)

    async def _interrupt(self, project: ProjectId, named: InterruptId) -> InterruptView | None:
        return await self._pool.run(lambda conn: get_interrupt(conn, project, named, with_added=True))
