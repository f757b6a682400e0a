"""Asking a stub the way a step does: through `ask`, with attempts counted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from turnstile.activities.prompt.model_attempts import Attempts, Question, StepLimits, ask
from turnstile.activities.prompt.model_queues import ModelQueues
from turnstile.rules.answer import ModelAnswer
from turnstile.runtime.ports import Model, ModelMessage, ModelRequest
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, StepId
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk, Message, TurnAddress

PROMPT = "prompt-marker-0815"
LIMITS = StepLimits(model_timeout_seconds=60, model_attempts=3, retry_initial_seconds=0.001, retry_max_seconds=0.002)
MESSAGES = (ModelMessage(role="system", content="be good"), ModelMessage(role="user", content=PROMPT))


class Chunks:
    """A publisher that keeps the chunks it is given."""

    def __init__(self) -> None:
        self.sent: list[Chunk] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        raise AssertionError("asking publishes nothing that is waited for")

    async def emit(self, message: Message) -> None:
        self.sent.append(Chunk.model_validate_json(message.payload))

    def brief(self) -> list[tuple[int, ChunkType, str]]:
        """Attempt, kind and content of each."""
        return [(chunk.attempt, chunk.chunk_type, chunk.content) for chunk in self.sent]


@dataclass
class StepRequest:
    """What came of a question."""

    answer: ModelAnswer | None = None
    error: ModelError | None = None
    attempts: Attempts = field(default_factory=Attempts)
    chunks: Chunks = field(default_factory=Chunks)

    def said(self) -> ModelAnswer:
        """The answer; fails with the error if there is none."""
        if self.answer is None:
            raise AssertionError(self.error)
        return self.answer

    def failed(self) -> ModelError:
        """The error."""
        assert self.error is not None, self.answer
        return self.error

    def codes(self) -> list[object]:
        """The error code of each attempt."""
        return [record.get("error_code") for record in self.attempts.records]


def request_to(model: str, **changes: object) -> ModelRequest:
    """A request; `changes` are fields of its `LlmConfig`."""
    config = LlmConfig.model_validate({"model": model, **changes})
    return ModelRequest(config, MESSAGES, (), step=1, attempt=1, timeout_seconds=5)


async def question(
    model: Model,
    model_id: str,
    *,
    messages: tuple[ModelMessage, ...] = MESSAGES,
    tools: tuple[JsonObject, ...] = (),
    limits: StepLimits = LIMITS,
    asked: StepRequest | None = None,
    config: JsonObject | None = None,
    queues: ModelQueues | None = None,
) -> StepRequest:
    """Ask until there is an answer or a last error; nothing but a `ModelError` is caught."""
    result = asked or StepRequest()
    address = TurnAddress(ProjectId("p"), ChannelId("public"), AgentId("a"), AgentTurnId("t"), 1, {}, "worker")
    llm = LlmConfig.model_validate({"model": model_id, **(config or {})})
    asking = Question(AgentTurnId("t"), StepId("t-s1"), 1, llm, messages, tools, address)
    count = [1, 0]

    async def count_failure() -> tuple[int, int]:
        count[0] += 1
        count[1] += 1
        return count[0], count[1]

    try:
        result.answer = await ask(
            model, result.chunks, asking, replace(limits), result.attempts, (1, 0), count_failure, queues=queues
        )
    except ModelError as error:
        result.error = error
    return result
