"""What a tool asks people under the call that it runs (protocol §13.8): the verb `delegate` with `ask_human`.

A question is an interrupt that does not hold its call: it is named by the call and the tool's key, and a repeat returns
its state. The profile that the turn has pinned says who may answer. Costs one statement for a repeat, beside
the look at the call.
"""

from dataclasses import dataclass

from pydantic import JsonValue, TypeAdapter, ValidationError

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.delegation.targets import profile_data
from turnstile.ledger.people.call_questions import (
    CallQuestion,
    OpenedQuestion,
    ToolQuestion,
    ask_under_call,
    find_call_question,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import ParentCall
from turnstile.rules.holds import tool_question_of
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.requests import DelegateReply, HumanReply
from turnstile.schema.errors import Refused
from turnstile.schema.ids import StepId, asked_interrupt_id
from turnstile.schema.json_reading import storable_object
from turnstile.schema.people.approvals import ApprovalRule, Decision, InterruptRule, rules_of
from turnstile.schema.people.interrupts import InterruptEvent, InterruptReason, InterruptStatus
from turnstile.schema.states import ReplyStatus
from turnstile.schema.tools import ASK_HUMAN
from turnstile.schema.wire.events import TurnAddress
from turnstile.schema.wire.limits import rate_limited

_RULE = TypeAdapter[ApprovalRule](InterruptRule)


@dataclass(frozen=True, slots=True)
class ToolQuestions:
    """Asks people over one ledger."""

    pool: Pool
    publisher: Publisher

    async def ask(self, call: ParentCall, wait_seconds: float) -> DelegateReply:
        """Ask, or return what a person has answered; raises `Refused` if nobody will.

        `call` names the question (`call_key`, `call_digest`) and has it as its arguments. A new question is refused as
        `rate_limited` if there are seconds to wait.
        """
        earlier = await self._find(call)
        if earlier is not None and earlier.call_digest != call.call_digest:
            raise Refused("key_conflict", "the call has asked for something else by this key: give each its own")
        if earlier is None:
            if wait_seconds:
                raise rate_limited(wait_seconds)
            question = await self._question(call)
            question_row = await self.pool.run(
                lambda conn: ask_under_call(conn, call.project_id, call.tool_call_id, question)
            )
            hit(Fault.QUESTION_COMMITTED)
            await self._publish(call, question_row)
            hit(Fault.QUESTION_PUBLISHED)
        return DelegateReply(
            status=ReplyStatus.ACCEPTED,
            tool_call_id=call.tool_call_id,
            interrupt_id=asked_interrupt_id(call.tool_call_id, _key(call)),
            duplicate=earlier is not None,
            answer=None if earlier is None else _answer(call, earlier),
        )

    async def _find(self, call: ParentCall) -> CallQuestion | None:
        key = _key(call)
        return await self.pool.run(lambda conn: find_call_question(conn, call.project_id, call.tool_call_id, key))

    async def _question(self, call: ParentCall) -> ToolQuestion:
        data = await self.pool.run(lambda conn: profile_data(conn, call.project_id, call.profile_box_id))
        hold = tool_question_of(storable_object(call.arguments), _rule(data.get("interrupt_on"), call.guards))
        if isinstance(hold, str):
            raise Refused("invalid_arguments", hold)
        return ToolQuestion(_key(call), call.call_digest or "", hold)

    async def _publish(self, call: ParentCall, row: OpenedQuestion) -> None:
        if row.expires_at is None:  # another bridge has published it
            return
        event = InterruptEvent(
            interrupt_id=asked_interrupt_id(call.tool_call_id, _key(call)),
            agent_id=call.agent_id,
            agent_turn_id=call.agent_turn_id,
            step_id=StepId(call.step_id),
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            reason=InterruptReason.INPUT_REQUIRED,
            action_digest=None,
            expires_at=row.expires_at,
        )
        address = TurnAddress.of(call, call.context_headers, SENDER)
        await publish_best_effort(self.publisher, address.interrupt(event))


def _key(call: ParentCall) -> str:
    return call.call_key or ""


def _rule(*written: JsonValue) -> ApprovalRule | None:
    """The profiles' rule for `ask_human`; one that cannot be read lets somebody else answer."""
    rules: list[dict[str, ApprovalRule]] = []
    for rules_json in written:
        if isinstance(rules_json, dict) and ASK_HUMAN in rules_json:
            try:
                rules.append({ASK_HUMAN: _RULE.validate_python(rules_json[ASK_HUMAN])})
            except ValidationError:
                rules.append({ASK_HUMAN: ApprovalRule()})
    return rules_of(*rules).get(ASK_HUMAN)


def _answer(call: ParentCall, question: CallQuestion) -> JsonObject | None:
    """What a person has answered; None while the question is open. Raises `Refused` if nobody will."""
    match question.status:
        case InterruptStatus.RESOLVED:
            responds = question.decision is Decision.RESPOND
            reply = HumanReply(
                decision="respond" if responds else "reject",
                response=question.response if responds else None,
                message="" if responds else question.comment or "",
            )
            return reply.model_dump(mode="json")
        case InterruptStatus.EXPIRED:
            raise Refused("no_answer", "nobody answered in time")
        case InterruptStatus.WITHDRAWN:
            raise Refused("parent_over", "the call waits no more, and its question was withdrawn")
        case InterruptStatus.OPEN:
            if not call.waits:
                raise Refused("parent_over", "the call waits no more: its turn is over, or it was answered")
            if call.stopping:
                raise Refused("parent_stopping", "the turn that asks is being stopped")
            return None
