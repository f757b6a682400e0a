"""A2A's objects as they are answered: tasks, their artifacts, the events of a stream (protocol §17.3). Pure.

The SDK's own are messages of protobuf, whose numbers are doubles: what an agent delivers would be changed by them.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from turnstile.schema.base import JsonObject


class TaskState:
    """The names of A2A's states."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"


OVER = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED})


class A2aObject(BaseModel):
    """Frozen; its fields are in camel case outside."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    def json_text(self) -> str:
        """As JSON, without what is not set."""
        return self.model_dump_json(by_alias=True, exclude_unset=True)


class Part(A2aObject):
    """A text, or JSON."""

    text: str = ""
    data: JsonValue = None
    media_type: str = ""


class Message(A2aObject):
    """Something that was said."""

    message_id: str
    context_id: str
    task_id: str
    role: Literal["ROLE_USER", "ROLE_AGENT"]
    parts: list[Part]


class TaskStatus(A2aObject):
    """Where a task stands."""

    state: str
    timestamp: str
    message: Message | None = None


class Artifact(A2aObject):
    """What a task delivers."""

    artifact_id: str
    name: str
    parts: list[Part]
    metadata: JsonObject = Field(default_factory=dict)


class Task(A2aObject):
    """A turn."""

    id: str
    context_id: str
    status: TaskStatus
    artifacts: list[Artifact] = Field(default_factory=list[Artifact])
    history: list[Message] = Field(default_factory=list[Message])
    metadata: JsonObject = Field(default_factory=dict)


class StatusUpdate(A2aObject):
    """A task stands elsewhere."""

    task_id: str
    context_id: str
    status: TaskStatus


class ArtifactUpdate(A2aObject):
    """More of an artifact, or with `append` false all of it, in place of what was sent before."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool
    last_chunk: bool


class StreamEvent(A2aObject):
    """One event of a stream: one of these."""

    task: Task | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None


class SentMessage(A2aObject):
    """The answer to a message."""

    task: Task


class TaskPage(A2aObject):
    """Tasks, the last begun first."""

    tasks: list[Task]
    next_page_token: str
    page_size: int
    total_size: int


class PushConfig(A2aObject):
    """A receiver of a task's notifications; its token is never returned."""

    id: str
    task_id: str
    url: str


class PushConfigList(A2aObject):
    """The receivers of a task."""

    configs: list[PushConfig]
    next_page_token: str = ""


def text_part(text: str) -> Part:
    """A text as a part."""
    return Part(text=text, media_type="text/plain")


def data_part(data: JsonValue) -> Part:
    """JSON as a part."""
    return Part(data=data, media_type="application/json")
