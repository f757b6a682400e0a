"""Calls that the clients of HTTP's doors run themselves (protocol §19): which turn waits for them, and their answers.

A client resends what it knows: a request whose last messages answer all open calls of one turn of the caller goes on
with that turn, found by the calls' ids; any other is a new turn, which reads the history as it is given. The same
answers again are the same turn, so that a request whose response was lost can be repeated. Nothing is kept in a
process; costs one read, and one decision for each answer.
"""

from collections.abc import Mapping
from typing import Any, Final

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.events.positions import EventPart, Position
from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.kernel import Kernel
from turnstile.ledger.people.interrupt_views import ClientCall, list_client_calls
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import instance_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptStatus
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.chunk_order import step_number

_PAST: Final = frozenset({"already_decided", "expired", "withdrawn"})
"""Codes of answers that came after another end of their call."""


async def continued(
    kernel: Kernel, call: Call[Any, Any], target: AddressedTarget, answers: Mapping[str, str]
) -> tuple[TurnView, Position] | None:
    """The turn that goes on with these outputs by their calls, and the place after the step that made the calls.

    None if they are no answers to what one turn of the caller and the target waits for. Raises `Refused` where only
    some of them were taken, and as `Asking.ask` does.
    """
    principal = call.principal
    rows = await kernel.pool.run(lambda conn: list_client_calls(conn, principal.project_id, list(answers)))
    answered = [row for row in rows if row.tool_call_id in answers]
    if not answered or len(answered) < len(answers) or not _goes_on(rows, answered, principal.sender):
        return None
    view = await kernel.turns.described(principal, answered[0].agent_turn_id)
    if not _is_of(view, target):
        return None
    taken, past = 0, list[Refused]()
    for row in answered:
        decision: JsonObject = {
            "interrupt_id": row.interrupt_id,
            "decision": Decision.RESPOND,
            "response": answers[row.tool_call_id],
        }
        try:
            await kernel.turns.asking.ask(principal, view.channel_id, verbs.DECIDE, decision, call.headers)
            taken += 1
        except Refused as error:
            if error.code not in _PAST:
                raise
            past.append(error)
    if past and taken:
        raise past[0]
    view = await kernel.turns.described(principal, view.agent_turn_id)
    if past or view.status == TurnStatus.CANCELED:  # it goes on no more
        return None
    return view, Position(step_number(answered[0].step_id), EventPart.STEP, 0, 0)


def _goes_on(rows: list[ClientCall], answered: list[ClientCall], sender: str) -> bool:
    """Whether these answer what one turn of this requester waits for, or are those that it went on with the last time.

    Then what it has asked since is open; where that was answered as well, they are another branch of the history.
    """
    steps = {step_number(row.step_id) for row in answered}
    later = [row for row in rows if step_number(row.step_id) > max(steps)]
    opened = {row.tool_call_id for row in rows if row.status is InterruptStatus.OPEN}
    known = {row.tool_call_id for row in (*answered, *later)}
    return (
        len({row.agent_turn_id for row in rows}) == 1
        and len(steps) == 1
        and all(row.tool_call_id in opened for row in later)
        and opened <= known
        and all(row.requester == sender for row in answered)
    )


def _is_of(view: TurnView, target: AddressedTarget) -> bool:
    """Whether the agent runs the turn, or an instance of the profile: of its conversation, or of its request."""
    if not target.is_profile:
        return view.agent_id == target.name
    named = (("conversation", view.conversation_id), ("request", view.correlation_id), ("request", view.agent_turn_id))
    return view.agent_id in [
        instance_id(view.project_id, view.channel_id, target.name, kind, name) for kind, name in named if name
    ]
