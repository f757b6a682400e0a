"""The verb `decide`: a person's decision about a call that waits for one (protocol §13).

A decision is checked here only as far as no statement can: the arguments of an edit against the tool's schema, an
answer against the question's. Which decision counts, one statement says. After its commit the call's command is
published, or the doorbell of its result; where a crash comes between, the rules `command` and `doorbell` do it.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from pydantic import JsonValue

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.people.decisions import (
    DecisionOutcome,
    DecisionRecord,
    Edit,
    InterruptToDecide,
    decide_interrupt,
    find_question,
)
from turnstile.ledger.pool import Pool
from turnstile.rules.arguments import Patience, ready
from turnstile.rules.holds import call_card
from turnstile.rules.turn_ends import Lease
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import own_arguments
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, CardId, InboxId, InterruptId, ProjectId
from turnstile.schema.json_reading import storable, storable_json
from turnstile.schema.parameters import SchemaTooCostly, checks
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.digests import action_digest
from turnstile.schema.people.interrupts import DecideReply, DecideRequest, InterruptReason, InterruptStatus
from turnstile.schema.states import ReplyStatus
from turnstile.schema.tools import ToolRow, expand_subject, options_of
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.events import TurnAddress
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES

Signal: TypeAlias = Callable[[AgentTurnId, InterruptId], Awaitable[None]]
"""Lets a turn's workflow look at its deadline anew."""
_CONFIRMED = 1_000_000
"""Repeats after a confirmation are counted from here, and those of the rule `command` from 1."""


class PeopleVerbs:
    """The verbs over one ledger."""

    def __init__(self, pool: Pool, publisher: Publisher, signal: Signal) -> None:
        self._pool = pool
        self._publisher = publisher
        self._signal = signal

    async def decide(self, request: VerbRequest) -> DecideReply:
        """Decide, once; raises `Refused` with the code of why not, and then nothing has changed."""
        caller, body = request.named_caller(), request.parse(DecideRequest)
        if body.text_bytes() > TEXT_LIMIT_BYTES:
            raise Refused("text_too_large", f"arguments and responses are limited to {TEXT_LIMIT_BYTES} bytes")
        project, channel, interrupt = request.project_id, request.channel_id, body.interrupt_id
        question = await self._pool.run(lambda conn: find_question(conn, project, channel, interrupt))
        if question is None:
            raise Refused("unknown_interrupt", "the channel has no such interrupt")
        answer = _answer(project, question, body)
        decided = await self._pool.run(
            lambda conn: decide_interrupt(
                conn, project, channel, interrupt, caller.name, answer, operates=caller.operates
            )
        )
        hit(Fault.DECISION_COMMITTED)
        if decided.verdict == "accepted":
            await self._publish(project, question, decided, answer)
        hit(Fault.DECISION_PUBLISHED)
        return DecideReply(
            status=ReplyStatus.ACCEPTED,
            interrupt_id=interrupt,
            decision=decided.decision,
            agent_turn_id=question.agent_turn_id,
            tool_call_id=question.tool_call_id,
            tool_changed=decided.tool_changed,
            duplicate=decided.verdict == "duplicate",
        )

    async def _publish(
        self, project: ProjectId, question: InterruptToDecide, decided: DecisionOutcome, answer: DecisionRecord
    ) -> None:
        """Publish the command of a call that is sent now, or ring for the result of one that is not.

        A tool that has asked hears it as it asks again.
        """
        if question.call_key is not None:
            await self._signal(question.agent_turn_id, question.interrupt_id)
            return
        named = question.model_dump() | {"project_id": project}
        if decided.sent and question.command is not None:
            address = TurnAddress.of(_turn(project, question), question.context_headers, SENDER)
            card = question.command.tool_call_card_id if answer.edit is None else answer.edit.card.card_id
            command = question.command.model_copy(update={"tool_call_card_id": card})
            # the stream drops what it has seen: a call that is confirmed was sent before
            repeat = _CONFIRMED + _number(question) if question.reason is InterruptReason.CONFIRMATION else 0
            await publish_best_effort(self._publisher, address.tool_command(command, question.step_id, repeat))
            await self._signal(question.agent_turn_id, question.interrupt_id)
        if not decided.sent and question.worker_target is not None:
            lease = Lease.model_validate(named | {"inbox_id": InboxId(f"decide-{question.interrupt_id}")})
            await publish_best_effort(self._publisher, lease.doorbell(SENDER, "decide"))


def _number(question: InterruptToDecide) -> int:
    """Which question about its call it is, from 1."""
    return int(question.interrupt_id.rpartition("-")[2])


def _turn(project: ProjectId, question: InterruptToDecide) -> TurnRef:
    values = question.model_dump() | {"project_id": project, "worker_target": question.worker_target or ""}
    return TurnRef.model_validate(values)


def _answer(project: ProjectId, question: InterruptToDecide, request: DecideRequest) -> DecisionRecord:
    """The decision as it is recorded; what it brings is checked while the question is open."""
    response = storable_json(request.response)
    edit = None
    if question.status is InterruptStatus.OPEN and request.decision in question.allowed_decisions:
        match request.decision:
            case Decision.EDIT:
                edit = _edit(project, question, request.arguments or {})
            case Decision.RESPOND:
                _check_response(question, response)
            case Decision.APPROVE | Decision.REJECT:
                pass
    decided = request.model_dump(exclude={"interrupt_id"})
    digest = hashlib.sha256(json.dumps(decided, sort_keys=True).encode()).hexdigest()
    return DecisionRecord(request.decision, request.action_digest, digest, storable(request.message), response, edit)


def _edit(project: ProjectId, question: InterruptToDecide, arguments: JsonObject) -> Edit | None:
    """The call's second card; None if its tool is gone. Forced arguments stay what they are, as for a model.

    Raises `Refused` for arguments that do not fit, and `NotCanonical` for numbers that JSON does not carry exactly.
    """
    row = kernel_tools().get(question.tool_name) if question.tool is None else ToolRow.model_validate(question.tool)
    if row is None:
        return None
    turn, call = _turn(project, question), question.tool_call_id
    values = turn.placeholders(question.step_id, question.parent_step_id or "") | {"tool_call_id": call}
    checked = ready(row, json.dumps(arguments), values, Patience())
    if isinstance(checked, str):
        raise Refused("invalid_arguments", checked)
    subject = expand_subject(row.target_subject or "", project, question.channel_id)
    digest = action_digest(call, row.tool_name, subject, checked.arguments)
    card, _ = call_card(turn, question.step_id, call, row, checked.arguments, subject, options_of(row).hidden)
    visible = own_arguments(checked.arguments, card.metadata.added)
    metadata = card.metadata.model_copy(update={"edited": visible})
    return Edit(card.model_copy(update={"card_id": CardId(f"{call}-call-2"), "metadata": metadata}), digest)


def _check_response(question: InterruptToDecide, response: JsonValue) -> None:
    """Raise `Refused` if the response does not match the question's schema."""
    if question.response_schema is None:
        return
    try:
        fault = checks(question.response_schema).fault(response)
    except SchemaTooCostly:
        raise Refused("invalid_response", "the response takes too long to check: give a shorter one") from None
    except ValueError as error:
        raise Refused("invalid_response", f"the schema of the question {error}: reject it instead") from None
    if fault is not None:
        where = "/".join(str(part) for part in fault.path)
        raise Refused(
            "invalid_response", f"the response does not match{f' at {where}' if where else ''}: {fault.message}"
        )
