"""Delegating calls of programs of v1r4 (protocol §12.11): its API, its `ToolCaller`, its UI worker.

They have no turn of ours and no waiting row. Such a call is answered once, under the policy of the agent in whose name
it is made: `provision_agent`, and what asks one agent and does not wait, is done; what would wait is refused. None is
left without an answer, and a repeat makes nothing twice: a child's correlation is the call's id.
"""

from dataclasses import dataclass

from pydantic import BaseModel

from turnstile.bridge.delegation.handlers import DelegatingCall, Delegation, check_texts, child_of
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.delegation.peer_calls import AUTHOR, PeerCall
from turnstile.ledger.delegation.provision import ProvisionCaller, provision_agent
from turnstile.ledger.delegation.targets import find_targets, policy_of, references
from turnstile.ledger.trees.batches import ChildTurn, NewAgent, ParentCall
from turnstile.ledger.turns.intake import enqueue
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.arguments import (
    Arguments,
    DelegateArguments,
    ExpertArguments,
    LaunchArguments,
    TaskArguments,
    arguments_of,
)
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.delegation.provision import ProvisionArguments, provision_arguments
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.tools import PmoTool
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueRequest


@dataclass(frozen=True, slots=True)
class PeerDelegation:
    """Serves such calls with the handlers' ledger and limits."""

    delegation: Delegation

    async def run(self, tool: PmoTool, call: PeerCall) -> JsonObject:
        """Do what the call asks; returns its result. Raises as `Delegation.run`."""
        policy = await self._policy(call)
        match tool:
            case PmoTool.PROVISION_AGENT:
                arguments = provision_arguments(_known(call, ProvisionArguments))
                written = await self._provision(call, policy, arguments)
                return {"status": "accepted", "agent_id": arguments.agent_id, "roster_updated": written}
            case PmoTool.DELEGATE_ASYNC:
                asked = _arguments(call, DelegateArguments)
                return await self._one(call, policy, tool, asked, waits=asked.wait)
            case PmoTool.LAUNCH_PRINCIPAL:
                return await self._one(call, policy, tool, _arguments(call, LaunchArguments).task())
            case PmoTool.ASK_EXPERT:
                question = _arguments(call, ExpertArguments)
                waits = call.arguments.get("wait") is True  # v1r4 never waits
                return await self._one(call, policy, tool, question.task(call.output_box_id), waits=waits)
            case PmoTool.FORK_JOIN:
                raise _needs_turn(tool)

    async def _policy(self, call: PeerCall) -> DelegationPolicy | None:
        if (profile := call.profile_box_id) is None:
            return None
        return await self.delegation.pool.run(lambda conn: policy_of(conn, call.project_id, profile))

    async def _provision(self, call: PeerCall, policy: DelegationPolicy | None, arguments: ProvisionArguments) -> bool:
        caller = ProvisionCaller(
            project_id=call.project_id,
            channel_id=call.channel_id,
            agent_id=call.agent_id,
            step_id=call.step_id,
            tool_call_id=call.tool_call_id,
            trace_id=headers.trace_id(call.context_headers.get(headers.TRACEPARENT, "---")),
            policy=policy,
        )
        return await self.delegation.pool.run(lambda conn: provision_agent(conn, caller, arguments))

    async def _one(
        self,
        call: PeerCall,
        policy: DelegationPolicy | None,
        tool: PmoTool,
        task: TaskArguments,
        *,
        waits: bool = False,
    ) -> JsonObject:
        """One turn that nobody waits for."""
        if waits or task.result_fields is not None or task.budget is not None:
            raise _needs_turn(tool)
        check_texts(tool, [task])
        pool, limits = self.delegation.pool, self.delegation.limits
        names = references([(task.target_strategy, task.target_ref)])
        targets = await pool.run(
            lambda conn: find_targets(conn, call.project_id, call.channel_id, call.agent_turn_id, names)
        )
        child = child_of(DelegatingCall(_parent(call), policy, targets, limits.depth_limit, waits=False), tool, task)
        if len(child.inherits) > 1:
            raise DelegationRefused("unauthorized_box", f"{tool}: a call without a turn may name one box to inherit")
        if child.new_agent is not None:
            await self._provision(call, policy, _provisioned(call, child, child.new_agent))
        request = EnqueueRequest(
            agent_id=child.agent_id,
            instruction=task.instruction,
            context_box_id=child.inherits[0] if child.inherits else None,
            output_box_id=child.output_box_id,
            correlation_id=f"{call.tool_call_id}-0",
        )
        made = await enqueue(
            pool,
            call.project_id,
            call.channel_id,
            request,
            _child_headers(call),
            depth_limit=limits.depth_limit,
            sender=AUTHOR,
            admission=limits.admission,
        )
        if (lease := made.lease) is not None:
            rings = (lease.dispatched(SENDER), lease.doorbell(SENDER, "enqueue"))
            await publish_best_effort(self.delegation.publisher, *rings)
        ids = {"agent_id", "agent_turn_id", "turn_epoch", "context_box_id", "output_box_id"}
        return {"status": "accepted", **made.reply.model_dump(mode="json", include=ids)}


def _known(call: PeerCall, model: type[BaseModel]) -> JsonObject:
    """The call's arguments that the tool has: v1r4 reads no others, and its UI worker adds `metadata` to all."""
    return {name: value for name, value in call.arguments.items() if name in model.model_fields}


def _arguments(call: PeerCall, model: type[Arguments]) -> Arguments:
    return arguments_of(call.tool_name, model, _known(call, model))


def _needs_turn(tool: PmoTool) -> DelegationRefused:
    what = f"{tool}: what waits, or has result_fields or a budget, needs a turn that makes the call"
    return DelegationRefused("needs_a_turn", what)


def _parent(call: PeerCall) -> ParentCall:
    """The call as the handlers plan by it."""
    own = {name: value for name, value in call.model_dump().items() if name != "arguments"}
    return ParentCall.model_validate(
        {
            **own,
            "arguments": "{}",
            "waits": True,
            "batch_id": None,
            "stopping": False,
            "depth": headers.depth(call.context_headers),
            "worker_target": call.worker_target or "",
            "profile_box_id": call.profile_box_id or "",
            "memory_context_box_id": None,
            "last_output_box_id": None,
            "deadline": None,
        }
    )


def _provisioned(call: PeerCall, child: ChildTurn, agent: NewAgent) -> ProvisionArguments:
    """The agent that the turn is for, which v1r4 keeps: it is nobody's instance."""
    metadata: JsonObject = {"spawned_by": call.agent_id}
    return ProvisionArguments(
        action="ensure",
        agent_id=child.agent_id,
        profile_box_id=child.profile_box_id,
        display_name=agent.display_name,
        owner_agent_id=agent.owner_agent_id,
        metadata=metadata,
    )


def _child_headers(call: PeerCall) -> dict[str, str]:
    """Trace, depth and lineage of the turn that is asked for."""
    return {
        headers.TRACEPARENT: call.context_headers.get(headers.TRACEPARENT, ""),
        headers.DEPTH: str(headers.depth(call.context_headers) + 1),
        headers.PARENT_AGENT_ID: call.agent_id,
        headers.PARENT_TURN_ID: call.agent_turn_id,
        **({headers.PARENT_STEP_ID: call.step_id} if call.step_id else {}),
        headers.SENDER: AUTHOR,
    }
