"""Runs delegating calls (protocol §12): provisions an agent, makes one child, or forks a batch.

A handler commits, publishes what the commit says, and returns the call's result; None if the call waits for a batch,
whose decision answers it. It raises `DelegationRefused` or `Refused` for what is refused. A repeat makes nothing twice.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import assert_never

from turnstile.bridge.delegation.plan import Caller, check_texts, child_of, tasks_of
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.delegation.provision import ProvisionCaller, provision_agent
from turnstile.ledger.delegation.targets import find_targets, policy_of, references
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import (
    AnswerForm,
    Batch,
    Child,
    ForkedTask,
    ForkLimits,
    ParentCall,
    RefusedTask,
    delegate,
    fork,
)
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.arguments import (
    DelegateArguments,
    ExpertArguments,
    ForkArguments,
    LaunchArguments,
    TaskArguments,
    arguments_of,
)
from turnstile.schema.delegation.provision import provision_arguments
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.errors import Refused
from turnstile.schema.ids import StepId
from turnstile.schema.tools import PmoTool
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.limits import PROJECT_FULL_FOR_CHILDREN, UNLIMITED, Admission


@dataclass(frozen=True, slots=True)
class DelegationLimits:
    """What forks are held against."""

    depth_limit: int
    max_tasks: int = 1000
    deadline_seconds: float = 900.0
    """Of a batch that names none."""
    admission: Admission = UNLIMITED

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
                asked = arguments_of(tool, DelegateArguments, call.arguments)
                return await self._one(call, tool, asked, waits=asked.wait)
            case PmoTool.LAUNCH_PRINCIPAL:
                return await self._one(call, tool, arguments_of(tool, LaunchArguments, call.arguments).task())
            case PmoTool.ASK_EXPERT:
                question = arguments_of(tool, ExpertArguments, call.arguments)
                return await self._one(call, tool, question.task(call.output_box_id), waits=question.wait)
            case PmoTool.FORK_JOIN:
                return await self._fork(call, tool, arguments_of(tool, ForkArguments, call.arguments))
            case _:
                assert_never(tool)

    async def _provision(self, call: ParentCall) -> JsonObject:
        wanted = provision_arguments(call.arguments)
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
        written = await self.pool.run(lambda conn: provision_agent(conn, caller, wanted))
        hit(Fault.AGENT_CHANGED)
        return {"status": "accepted", "agent_id": wanted.agent_id, "roster_updated": written}

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
            await self._make_batch(call, Batch(self.limits.deadline_seconds, answer=AnswerForm.CHILD), [child])
            return None
        made = await delegate(self.pool, call, child, self.limits.fork)
        await publish_best_effort(self.publisher, *_rings([made]))
        return {
            "status": "accepted",
            "agent_id": made.agent_id,
            "agent_turn_id": made.agent_turn_id,
            "turn_epoch": made.turn_epoch,
            "context_box_id": made.context_box_id,
            "output_box_id": made.output_box_id,
        }

    async def _fork(self, call: ParentCall, tool: PmoTool, wanted: ForkArguments) -> None:
        if len(wanted.tasks) > self.limits.max_tasks:
            what = (
                f"{tool}: tasks fanout exceeds max limit (got={len(wanted.tasks)}, max={self.limits.max_tasks}); "
                "split into smaller batches or adjust [pmo].fork_join_max_tasks"
            )
            raise DelegationRefused("too_many_tasks", what)
        check_texts(tool, wanted.tasks)
        caller = await self._caller(call, wanted.tasks, waits=True)
        ours = wanted.join is not None
        tasks = tasks_of(caller, tool, wanted.tasks, alone=ours)
        batch = Batch(
            wanted.deadline_seconds or self.limits.deadline_seconds,
            join=wanted.join or "all",
            k=wanted.needed,
            fail_fast=wanted.fail_fast,
            losers=wanted.losers,
            partial_at_deadline=ours,
        )
        await self._make_batch(call, batch, tasks)

    async def _make_batch(self, call: ParentCall, batch: Batch, tasks: Sequence[Child | RefusedTask]) -> None:
        forked = await fork(self.pool, call, batch, tasks, self.limits.fork)
        rings = [ring.doorbell(SENDER, "join") for ring in forked.rings]
        await publish_best_effort(self.publisher, *_rings(forked.tasks), *rings)

    async def _caller(self, call: ParentCall, tasks: Sequence[TaskArguments], *, waits: bool) -> Caller:
        """The call with all that its tasks name."""
        wanted = references([(task.target_strategy, task.target_ref) for task in tasks])
        policy = await self.pool.run(lambda conn: policy_of(conn, call.project_id, call.profile_box_id))
        project, channel = call.project_id, call.channel_id
        targets = await self.pool.run(lambda conn: find_targets(conn, project, channel, call.agent_turn_id, wanted))
        return Caller(call, policy, targets, self.limits.depth_limit, waits=waits)


def _rings(tasks: Sequence[ForkedTask]) -> list[Message]:
    leases = [task.lease for task in tasks if task.lease is not None]
    return [each for lease in leases for each in (lease.dispatched(SENDER), lease.doorbell(SENDER, "enqueue"))]
