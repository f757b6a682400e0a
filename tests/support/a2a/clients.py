"""Official clients of A2A, and what they make of what they hear."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    Artifact,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.support.tenants import ALICE


@asynccontextmanager
async def a2a_client(
    url: str, token: str, agent: str = ALICE, *, streaming: bool = True
) -> AsyncGenerator[tuple[Client, AgentCard]]:
    """The official client of an agent, made from its card."""
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as web:
        card = await A2ACardResolver(web, f"{url}/a2a/{agent}").get_agent_card()
        client = ClientFactory(ClientConfig(httpx_client=web, streaming=streaming)).create(card)
        yield client, card


def saying(*parts: Any, task: Task | None = None, message_id: str = "", **configuration: Any) -> SendMessageRequest:
    """A message of texts and JSON, to a task if one is given."""
    message = Message(message_id=message_id or str(uuid4()), role=Role.ROLE_USER)
    for part in parts:
        if isinstance(part, str):
            message.parts.add(text=part)
        else:
            ParseDict({"data": part}, message.parts.add())
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(**configuration))


async def ask(client: Client, *parts: Any, **fields: Any) -> Task:
    """The task that a message comes to, of a client that does not stream."""
    [answer] = [each async for each in client.send_message(saying(*parts, **fields))]
    assert answer.HasField("task")
    return answer.task


@dataclass
class Heard:
    """What a client folds of a stream, as A2A says."""

    task: Task | None = None
    states: list[str] = field(default_factory=list[str])
    artifact: Artifact | None = None
    ended: bool = False
    replaced: int = 0
    updates: int = 0
    last_update: Artifact | None = None
    """What the last update alone said."""

    def take(self, event: StreamResponse) -> None:
        """One event."""
        assert not self.ended or event.HasField("status_update")
        match event.WhichOneof("payload"):
            case "task":
                assert self.task is None
                self.task = event.task
                self.states.append(TaskState.Name(event.task.status.state))
                for artifact in event.task.artifacts:  # it was over before the stream began
                    self.artifact = artifact
            case "status_update":
                self.states.append(TaskState.Name(event.status_update.status.state))
                assert self.task is not None
                self.task.status.CopyFrom(event.status_update.status)
            case "artifact_update":
                self._artifact(event)
            case other:
                raise AssertionError(other)

    def _artifact(self, event: StreamResponse) -> None:
        update = event.artifact_update
        self.updates += 1
        self.ended, self.last_update = update.last_chunk, update.artifact
        if update.append:
            assert self.artifact is not None
            self.artifact.parts.extend(update.artifact.parts)
        else:
            self.replaced += self.artifact is not None
            self.artifact = Artifact()
            self.artifact.CopyFrom(update.artifact)

    @property
    def text(self) -> str:
        """The text of the artifact."""
        return text_of(self.artifact)

    @property
    def state(self) -> str:
        """The last state."""
        return self.states[-1]

    async def hear(self, events: AsyncIterator[StreamResponse]) -> "Heard":
        """All of a stream."""
        async for event in events:
            self.take(event)
        return self


def text_of(artifact: Artifact | None) -> str:
    """The text of an artifact."""
    return "" if artifact is None else "".join(part.text for part in artifact.parts)


def state_of(task: Task) -> str:
    """The name of a task's state."""
    return TaskState.Name(task.status.state)


def question_in(task: Task) -> dict[str, Any]:
    """The first question in a task's status."""
    found = [MessageToDict(part.data) for part in task.status.message.parts if part.HasField("data")]
    return found[0]
