"""Forks a turn: batches, their tasks and the children (protocol §6, join).

Guarantees: a child is made only while its parent's call waits, by the lock of the parent's head, and never under a
mark. The batch and its tasks commit first, then the children, at most 200 a statement; a repeat of either finds what is
there, so whatever was cut off is gone on with by the same call. The batch is decided once, in the transaction of
whatever decides it. Each statement is one round trip. Never publishes: the caller rings for `Forked.rings`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from pydantic import Field, Json

from turnstile.ledger.budgets.steering import EXCEEDED, exceeded
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.trees.marks import rings_of
from turnstile.ledger.turns.cards import new_card
from turnstile.rules.turn_ends import Lease, NewLease
from turnstile.runtime.faults import Fault, hit
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card
from turnstile.schema.delegation.arguments import Join, Losers
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, InboxId, ProjectId, ToolCallId
from turnstile.schema.wire import headers
from turnstile.schema.wire.headers import ContextHeaders

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

CHILDREN_AT_ONCE = 200
"""Children that one statement enqueues: it bounds how long the parent's head is locked."""

_REFUSALS = {
    "unknown_call": "the project has no such call",
    "parent_over": "the call waits no more: its turn is over, or it was answered",
    "parent_stopping": "the turn that asks is being stopped: it gets no more children",
    "not_your_batch": "the call has no such batch",
    "not_sent": "the call was not sent to its tool: it waits for something else first",
    "correlation_conflict": "another turn has the correlation of this child",
    "agent_inactive": "the agent is not active",
    "unknown_agent": "the project has no such agent",
    "unknown_output_box": "the output box is none of this project",
    "unknown_context_box": "a box to inherit from is none of this project",
    "queue_full": "too many turns wait for the agent",
    "project_full": "the project has too many turns queued and active",
    "upgrade_under_way": "a process of an earlier version runs, which does not know output_schema: again when all do",
}


class BatchAnswerForm(StrEnum):
    """What the parent's call is answered with."""

    JOIN = "join"
    """`{status, results: [...]}`, one result for each task."""
    CHILD = "child"
    """The result of the one child: `{status, value, error, …}` with its ids."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch waits for. `k` is the number of successes that decide it; 1 for `any`, ignored for `all`."""

    deadline_seconds: float
    join: Join = "all"
    k: int = 1
    fail_fast: bool = False
    losers: Losers = "stop"
    answer: BatchAnswerForm = BatchAnswerForm.JOIN
    partial_at_deadline: bool = False
    """Whether a deadline ends it as `partial` if any child succeeded; else it is a `timeout` (v1r4)."""
    summary_chars: int = 500
    """The most characters of a task's `summary`; fewer where there are very many tasks."""


class NewAgent(Tolerant):
    """The roster row of an agent that is made with its child; a repeat that finds the agent keeps it as it is."""

    worker_target: str
    tags: tuple[str, ...] = ()
    display_name: str | None = None
    owner_agent_id: AgentId | None = None
    metadata: JsonObject = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChildTurn:
    """A turn to make, with its new ids. `cards` come after what it inherits; their ids derive from `agent_turn_id`."""

    task_index: int
    agent_id: AgentId
    profile_box_id: BoxId
    agent_turn_id: AgentTurnId
    inbox_id: InboxId
    new_context_box_id: BoxId
    new_output_box_id: BoxId
    cards: Sequence[Card]
    """The instruction, the fields, `meta.parent_pointer`."""
    inherits: Sequence[BoxId] = ()
    """The boxes whose cards it gets, in order, each card once."""
    output_box_id: BoxId | None = None
    """An existing box to write into (`reuse`); by default the new one."""
    new_agent: NewAgent | None = None
    """None: the agent must exist."""
    label: str | None = None
    runtime_config: JsonObject | None = None
    needs_level: int | None = None
    """The level of the protocol that all who run must speak (protocol §18)."""
    budget: JsonObject | None = None
    """What it may spend of what its parent has left, as the ledger has it; None: the same as its parent."""
    traceparent: str | None = None
    """The span of which the child's is one; by default that of the turn that asks."""


@dataclass(frozen=True, slots=True)
class RefusedTask:
    """A task that cannot be made: it is failed from the start."""

    task_index: int
    error_code: str
    error: str
    agent_id: AgentId | None = None
    label: str | None = None


Task = ChildTurn | RefusedTask


@dataclass(frozen=True, slots=True)
class ForkLimits:
    """What an enqueue of children is held against; 0 means unlimited."""

    max_queued_turns: int = 0
    max_live_turns: int = 0
    """Of the project; for children already multiplied by the share that children have."""


UNLIMITED_FORK = ForkLimits()


class ParentCall(Tolerant):
    """A call that asks for children, with what its turn is and sees. `waits` is false once nobody needs an answer."""

    project_id: ProjectId
    tool_call_id: ToolCallId
    tool_name: str
    arguments: Json[JsonObject]
    waits: bool
    batch_id: str | None
    """Its batch, if it was forked before."""
    stopping: bool
    """Whether its turn is marked: every fork is refused as `parent_stopping`."""
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    step_id: str
    channel_id: ChannelId
    depth: int
    """Of the turn that asks; its children have one more."""
    worker_target: str
    context_headers: ContextHeaders
    profile_box_id: BoxId
    guards: Json[JsonObject] | None = None
    """The approval rules of the agent's own profile, where the turn has another one."""
    context_box_id: BoxId
    output_box_id: BoxId
    memory_context_box_id: BoxId | None
    last_output_box_id: BoxId | None
    deadline: datetime | None
    peer_card_id: CardId | None = None
    """The `tool.call` card of a call that a program of v1r4 made (protocol §12.11); None for one of a turn."""
    call_key: str | None = None
    """The name of a batch that the call's tool has under it (`under`); None for the call's own."""
    call_digest: str | None = None
    """The hash of what the tool asks by that name."""

    @property
    def origin(self) -> str:
        """What the batch, its children's correlations and its new agents are named after; equal in every repeat."""
        return self.tool_call_id if self.call_key is None else f"{self.tool_call_id}/{self.call_key}"

    def under(self, key: str, tool: str, arguments: JsonObject) -> "ParentCall":
        """What the call's tool asks of `tool` under it: a batch of this name, which does not hold the call."""
        digest = hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()
        return self.model_copy(update={"call_key": key, "call_digest": digest, "arguments": arguments})


class ForkedTask(Tolerant):
    """A task as it is in the ledger; `lease` if its agent was leased to it by the statement that returns this."""

    task_index: int
    status: str
    """pending (not enqueued yet) | dispatched (enqueued) | success | failed | canceled | timeout | partial"""
    agent_id: AgentId
    agent_turn_id: AgentTurnId | None
    turn_epoch: int | None
    inbox_id: InboxId | None
    context_box_id: BoxId | None
    output_box_id: BoxId | None
    error_code: str | None
    label: str | None = None
    lease: NewLease | None = None


class EnqueuedChild(Tolerant):
    """What one statement did with a child: `accepted`, or the code of why its task failed."""

    project_id: ProjectId
    task_index: int
    verdict: str
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    inbox_id: InboxId
    turn_epoch: int
    leased_at: datetime | None
    worker_target: str | None
    channel_id: ChannelId
    context_headers: ContextHeaders
    context_box_id: BoxId
    output_box_id: BoxId
    refusal: Json[JsonObject] | None
    """With the verdict `budget_exceeded`: what there was, and what was asked."""

    @property
    def lease(self) -> NewLease | None:
        """The lease to ring for; None if the child is queued or refused."""
        return None if self.leased_at is None else NewLease.model_validate(self.model_dump())


@dataclass(frozen=True, slots=True)
class Forked:
    """A batch after its fork, or after a repeat of it. The caller rings for `rings` and for the tasks' leases."""

    batch_id: str
    status: str
    """running | success | partial | failed | timeout | withdrawn"""
    tasks: Sequence[ForkedTask]
    rings: Sequence[Lease] = ()
    """Doorbells of what the fork decided itself: the parent's, if every task was refused."""


async def find_call(conn: Connection, project: ProjectId, call: ToolCallId) -> ParentCall | None:
    """The call, if the project has it and its turn is not removed."""
    return await query("find_call").opt_as(conn, ParentCall, project_id=project, tool_call_id=call)


class OwnBatch(Tolerant):
    """A batch that a tool has under its call. `result` once it is decided; None if it was withdrawn."""

    batch_id: str
    status: str
    """running | success | partial | failed | timeout | withdrawn"""
    call_digest: str | None
    result: Json[JsonObject] | None
    pending: bool
    """Whether children of it are not enqueued yet."""


async def find_own_batch(conn: Connection, call: ParentCall) -> OwnBatch | None:
    """The batch of this key, if the tool has opened it."""
    named = {"project_id": call.project_id, "batch_id": batch_of(call)}
    return await query("find_own_batch").opt_as(conn, OwnBatch, **named)


async def fork(
    pool: "Pool", call: ParentCall, batch: Batch, tasks: Sequence[Task], limits: ForkLimits = UNLIMITED_FORK
) -> Forked:
    """Make the call's batch and enqueue its children; a repeat goes on with those that are pending.

    Raises `Refused`: unknown_call, parent_over, parent_stopping, not_sent. A child that is refused at its enqueue fails
    its task alone. A round trip for the batch, one for each 200 children, and one for the answer.
    """
    await pool.run(lambda conn: open_batch(conn, call, batch, tasks))
    hit(Fault.BATCH_OPENED)
    batch_id = batch_of(call)
    children = sorted((task for task in tasks if isinstance(task, ChildTurn)), key=lambda t: t.task_index)
    leases: dict[int, NewLease] = {}
    for first in range(0, len(children), CHILDREN_AT_ONCE):
        some = children[first : first + CHILDREN_AT_ONCE]
        forked = await pool.run(lambda conn, some=some: enqueue_children(conn, call, some, batch_id, limits))
        hit(Fault.CHILDREN_ENQUEUED)
        leases |= {c.task_index: c.lease for c in forked if c.lease is not None}
    return await pool.run(lambda conn: _forked(conn, call, batch_id, leases))


async def open_batch(conn: Connection, call: ParentCall, batch: Batch, tasks: Sequence[Task]) -> bool:
    """Make the batch and its tasks, and hold the call if it is its own; False if the batch is there already."""
    plan = {
        "call_key": call.call_key,
        "call_digest": call.call_digest,
        "deadline_seconds": batch.deadline_seconds,
        "join_mode": batch.join,
        "k": batch.k,
        "fail_fast": batch.fail_fast,
        "losers": batch.losers,
        "answer": batch.answer,
        "partial_at_deadline": batch.partial_at_deadline,
        "summary_chars": batch.summary_chars,
        "peer_card_id": call.peer_card_id,
    }
    row = await query("open_batch").one(
        conn,
        project_id=call.project_id,
        tool_call_id=call.tool_call_id,
        plan=json.dumps(plan),
        tasks=json.dumps([_planned(task) for task in tasks]),
    )
    match row["verdict"]:
        case "accepted":
            return True
        case "duplicate":
            return False
        case refusal:
            raise Refused(refusal, _REFUSALS[refusal])


async def enqueue_children(
    conn: Connection, call: ParentCall, children: Sequence[ChildTurn], batch_id: str | None, limits: ForkLimits
) -> list[EnqueuedChild]:
    """Enqueue these children, of the batch those that are pending; returns what this statement enqueued or refused.

    Raises `Refused` if the parent may have none any more. Of a batch that is decided none is enqueued.
    """
    rows = await query("enqueue_children").many(
        conn,
        project_id=call.project_id,
        tool_call_id=call.tool_call_id,
        batch_id=batch_id,
        children=json.dumps([_child(call, child) for child in children]),
        max_queued_turns=limits.max_queued_turns,
        max_live_turns=limits.max_live_turns,
        peer_card_id=call.peer_card_id,
    )
    verdict = rows[0]["verdict"]
    if verdict != "accepted":
        raise Refused(verdict, _REFUSALS[verdict])
    return [EnqueuedChild.model_validate(dict(row) | {"project_id": call.project_id}) for row in rows[1:]]


async def delegate(pool: "Pool", call: ParentCall, child: ChildTurn, limits: ForkLimits = UNLIMITED_FORK) -> ForkedTask:
    """Enqueue a child that nobody waits for; a repeat returns the first one. Raises `Refused` with the code."""
    earlier = await pool.run(lambda conn: _delegated(conn, call, child))
    if earlier is not None:
        return earlier
    [forked] = await pool.run(lambda conn: enqueue_children(conn, call, [child], None, limits))
    hit(Fault.CHILDREN_ENQUEUED)
    if forked.verdict == "correlation_conflict":  # our own, whose answer was lost
        earlier = await pool.run(lambda conn: _delegated(conn, call, child))
        if earlier is not None:
            return earlier
    if forked.refusal is not None:
        raise Refused(EXCEEDED, exceeded(forked.refusal))
    if forked.verdict != "accepted":
        raise Refused(forked.verdict, _REFUSALS[forked.verdict])
    return ForkedTask(
        task_index=child.task_index,
        status="dispatched",
        agent_id=forked.agent_id,
        agent_turn_id=forked.agent_turn_id,
        turn_epoch=forked.turn_epoch,
        inbox_id=forked.inbox_id,
        context_box_id=forked.context_box_id,
        output_box_id=forked.output_box_id,
        error_code=None,
        label=child.label,
        lease=forked.lease,
    )


async def expire_batch(pool: "Pool", batch_id: str) -> bool:
    """Decide the batch if its deadline has passed or nobody waits for it; False if it is neither, or being decided."""
    row = await pool.run(lambda conn: query("expire_batch").one(conn, batch_id=batch_id))
    hit(Fault.BATCH_EXPIRED)
    return row["status"] is not None


def batch_of(call: ParentCall) -> str:
    """The id of the call's batch."""
    return f"batch-{call.origin}"


def correlation_of(call: ParentCall, task_index: int) -> str:
    """The correlation of the call's child."""
    return f"{call.origin}-{task_index}"


async def _forked(conn: Connection, call: ParentCall, batch_id: str, leases: dict[int, NewLease]) -> Forked:
    rows = await query("list_tasks").many(conn, project_id=call.project_id, batch_id=batch_id)
    tasks = [ForkedTask.model_validate(dict(row) | {"lease": leases.get(row["task_index"])}) for row in rows]
    status = rows[0]["batch_status"]
    return Forked(batch_id, status, tasks, () if status == "running" else await rings_of(conn, [batch_id]))


async def _delegated(conn: Connection, call: ParentCall, child: ChildTurn) -> ForkedTask | None:
    row = await query("find_delegated").opt(
        conn,
        project_id=call.project_id,
        correlation_id=correlation_of(call, child.task_index),
        parent_turn_id=call.agent_turn_id,
    )
    if row is None:
        return None
    known = dict(row) | {"task_index": child.task_index, "status": "dispatched", "error_code": None}
    return ForkedTask.model_validate(known | {"label": child.label})


def _planned(task: Task) -> JsonObject:
    match task:
        case ChildTurn():
            box: str | None = task.profile_box_id
            error: tuple[str | None, str | None] = (None, None)
        case RefusedTask():
            box, error = None, (task.error_code, task.error)
        case _:
            assert_never(task)
    named: JsonObject = {"task_index": task.task_index, "agent_id": task.agent_id or "", "label": task.label}
    return named | {"profile_box_id": box, "error_code": error[0], "error": error[1]}


def _child(call: ParentCall, child: ChildTurn) -> JsonObject:
    """A child as the statement reads it. Depth and lineage are the statement's own."""
    traceparent = child.traceparent or call.context_headers.get(headers.TRACEPARENT, "")
    conversation = call.context_headers.get(headers.CONVERSATION_ID, call.output_box_id)
    carried = {headers.TRACEPARENT: traceparent} | ({headers.CONVERSATION_ID: conversation} if conversation else {})
    context = headers.context_headers(carried | _tracestate(call))
    new = child.new_agent
    return {
        "task_index": child.task_index,
        "agent_id": child.agent_id,
        "profile_box_id": child.profile_box_id,
        "agent_turn_id": child.agent_turn_id,
        "inbox_id": child.inbox_id,
        "new_context_box_id": child.new_context_box_id,
        "new_output_box_id": child.new_output_box_id,
        "output_box_id": child.output_box_id,
        "inherits": list(child.inherits),
        "cards": [new_card(card) for card in child.cards],
        "new_agent": None if new is None else new.model_dump(mode="json"),
        "context_headers": dict(context),
        "runtime_config": child.runtime_config or {},
        "budget": child.budget,
        "needs_level": child.needs_level,
    }


def _tracestate(call: ParentCall) -> dict[str, str]:
    state = call.context_headers.get(headers.TRACESTATE)
    return {} if state is None else {headers.TRACESTATE: state}
