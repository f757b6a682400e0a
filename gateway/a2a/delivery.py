"""A message to an agent: a new task, an answer to what one asks, or a word to one that runs (protocol §17.3).

The message's id is the correlation of what comes of it, so the same message again is the same task, the same decision
or the same steer. JSON of a data part is taken from the request as it was sent, since protobuf would change its
numbers; it is data to the kernel wherever it goes, whatever keys it has.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from a2a.types import Message, Role, SendMessageRequest
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, UnsupportedOperationError
from pydantic import JsonValue

from turnstile.gateway.a2a.a2a_request import A2aRequest
from turnstile.gateway.a2a.tasks import context_of
from turnstile.gateway.http.endpoints import parsed
from turnstile.ledger.access.tasks import TaskRow
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.api import TurnSteer
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import conversation_named
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import DecideRequest, Interrupt, InterruptReason

NOTES: Final = "a2a"
"""The key in a turn's metadata under which a message's own notes are."""
_OUTPUTS: Final = frozenset({"text/plain", "application/json", "text/*", "application/*", "*/*", "text", "data"})
_LONGEST_ID: Final = 128
_ANSWER: Final = frozenset({"interruptId", "decision", "actionDigest", "arguments", "response", "message"})


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """The content of a message."""

    key: str
    """Its id, as a correlation id."""
    task_id: str
    context_id: str
    texts: list[str]
    data: list[JsonValue]
    notes: JsonObject
    end_user: str | None = None

    @property
    def instruction(self) -> str:
        """All of it as one text, in the order of texts, then data."""
        return "\n\n".join([*self.texts, *(json.dumps(value, ensure_ascii=False) for value in self.data)])


def read_message(request: SendMessageRequest, fields: JsonObject) -> ReceivedMessage:
    """What a request says; `fields` are those of the request as it was sent.

    Raises `InvalidParamsError`, and `ContentTypeNotSupportedError`, which names the part.
    """
    message = request.message
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("message.role: must be ROLE_USER in a client's message")
    modes = request.configuration.accepted_output_modes
    if modes and _OUTPUTS.isdisjoint(modes):
        raise ContentTypeNotSupportedError("acceptedOutputModes: agents answer text/plain or application/json")
    if request.configuration.history_length < 0:
        raise InvalidParamsError("historyLength: it cannot be negative")
    texts, data = _parts(message, fields)
    if not any(texts) and not data:
        raise InvalidParamsError("message.parts: the message is empty")
    return ReceivedMessage(
        _key(message.message_id), message.task_id, message.context_id, texts, data, _notes(fields), _end_user(fields)
    )


def context_id(message: ReceivedMessage, scope: str) -> str:
    """The conversation of a new task: the one that is named, else one of its own; the same again for the same message.

    Raises `InvalidParamsError` for a name that no conversation can have.
    """
    if not message.context_id:
        return "c-" + hashlib.sha256(f"{scope}/{message.key}".encode()).hexdigest()[:32]
    try:
        return conversation_named(message.context_id, "message.contextId")
    except BadRequest as error:
        raise InvalidParamsError(str(error)) from None


def answer_to(message: ReceivedMessage, questions: Sequence[Interrupt]) -> tuple[Interrupt, JsonObject]:
    """Which question a message answers, and the arguments of the verb `decide`; raises `InvalidParamsError`."""
    decision = next((part for part in message.data if isinstance(part, dict) and _decides(part)), None)
    if decision is None:
        question = _only(questions)
        return question, _plain_answer(message, question)
    if unknown := decision.keys() - _ANSWER:
        raise InvalidParamsError(f"an answer has no field {min(unknown)[:60]!r}")
    named = decision.get("interruptId")
    question = _only([q for q in questions if named in (None, q.interrupt_id)])
    fields = {"actionDigest": "action_digest", "arguments": "arguments", "message": "message", "response": "response"}
    chosen = {fields[name]: value for name, value in decision.items() if name in fields}
    return question, {"decision": decision.get("decision", Decision.RESPOND.value), **chosen}


def _decides(part: JsonObject) -> bool:
    return "interruptId" in part or part.get("decision") in list(Decision)


def _plain_answer(message: ReceivedMessage, question: Interrupt) -> JsonObject:
    """The decision that texts, or data without a decision, come to.

    An approval names the digest of what it approves, or a text that comes late would approve another call.
    """
    if message.data:
        if len(message.data) > 1 or question.reason is not InterruptReason.INPUT_REQUIRED:
            raise InvalidParamsError(_how(question))
        return {"decision": Decision.RESPOND.value, "response": message.data[0]}
    text = "\n\n".join(message.texts).strip()
    if question.reason is InterruptReason.INPUT_REQUIRED:
        return {"decision": Decision.RESPOND.value, "response": text}
    word, _, rest = text.partition(" ")
    match word.lower().rstrip(":."):
        case Decision.REJECT.value:
            return {"decision": Decision.REJECT.value, "message": rest.strip()} | _digest(question.action_digest)
        case Decision.APPROVE.value if rest.strip():
            return {"decision": Decision.APPROVE.value, "action_digest": rest.strip()}
        case _:
            raise InvalidParamsError(_how(question))


def _digest(digest: str | None) -> JsonObject:
    return {} if digest is None else {"action_digest": digest}


def _how(question: Interrupt) -> str:
    return (
        "the task waits for a decision: send a data part such as"
        f' {{"interruptId": "{question.interrupt_id}", "decision": "approve", "actionDigest": "…"}},'
        " or a text: `approve DIGEST`, or `reject REASON`"
    )


def _only(questions: Sequence[Interrupt]) -> Interrupt:
    if len(questions) != 1:
        what = "names none of them" if not questions else "must say which"
        raise InvalidParamsError(f"the task has several open interrupts, or another one: interruptId {what}")
    return questions[0]


def _key(message_id: str) -> str:
    if len(message_id) <= _LONGEST_ID and message_id.isascii() and message_id.isprintable():
        return message_id
    return "sha256-" + hashlib.sha256(message_id.encode("utf-8", "surrogatepass")).hexdigest()


def _parts(message: Message, fields: JsonObject) -> tuple[list[str], list[JsonValue]]:
    texts: list[str] = []
    data: list[JsonValue] = []
    raw = _named(_named(fields, "message"), "parts")
    for place, part in enumerate(message.parts):
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                data.append(_named(cast("list[JsonValue]", raw)[place], "data"))
            case "raw" | "url":
                raise ContentTypeNotSupportedError(f"message.parts[{place}]: agents accept text and JSON, but no files")
            case _:
                raise InvalidParamsError(f"message.parts[{place}]: the part has no content")
    return [text for text in texts if text], data


def _notes(fields: JsonObject) -> JsonObject:
    message = _named(fields, "message")
    notes: JsonObject = {}
    for name, where in (("metadata", message), ("requestMetadata", fields), ("referenceTaskIds", message)):
        if value := _named(where, "metadata" if name == "requestMetadata" else name):
            notes[name] = value
    return {NOTES: notes} if notes else {}


def _end_user(fields: JsonObject) -> str | None:
    """The person for whom the message asks: `end_user` in its metadata, or in the request's."""
    for where in (_named(fields, "message"), fields):
        if isinstance(name := _named(_named(where, "metadata"), "end_user"), str):
            return name
    return None


def _named(value: JsonValue, name: str) -> JsonValue:
    return value.get(name) if isinstance(value, dict) else None


async def deliver(a2a: A2aRequest, request: SendMessageRequest) -> TaskRow:
    """What the message makes, or is for; raises A2A's errors, and as `Asking.ask` does."""
    message = read_message(request, a2a.params)
    if not message.task_id:
        return await _begin(a2a, message)
    row = await a2a.row(message.task_id)
    if message.context_id not in ("", context_of(row)) and context_id(message, "") != context_of(row):
        raise InvalidParamsError("message.contextId: the task belongs to another context")
    if row.ended_at is not None:
        raise UnsupportedOperationError("the task is over: send a message without taskId")
    if questions := await a2a.questions(row):
        await _answer(a2a, message, questions, row)
    else:
        await _steer(a2a, message, row)
    return await a2a.row(row.agent_turn_id)


async def _begin(a2a: A2aRequest, message: ReceivedMessage) -> TaskRow:
    a2a.needs(Right.ASK)
    channel, call = a2a.channel, a2a.call
    conversation = context_id(message, f"{call.principal.project_id}/{channel}/{a2a.target.named}")
    fields: JsonObject = {
        "instruction": message.instruction,
        "conversation_id": conversation,
        "metadata": message.notes,
    }
    if message.end_user is not None:
        fields["end_user"] = message.end_user
    turn = await a2a.kernel.enqueue(call, channel, a2a.target, fields, message.key)
    return await a2a.row(turn.agent_turn_id)


async def _answer(a2a: A2aRequest, message: ReceivedMessage, questions: Sequence[Interrupt], row: TaskRow) -> None:
    a2a.needs(Right.DECIDE)
    question, answer = answer_to(message, questions)
    payload: JsonObject = {**answer, "interrupt_id": question.interrupt_id}
    parsed(DecideRequest, payload, "message.parts")
    asking, call = a2a.kernel.turns.asking, a2a.call
    await asking.ask(call.principal, row.channel_id, verbs.DECIDE, payload, call.headers)


async def _steer(a2a: A2aRequest, message: ReceivedMessage, row: TaskRow) -> None:
    a2a.needs(Right.ASK)
    turns, call = a2a.kernel.turns, a2a.call
    view = await a2a.view(row)
    await turns.steer_turn(call.principal, view, TurnSteer(text=message.instruction), message.key, call.headers)
