"""A turn as a task of A2A: its state, what it asks, what it delivered, what was said (protocol §17.3). Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from turnstile.gateway.a2a.objects import Artifact, Message, Part, Task, TaskState, TaskStatus, data_part, text_part
from turnstile.gateway.events.ends import Seen
from turnstile.gateway.outputs import is_fallback
from turnstile.ledger.access.tasks import TaskRow
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardContent, JsonContent, TextContent
from turnstile.schema.ids import InterruptId
from turnstile.schema.people.interrupts import Interrupt

ARTIFACT: Final = "answer"
"""The id of a task's only artifact: what its turn delivers, or what it has streamed of that."""
_STATES: Mapping[str, str] = {
    "queued": TaskState.SUBMITTED,
    "dispatched": TaskState.SUBMITTED,
    "success": TaskState.COMPLETED,
    "partial": TaskState.FAILED,
    "failed": TaskState.FAILED,
    "timeout": TaskState.FAILED,
    "canceled": TaskState.CANCELED,
}


def state_of(row: TaskRow) -> str:
    """The state of a turn."""
    return TaskState.INPUT_REQUIRED if row.asks else _STATES.get(row.status, TaskState.WORKING)


def moment_of(row: TaskRow) -> datetime:
    """When its state was reached, as far as the ledger has that."""
    return row.ended_at or row.started_at or row.created_at


def context_of(row: TaskRow) -> str:
    """The conversation of a turn; a turn without one is a context of its own."""
    return row.conversation_id or row.agent_turn_id


def task_of(
    row: TaskRow,
    questions: Sequence[Interrupt] = (),
    arguments: Mapping[InterruptId, JsonObject] | None = None,
    *,
    history_length: int | None = None,
) -> Task:
    """The task; `history_length` bounds its history from its end, None does not."""
    artifact = artifact_of(row.delivered, partial=row.partial)
    history = _history(row, artifact)
    return Task(
        id=row.agent_turn_id,
        context_id=context_of(row),
        status=status_of(row, questions, arguments),
        artifacts=[] if artifact is None else [artifact],
        history=history if history_length is None else history[max(0, len(history) - history_length) :],
        metadata={"agentId": row.agent_id},
    )


def as_seen(row: TaskRow, seen: Seen) -> TaskRow:
    """A turn that is not over, as it was seen."""
    view = seen.view
    return row.model_copy(
        update={"status": view.status, "started_at": view.started_at, "asks": bool(seen.questions)},
    )


def status_of(
    row: TaskRow, questions: Sequence[Interrupt] = (), arguments: Mapping[InterruptId, JsonObject] | None = None
) -> TaskStatus:
    """Where a turn stands, with what it asks or why it failed."""
    parts: list[Part] = []
    if row.asks:
        for question in questions:
            parts += [text_part(question.message), data_part(_question(question, arguments or {}))]
    elif row.error_code is not None or row.error:
        parts.append(text_part(row.error or row.error_code or ""))
        parts.append(data_part({"code": row.error_code or row.status}))
    moment = moment_of(row).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    status = TaskStatus(state=state_of(row), timestamp=moment)
    if parts:
        message = _message(row, "status", "ROLE_AGENT", parts)
        status = TaskStatus(state=status.state, timestamp=moment, message=message)
    return status


def artifact_of(delivered: CardContent | None, *, partial: bool = False) -> Artifact | None:
    """What a turn delivered; None for nothing, also where the kernel's own account of that stands in its place."""
    match delivered:
        case TextContent(text=text):
            return answer_artifact([text_part(text)], partial=partial)
        case JsonContent(data=data) if not (isinstance(data, dict) and is_fallback(data)):
            return answer_artifact([data_part(data)], partial=partial)
        case _:
            return None


def answer_artifact(parts: list[Part], *, partial: bool = False) -> Artifact:
    """The artifact with these parts."""
    if partial:
        return Artifact(artifact_id=ARTIFACT, name=ARTIFACT, parts=parts, metadata={"partial": True})
    return Artifact(artifact_id=ARTIFACT, name=ARTIFACT, parts=parts)


def _question(question: Interrupt, arguments: Mapping[InterruptId, JsonObject]) -> JsonValue:
    request: JsonObject = {
        "interruptId": question.interrupt_id,
        "reason": question.reason.value,
        "toolName": question.tool_name,
        "allowedDecisions": [allowed_decision.value for allowed_decision in question.allowed_decisions],
        "expiresAt": question.expires_at.isoformat(),
    }
    details: JsonObject = {
        "actionDigest": question.action_digest,
        "responseSchema": question.response_schema,
        "arguments": arguments.get(question.interrupt_id),
    }
    return request | {name: value for name, value in details.items() if value is not None}


def _history(row: TaskRow, delivered: Artifact | None) -> list[Message]:
    history: list[Message] = []
    if row.instruction is not None:
        history.append(_message(row, "instruction", "ROLE_USER", [text_part(row.instruction)]))
    if delivered is not None:
        history.append(_message(row, "deliverable", "ROLE_AGENT", delivered.parts))
    return history


def _message(row: TaskRow, kind: str, role: str, parts: list[Part]) -> Message:
    """A message of the task; the instruction has the id that its sender gave it."""
    message_id = row.correlation_id if kind == "instruction" else None
    if message_id is not None:
        message_id = message_id.removeprefix(f"{row.channel_id}/")
    return Message.model_validate(
        {
            "message_id": message_id or f"{row.agent_turn_id}-{kind}",
            "context_id": context_of(row),
            "task_id": row.agent_turn_id,
            "role": role,
            "parts": parts,
        }
    )
