"""Interfaces that activities use and others implement: a publisher and a model. `turnstile` connects the two sides."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import FilePart, Reasoning
from turnstile.schema.ids import ArtifactId
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.wire.events import Message


class Publisher(Protocol):
    """Publishes the messages of a committed transition. It is never called before the commit."""

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish in order and wait for the acknowledgements.

        Raises `ServerUnavailable` if a required message was not acknowledged; the loss of any other is logged.
        """
        ...

    async def emit(self, message: Message) -> None:
        """Publish on core NATS without waiting; the message is lost while disconnected."""
        ...


class Signals(Protocol):
    """Messages of workers to all workers, on core NATS: those that are not connected miss them."""

    async def send(self, payload: bytes) -> None:
        """Publish without waiting for anybody; the message is lost while disconnected. Never raises."""
        ...

    async def hear(self, take: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Call `take` with every message from now on, and `missed` after each time when some may have been lost."""
        ...


class ModelToolCall(Tolerant):
    """A tool call in an assistant message. `id` is the kernel's, not the model's."""

    id: str
    name: str
    arguments: str
    """JSON text."""


class ModelMessage(Tolerant):
    """One message of the request, OpenAI-style."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ModelToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: Reasoning | None = None
    """On an assistant's message: what its provider, and nobody else, gets back with it."""
    shortened: bool = False
    """On a tool's message: whether it shows a part of the result."""
    files: tuple[FilePart, ...] = ()
    """The files that it names; its content has a line for each."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file as a model can be shown it (protocol §22.6)."""

    artifact_id: ArtifactId
    kind: Literal["image", "pdf", "text", "note"]
    """By its content; `note`: not shown, and `text` says why."""
    text: str
    """The file's line; of a text also what is in it."""
    url: str = field(default="", repr=False)
    """A data URL with the bytes of an image or a PDF."""
    mime: str = ""
    filename: str = ""
    width: int = 0
    height: int = 0
    pages: int = 0


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The request of one attempt of one step. `step` and `attempt` count from 1."""

    config: LlmConfig
    messages: tuple[ModelMessage, ...]
    tools: tuple[JsonObject, ...]
    step: int
    attempt: int
    timeout_seconds: float
    before_send: Callable[[], None] = _nothing
    """Called once more just before the request is sent; it raises `ModelError` if it may not be sent now."""
    files: Mapping[ArtifactId, ModelFile] = field(default_factory=dict[ArtifactId, ModelFile])
    """Those of the messages' files that are shown, to a model that takes them."""
    output_schema: JsonObject | None = None
    """What the answer must match, if the one tool that is offered takes it: a provider may take the schema instead."""


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: `index` says of which one; id and name come once, arguments in pieces."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ModelDone:
    """The end of the stream, always last. `usage` has token counts as the provider names them."""

    finish_reason: str
    usage: JsonObject = field(default_factory=JsonObject)
    response_cost: float | None = None
    usage_kind: Literal["exact", "estimated", "unknown"] = "unknown"
    response_id: str | None = None
    """The provider's id of the answer."""
    server: str | None = None
    """The base URL that was asked, where the operator set one."""
    reasoning: Reasoning | None = None
    """What the provider wants back of the reasoning."""
    refusal: str = ""
    """What the model said instead of an answer, where its provider marks that as a refusal."""
    lost_calls: int = 0
    """Calls that came without a function."""


ModelEvent = ContentDelta | ReasoningDelta | ToolCallDelta | ModelDone


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The tokens of a request. `exact`: counted as the model counts them, else estimated."""

    tokens: int
    exact: bool


class Model(Protocol):
    """Sends requests to models. One adapter serves all turns and keeps no state of any (ARCHITECTURE.md)."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yields the answer as it arrives, `ModelDone` last; raises `ModelError`, which says if a retry can help."""
        ...

    async def count(self, request: ModelRequest) -> TokenCount:
        """The tokens of the request, tools included; asks no provider. Raises `ModelError` if no adapter serves it."""
        ...

    async def check(self, model: str) -> None:
        """Raises `ModelError` with a code if no request to `model` can succeed (unknown model, no key)."""
        ...

    async def close(self) -> None:
        """Close clients; idempotent."""
        ...
