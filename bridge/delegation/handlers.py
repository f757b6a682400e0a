"""Runs delegating calls (protocol §12): provisions an agent, makes one child, forks a batch, or puts a wake (§20).

A handler commits, publishes what the commit says, and returns the call's result; None if the call waits for a batch,
whose decision answers it. It raises `DelegationRefused` or `Refused` for what is refused. A repeat makes nothing twice.
`child_of` and `tasks_of` are pure: they plan the children with their ids and cards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import assert_never

from pydantic import BaseModel

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.delegation.provision import ProvisionCaller, provision_agent
from turnstile.ledger.delegation.targets import Kind, Target, find_targets, policy_of, references
from turnstile.ledger.pool import Pool
from turnstile.ledger.schedules import put_wake, time_name
from turnstile.ledger.trees.batches import (
    Batch,
    BatchAnswerForm,
    ChildTurn,
    ForkedTask,
    ForkLimits,
    NewAgent,
    ParentCall,
    RefusedTask,
    delegate,
    fork,
)
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.cards import Card, CardType, FieldsSchemaContent, JsonContent, Role, TextContent, make_card
from turnstile.schema.delegation.arguments import (
    Arguments,
    DelegateArguments,
    ExpertArguments,
    ForkArguments,
    ForkTask,
    LaunchArguments,
    TaskArguments,
    WakeArguments,
    arguments_of,
)
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.delegation.provision import ProvisionArguments, provision_arguments
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.errors import Refused
from turnstile.schema.ids import (
    AgentTurnId,
    BoxId,
    InboxId,
    StepId,
    new_box_id,
    spawned_agent_id,
    turn_card_id,
    uuid7,
)
from turnstile.schema.message_types import TYPED_ANSWERS
from turnstile.schema.tools import PmoTool
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES
from turnstile.schema.wire.limits import PROJECT_FULL_FOR_CHILDREN, UNLIMITED, Admission
from turnstile.schema.wire.roster_requests import INSTANCE_OF

AUTHOR = "sys.pmo"
"""The author of a child's instruction; v1r4's orchestrator is called so."""


@dataclass(frozen=True, slots=True)
class DelegatingCall:
    """The call, its caller's policy, and what its tasks name."""

    call: ParentCall
    policy: DelegationPolicy | None
    targets: Mapping[tuple[Kind, str], Target]
    depth_limit: int
    waits: bool
    """Whether the call is answered by what its tasks come to."""

    @property
    def boxes(self) -> set[BoxId]:
        """The boxes that the caller may let a child read: those that v1r4 lets it see."""
        call = self.call
        seen = (
            *(call.profile_box_id, call.context_box_id, call.output_box_id),
            *(call.memory_context_box_id, call.last_output_box_id),
        )
        return {box for box in seen if box}

    @property
    def too_deep(self) -> bool:
        """Whether a child would be deeper than turns may be (protocol §2.11)."""
        return self.call.depth + 1 >= self.depth_limit


def check_texts(tool: str, tasks: Sequence[TaskArguments]) -> None:
    """Raise `DelegationRefused` (text_too_large) if the tasks have more text than a request may have."""
    if sum(task.text_bytes() for task in tasks) > TEXT_LIMIT_BYTES:
        raise DelegationRefused("text_too_large", f"{tool}: text in a request is limited to {TEXT_LIMIT_BYTES} bytes")


def child_of(caller: DelegatingCall, tool: str, task: TaskArguments, index: int = 0) -> ChildTurn:
    """The child that does the task; raises `DelegationRefused`. `tool` begins the sentence of a refusal."""
    target = _target(caller, tool, task)
    inherits = _inherited(caller, tool, task, target)
    call, turn = caller.call, AgentTurnId(uuid7())
    reuses = task.target_strategy == "reuse"
    profile_box, profile = target.profile_box_id or BoxId(""), target.profile_name or ""
    return ChildTurn(
        task_index=index,
        agent_id=target.agent_id
        if reuses and target.agent_id is not None
        else spawned_agent_id(profile, call.origin, index),
        profile_box_id=profile_box,
        agent_turn_id=turn,
        inbox_id=InboxId(uuid7()),
        new_context_box_id=new_box_id(),
        new_output_box_id=new_box_id(),
        cards=_cards(call, task, turn),
        inherits=inherits,
        output_box_id=target.output_box_id if reuses else None,
        new_agent=None if reuses else _new_agent(call, task, target, turn),
        label=task.label if isinstance(task, ForkTask) else None,
        runtime_config=None if task.output_schema is None else {"card_id": turn_card_id(turn, "config")},
        needs_level=None if task.output_schema is None else TYPED_ANSWERS,
        budget=_budget(task, target),
        traceparent=headers.derived_span(call.context_headers.get(headers.TRACEPARENT, ""), call.tool_call_id),
    )


def tasks_of(
    caller: DelegatingCall, tool: str, tasks: Sequence[ForkTask], *, alone: bool
) -> list[ChildTurn | RefusedTask]:
    """The tasks of a batch in their order; `alone`: a bad task fails alone, else it raises `DelegationRefused`."""
    planned: list[ChildTurn | RefusedTask] = []
    reused: set[str] = set()
    for index, task in enumerate(tasks):
        try:
            _check_reuse(tool, task, reused)
            child = child_of(caller, tool, task, index)
        except DelegationRefused as error:
            if not alone:
                raise
            planned.append(RefusedTask(task_index=index, error_code=error.reason, error=str(error), label=task.label))
        else:
            planned.append(_too_deep(child) if caller.too_deep else child)
    return planned


def _check_reuse(tool: str, task: ForkTask, reused: set[str]) -> None:
    """Raise `DelegationRefused` for an agent that another task of the batch asks (v1r4); else remember it."""
    if task.target_strategy != "reuse":
        return
    if task.target_ref in reused:
        what = f"{tool}: duplicate reuse target agent_id in batch: {task.target_ref}"
        raise DelegationRefused("duplicate_agent", what)
    reused.add(task.target_ref)


def _too_deep(child: ChildTurn) -> RefusedTask:
    return RefusedTask(
        task_index=child.task_index,
        error_code="recursion_depth_exceeded",
        error="the chain of agents that ask each other is too deep",
        agent_id=child.agent_id,
        label=child.label,
    )


def _target(caller: DelegatingCall, tool: str, task: TaskArguments) -> Target:
    """Whom the task names, if the caller's policy allows that."""
    new = task.target_strategy == "new"
    target = caller.targets.get(("profile" if new else "agent", task.target_ref))
    if target is None or (not new and target.agent_id is None):
        if not new:
            raise DelegationRefused("unknown_agent", f"{tool}: target agent not found: {task.target_ref}")
        target = None
    if target is None or target.profile_box_id is None or target.profile_name is None:
        raise DelegationRefused("unknown_profile", f"{tool}: profile not found: {task.target_ref}")
    if not new and caller.waits and task.target_strategy == "reuse" and target.is_above:
        what = f"{tool}: {task.target_ref} waits for this call itself: ask another agent, or delegate without wait"
        raise DelegationRefused("waits_for_itself", what)
    if caller.policy is None:
        raise DelegationRefused("delegation_denied", "delegation denied: caller profile missing delegation_policy")
    if not caller.policy.allows(target.profile_name, target.tags):
        what = f"delegation denied by policy: target={target.profile_name!r} tags={target.tags!r}"
        raise DelegationRefused("delegation_denied", what)
    return target


def _inherited(caller: DelegatingCall, tool: str, task: TaskArguments, target: Target) -> tuple[BoxId, ...]:
    """The boxes that the child reads, each once; of a clone also the one where its source writes."""
    boxes: list[BoxId] = []
    if task.context_box_id is not None:
        boxes.append(task.context_box_id)
    allowed = caller.boxes
    if task.target_strategy == "clone":
        if target.output_box_id is None:
            what = f"{tool}: source output_box missing for agent {task.target_ref}"
            raise DelegationRefused("missing_output_box", what)
        boxes.append(target.output_box_id)
        allowed.add(target.output_box_id)
    for box in boxes:
        if box not in allowed:
            raise DelegationRefused("unauthorized_box", f"inherit_context: unauthorized box_id: {box}")
    return tuple(dict.fromkeys(boxes))


def _budget(task: TaskArguments, target: Target) -> JsonObject | None:
    """Of each limit the smaller of task and profile; None: whatever the caller's turn has left."""
    of_task = {} if task.budget is None else task.budget.stored()
    of_profile = BudgetLimits.from_stored(target.budget or {}).stored()
    least: JsonObject = {
        name: min(limits[name] for limits in (of_task, of_profile) if name in limits) for name in of_task | of_profile
    }
    return least or None


def _cards(call: ParentCall, task: TaskArguments, turn: AgentTurnId) -> list[Card]:
    """The instruction, the fields that are wanted, and who asks."""
    text = TextContent(text=task.instruction)
    instruction = make_card(
        turn_card_id(turn, "instruction"), CardType.INSTRUCTION, Role.USER, text, author=AUTHOR, turn=turn
    )
    cards = [instruction]
    if task.result_fields is not None:
        fields = FieldsSchemaContent(fields=task.result_fields)
        card = turn_card_id(turn, "fields")
        cards.append(make_card(card, CardType.RESULT_FIELDS, Role.SYSTEM, fields, author=AUTHOR, turn=turn))
    if task.output_schema is not None:
        text = JsonContent(data={"output_schema": task.output_schema})
        card = turn_card_id(turn, "config")
        cards.append(make_card(card, CardType.RUNTIME_CONFIG, Role.SYSTEM, text, author=AUTHOR, turn=turn))
    parent = JsonContent(data={"parent_agent_id": call.agent_id, "parent_agent_turn_id": call.agent_turn_id})
    pointer = turn_card_id(turn, "parent")
    return [*cards, make_card(pointer, CardType.PARENT_POINTER, Role.SYSTEM, parent, author=call.agent_id, turn=turn)]


def _new_agent(call: ParentCall, task: TaskArguments, target: Target, turn: AgentTurnId) -> NewAgent:
    """The roster row of an agent that is made; a clone belongs to its source.

    It is an instance of its profile that was made for this turn: retention removes it with the turn. One that a program
    of v1r4 makes stays, as there.
    """
    profile = target.profile_name or ""
    metadata: JsonObject = {"spawned_by": call.agent_id, "profile_name": profile}
    if call.peer_card_id is None:
        metadata |= {INSTANCE_OF: profile.lower(), "agent_turn_id": turn}
    owner = call.agent_id
    if task.target_strategy == "clone" and target.agent_id is not None:
        metadata["derived_from"] = owner = target.agent_id
    return NewAgent(
        worker_target=target.worker_target or "",
        tags=tuple(target.tags),
        display_name=target.profile_name,
        owner_agent_id=owner,
        metadata=metadata,
    )


@dataclass(frozen=True, slots=True)
class DelegationLimits:
    """What forks are held against."""

    depth_limit: int
    max_tasks: int = 1000
    deadline_seconds: float = 900.0
    """Of a batch that names none."""
    summary_chars: int = 2000
    """Of a task in a fork's result."""
    admission: Admission = UNLIMITED
    max_wakes: int = 0
    """Wakes of one agent that have not come; 0 is no limit."""

    @property
    def fork(self) -> ForkLimits:
        """The limits of the enqueues; children have more room in a project than others."""
        most = self.admission.max_live_turns * PROJECT_FULL_FOR_CHILDREN
        return ForkLimits(max_queued_turns=self.admission.max_queued_turns, max_live_turns=int(most))


@dataclass
class Delegation:
    """The handlers over one ledger."""

    pool: Pool
    publisher: Publisher
    _: KW_ONLY
    limits: DelegationLimits

    async def run(self, tool: PmoTool, call: ParentCall) -> JsonObject | None:
        """Do what the call asks; returns its result, None if a batch will answer it."""
        match tool:
            case PmoTool.PROVISION_AGENT:
                return await self._provision(call)
            case PmoTool.DELEGATE_ASYNC:
                arguments = _arguments(call, DelegateArguments)
                return await self._one(call, tool, arguments, waits=arguments.wait)
            case PmoTool.LAUNCH_PRINCIPAL:
                return await self._one(call, tool, _arguments(call, LaunchArguments).task())
            case PmoTool.ASK_EXPERT:
                question = _arguments(call, ExpertArguments)
                waits = question.wait if call.peer_card_id is None else call.arguments.get("wait") is True
                return await self._one(call, tool, question.task(call.output_box_id or None), waits=waits)
            case PmoTool.FORK_JOIN:
                return await self._fork(call, tool, _arguments(call, ForkArguments))
            case PmoTool.WAKE_ME:
                return await self._wake(call, _arguments(call, WakeArguments))
            case _:
                assert_never(tool)

    async def _wake(self, call: ParentCall, arguments: WakeArguments) -> JsonObject:
        if len(arguments.instruction.encode("utf-8", "surrogatepass")) > TEXT_LIMIT_BYTES:
            raise DelegationRefused("text_too_large", f"wake_me: text is limited to {TEXT_LIMIT_BYTES} bytes")
        if call.peer_card_id is not None:
            raise DelegationRefused("delegation_denied", "wake_me: only a turn that waits for the call goes on later")
        depth, most = self.limits.depth_limit, self.limits.max_wakes
        schedule, at = await self.pool.run(lambda conn: put_wake(conn, call, arguments, depth_limit=depth, most=most))
        hit(Fault.SCHEDULE_STORED)
        return {"status": "accepted", "schedule_id": schedule, "at": time_name(at)}

    async def _provision(self, call: ParentCall) -> JsonObject:
        arguments = provision_arguments(_known(call, ProvisionArguments))
        policy = await self.pool.run(lambda conn: policy_of(conn, call.project_id, call.profile_box_id))
        caller = ProvisionCaller(
            project_id=call.project_id,
            channel_id=call.channel_id,
            agent_id=call.agent_id,
            step_id=StepId(call.step_id),
            tool_call_id=call.tool_call_id,
            trace_id=headers.trace_id(call.context_headers.get(headers.TRACEPARENT, "---")),
            policy=policy,
        )
        written = await self.pool.run(lambda conn: provision_agent(conn, caller, arguments))
        hit(Fault.AGENT_CHANGED)
        return {"status": "accepted", "agent_id": arguments.agent_id, "roster_updated": written}

    async def _one(
        self, call: ParentCall, tool: PmoTool, task: TaskArguments, *, waits: bool = False
    ) -> JsonObject | None:
        """One child: the ids of its turn, or None if the call waits for its end."""
        check_texts(tool, [task])
        caller = await self._caller(call, [task], waits=waits)
        child = child_of(caller, tool, task)
        if caller.too_deep:
            raise Refused("recursion_depth_exceeded", "the chain of agents that ask each other is too deep")
        if waits:
            await self._make_batch(call, Batch(self.limits.deadline_seconds, answer=BatchAnswerForm.CHILD), [child])
            return None
        turn = await delegate(self.pool, call, child, self.limits.fork)
        await publish_best_effort(self.publisher, *_rings([turn]))
        return {
            "status": "accepted",
            "agent_id": turn.agent_id,
            "agent_turn_id": turn.agent_turn_id,
            "turn_epoch": turn.turn_epoch,
            "context_box_id": turn.context_box_id,
            "output_box_id": turn.output_box_id,
        }

    async def _fork(self, call: ParentCall, tool: PmoTool, arguments: ForkArguments) -> None:
        if len(arguments.tasks) > self.limits.max_tasks:
            what = (
                f"{tool}: tasks fanout exceeds max limit (got={len(arguments.tasks)}, max={self.limits.max_tasks}); "
                "split into smaller batches or adjust [pmo].fork_join_max_tasks"
            )
            raise DelegationRefused("too_many_tasks", what)
        check_texts(tool, arguments.tasks)
        caller = await self._caller(call, arguments.tasks, waits=True)
        ours = arguments.join is not None
        tasks = tasks_of(caller, tool, arguments.tasks, alone=ours)
        batch = Batch(
            arguments.deadline_seconds or self.limits.deadline_seconds,
            join=arguments.join or "all",
            k=arguments.needed,
            fail_fast=arguments.fail_fast,
            losers=arguments.losers,
            partial_at_deadline=ours,
            summary_chars=self.limits.summary_chars,
        )
        await self._make_batch(call, batch, tasks)

    async def _make_batch(self, call: ParentCall, batch: Batch, tasks: Sequence[ChildTurn | RefusedTask]) -> None:
        forked = await fork(self.pool, call, batch, tasks, self.limits.fork)
        rings = [ring.doorbell(SENDER, "join") for ring in forked.rings]
        await publish_best_effort(self.publisher, *_rings(forked.tasks), *rings)

    async def _caller(self, call: ParentCall, tasks: Sequence[TaskArguments], *, waits: bool) -> DelegatingCall:
        """The call with all that its tasks name."""
        names = references([(task.target_strategy, task.target_ref) for task in tasks])
        policy = await self.pool.run(lambda conn: policy_of(conn, call.project_id, call.profile_box_id))
        project, channel = call.project_id, call.channel_id
        targets = await self.pool.run(lambda conn: find_targets(conn, project, channel, call.agent_turn_id, names))
        return DelegatingCall(call, policy, targets, self.limits.depth_limit, waits=waits)


def _arguments(call: ParentCall, model: type[Arguments]) -> Arguments:
    return arguments_of(call.tool_name, model, _known(call, model))


def _known(call: ParentCall, model: type[BaseModel]) -> JsonObject:
    """The call's arguments; of a program of v1r4 those that the tool has: its UI worker adds `metadata` to all."""
    if call.peer_card_id is None:
        return call.arguments
    return {name: value for name, value in call.arguments.items() if name in model.model_fields}


def _rings(tasks: Sequence[ForkedTask]) -> list[Message]:
    leases = [task.lease for task in tasks if task.lease is not None]
    return [message for lease in leases for message in (lease.dispatched(SENDER), lease.doorbell(SENDER, "enqueue"))]
