"""A message to an agent: a new task, an answer to what one asks, or a word to one that runs (protocol §17.3).

The message's id is the correlation of what comes of it, so the same message again is the same task, the same decision
or the same steer.
"""

from collections.abc import Sequence

from a2a.types import SendMessageRequest
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError

from turnstile.gateway.a2a.asked import Asked
from turnstile.gateway.a2a.task_messages import Said, answer_to, context_id, read_message
from turnstile.gateway.a2a.tasks import context_of
from turnstile.gateway.http.endpoints import parsed
from turnstile.ledger.access.tasks import TaskRow
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.api import TurnSteer
from turnstile.schema.base import JsonObject
from turnstile.schema.people.interrupts import DecideRequest, Interrupt


async def deliver(asked: Asked, request: SendMessageRequest) -> TaskRow:
    """What the message makes, or is for; raises A2A's errors, and as `Asking.ask` does."""
    said = read_message(request, asked.given)
    if not said.task_id:
        return await _begin(asked, said)
    row = await asked.row(said.task_id)
    if said.context_id not in ("", context_of(row)) and context_id(said, "") != context_of(row):
        raise InvalidParamsError("message.contextId: the task belongs to another context")
    if row.ended_at is not None:
        raise UnsupportedOperationError("the task is over: send a message without taskId")
    if questions := await asked.questions(row):
        await _answer(asked, said, questions, row)
    else:
        await _steer(asked, said, row)
    return await asked.row(row.agent_turn_id)


async def _begin(asked: Asked, said: Said) -> TaskRow:
    asked.needs(Right.ASK)
    channel, call = asked.channel, asked.call
    conversation = context_id(said, f"{call.principal.project_id}/{channel}/{asked.target.named}")
    fields: JsonObject = {
        "instruction": said.instruction,
        "conversation_id": conversation,
        "metadata": said.notes,
    }
    turn = await asked.kernel.enqueue(call, channel, asked.target, fields, said.key)
    return await asked.row(turn)


async def _answer(asked: Asked, said: Said, questions: Sequence[Interrupt], row: TaskRow) -> None:
    asked.needs(Right.DECIDE)
    question, answer = answer_to(said, questions)
    payload: JsonObject = {**answer, "interrupt_id": question.interrupt_id}
    parsed(DecideRequest, payload, "message.parts")
    asking, call = asked.kernel.turns.asking, asked.call
    await asking.ask(call.principal, row.channel_id, verbs.DECIDE, payload, call.headers)


async def _steer(asked: Asked, said: Said, row: TaskRow) -> None:
    asked.needs(Right.ASK)
    turns, call = asked.kernel.turns, asked.call
    view = await asked.view(row)
    await turns.steer_turn(call.principal, view, TurnSteer(text=said.instruction), said.key, call.headers)
