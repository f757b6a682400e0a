"""A turn as a program sees it, whichever way it asks: over NATS (`sdk.nats_turns`) or HTTP (`sdk.http_turns`)."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, cast

from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from typing_extensions import TypeVar

from turnstile.schema import verbs
from turnstile.schema.base import JsonObject, Reply, Tolerant
from turnstile.schema.cards import FilePart, SubmittedField
from turnstile.schema.errors import BadRequest, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ChannelId, StepId, uuid7
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.people.steers import SteerReply, SteerRequest
from turnstile.schema.states import ChunkType, SteerPriority, TurnStatus
from turnstile.schema.validation import describe_faults
from turnstile.schema.verbs import Verb
from turnstile.schema.wire.descriptions import TreeTurn, TurnView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest, StopReply, StopRequest
from turnstile.schema.wire.progress import CallProgress
from turnstile.sdk.requests import Budget, budget_of, parse_request

if TYPE_CHECKING:
    from turnstile.sdk.functions import ClientFunctions  # which imports what only programs with functions need

Request = TypeVar("Request", bound=BaseModel)
Answer = TypeVar("Answer", bound=Reply)
Cascade = Literal["waited", "all"]
"""Which turns below a stopped one end too: those that are waited for, or all."""
Value = TypeVar("Value", default=JsonValue)
Output: TypeAlias = type[Value] | TypeAdapter[Value]
"""What a typed answer is: a pydantic model or any other type, or the adapter of one (`TypeAdapter(list[int])`)."""
_FIELDS = TypeAdapter(dict[str, list[SubmittedField]])


Attached: TypeAlias = "os.PathLike[str] | bytes | str"
"""A file of a request: a path, the bytes themselves, or the id of a file that is there."""


class TurnResult(Tolerant, Generic[Value]):
    """What a turn came to: its outcome and its one deliverable (protocol §2.4, §4)."""

    agent_turn_id: AgentTurnId
    status: TurnStatus
    value: Value
    """The deliverable: a text, the fields that were asked for, or what the kernel made in place of one; of a turn that
    was asked for an `output`, a value of that type."""
    card_id: CardId | None = None
    """The card that holds the deliverable."""
    partial: bool = False
    """Whether the deliverable is what was there when the turn was ended."""
    error_code: str | None = None
    """What went wrong, as a stable word; None if nothing did."""
    error: str | None = None
    """What went wrong, for people."""
    stats: JsonObject = Field(default_factory=dict)
    """Steps, times in ms, tokens, model."""
    files: tuple[FilePart, ...] = ()
    """The files of the deliverable; `client.files` reads them."""

    @property
    def ok(self) -> bool:
        """Whether the turn succeeded."""
        return self.status is TurnStatus.SUCCESS

    @property
    def fields(self) -> dict[str, JsonValue]:
        """The fields that were asked for, by name; empty if the deliverable is something else."""
        try:
            value = _FIELDS.validate_python(self.value)
        except ValidationError:
            return {}
        return {field.name: field.value for field in value.get("fields", ())}


class TurnFailed(TurnstileError):
    """A turn that was asked for a typed answer ended without one; `result` says how, and holds what there is."""

    code: str = "turn_failed"

    def __init__(self, result: TurnResult[JsonValue], why: str | None = None) -> None:
        code = f" ({result.error_code})" if result.error_code else ""
        because = why or result.error
        super().__init__(
            f"turn {result.agent_turn_id} ended as {result.status}{code}{f': {because}' if because else ''}"
        )
        self.result = result


def typed_result(result: TurnResult[JsonValue], output: TypeAdapter[Value]) -> TurnResult[Value]:
    """The result with its value as `output` reads it (protocol §18); raises `TurnFailed` if there is none."""
    if not result.ok:
        raise TurnFailed(result)
    if not isinstance(result.value, dict) or result.value.keys() != {"value"}:
        raise TurnFailed(result, "what it delivered is no typed answer")
    try:
        value = output.validate_python(result.value["value"])
    except ValidationError as error:
        why = f"its value matches the schema of the type, and not the type: {describe_faults(error)}"
        raise TurnFailed(result, why) from None
    return cast("TurnResult[Value]", result.model_copy(update={"value": value}))


def adapter_of(output: "Output[Value]") -> TypeAdapter[Value]:
    """The adapter of a type; raises `BadRequest` for what has no JSON schema."""
    try:
        adapter = output if isinstance(output, TypeAdapter) else TypeAdapter[Value](output)
        adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema, PydanticUserError) as error:
        raise BadRequest(f"output: {error.message}") from None
    return adapter


class Stopped(StopReply):
    """What a stop has done; false if the turn was over before."""

    def __bool__(self) -> bool:
        return not self.already_final


class Turn(ABC, Generic[Value]):
    """A turn of an agent: iterate it for its text, await `result`, or `stop` it. `Client` makes them."""

    output: TypeAdapter[Value] | None = None
    """The type of its value, if it was asked for a typed answer."""

    functions: "ClientFunctions | None" = None
    """The functions of this program that the turn's model may call: they run while it is read or waited for."""

    reply: EnqueueReply | None = None
    """The answer to the request, once the turn is started: agent, boxes, `duplicate`; None for one that was found."""

    on_progress: Callable[[CallProgress], object] | None = None
    """Called with how far tools are, as they say, while `chunks` are read; by a turn of a gateway only."""

    def attach(self, files: "Sequence[Attached]") -> None:
        """Send these with the request once the turn is started; raises `BadRequest` where no gateway is asked."""
        raise BadRequest("files go over HTTP: connect to a gateway, https://…, or name files by their ids")

    @abstractmethod
    async def start(self) -> AgentTurnId:
        """Enqueue the turn unless that was done, and return its id.

        Raises `Refused` with the code of the refusal, or `ServerUnavailable`; the same call may then be repeated.
        """

    async def __aiter__(self) -> AsyncGenerator[str]:
        """Pieces of the answer's text as the model writes it, until the turn has ended; a blank line between two steps.

        Where an attempt fails in the middle, the next one's pieces follow those of the first: `result` is exact.
        """
        step: StepId | None = None
        async with self.chunks() as chunks:
            async for chunk in chunks:
                if chunk.chunk_type is not ChunkType.CONTENT or not chunk.content:
                    continue
                if step is not None and chunk.step_id != step:
                    yield "\n\n"
                step = chunk.step_id
                yield chunk.content

    @asynccontextmanager
    async def chunks(self) -> AsyncGenerator[AsyncGenerator[Chunk]]:
        """All that the model writes, until the turn has ended: text, reasoning, calls of tools, by step and attempt.

        Listening begins on entry; the turn is started by the first step of the iteration, unless that was done.
        """
        async with self.streamed() as chunks:
            if self.functions is None:
                yield chunks
            else:
                async with aclosing(self._answered(chunks, self.functions)) as answered:
                    yield answered

    async def _answered(self, chunks: AsyncGenerator[Chunk], functions: "ClientFunctions") -> AsyncGenerator[Chunk]:
        """The chunks; the calls of functions are run meanwhile."""
        await self.start()
        async with functions.answering(self) as answering:
            while (chunk := await answering.meanwhile(anext(chunks, None))) is not None:
                yield chunk
        functions.cancel()

    @abstractmethod
    def streamed(self) -> AbstractAsyncContextManager[AsyncGenerator[Chunk]]:
        """As `chunks`, without running functions."""

    @abstractmethod
    def hints(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Used by `ClientFunctions`: an event that is set when a call of the started turn may wait for its client."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the connection is closed for good."""

    @abstractmethod
    async def describe(self) -> TurnView:
        """Where the turn stands now; raises `Refused` or `ServerUnavailable`."""

    async def result(self, timeout: float | None = None) -> TurnResult[Value]:
        """What the turn came to, whatever its status; while a server is away it waits.

        Raises `TimeoutError` after `timeout` seconds: the turn then goes on. `ServerUnavailable` once the connection is
        closed. A turn that was asked for an `output` and ended without one raises `TurnFailed`.
        """
        result = await self.outcome(timeout)
        return cast("TurnResult[Value]", result) if self.output is None else typed_result(result, self.output)

    async def outcome(self, timeout: float | None = None) -> TurnResult[JsonValue]:
        """As `result`, with the deliverable as it is stored, whatever the turn was asked for."""
        if self.functions is None:
            return await self.ended(timeout)
        async with asyncio.timeout(timeout):
            await self.start()
            async with self.functions.answering(self) as answering:
                result = await answering.meanwhile(self.ended())
            self.functions.cancel()
        return result

    @abstractmethod
    async def ended(self, timeout: float | None = None) -> TurnResult[JsonValue]:
        """As `outcome`, without running functions."""

    @abstractmethod
    async def call(self, verb: Verb[Request, Answer], request: Request) -> Answer:
        """The accepted reply to a verb about the turn; raises as `Backend.call`."""

    async def stop(self, reason: str = "", *, cascade: Cascade = "waited") -> Stopped:
        """End the turn and the turns below it: it keeps what it has and ends as `canceled`. False if it was over.

        Raises `Refused` or `ServerUnavailable`.
        """
        fields: JsonObject = {"agent_turn_id": await self.start(), "reason": reason}
        if cascade != "waited":
            fields["cascade"] = cascade
        reply = await self.call(verbs.STOP, parse_request(StopRequest, fields))
        return Stopped.model_validate(reply.model_dump())

    async def rerun(
        self,
        from_step: int | None = None,
        *,
        model: str | None = None,
        runtime_config: JsonObject | None = None,
        budget: Budget | None = None,
        correlation_id: str | None = None,
    ) -> "Turn":
        """Run the turn again, which must be over, from one of its steps; returns the new turn, which is enqueued.

        Without `from_step` a failed turn goes on from the step that failed, any other begins anew. `model` and
        `runtime_config` replace what the turn was asked with; the `budget` is by default the profile's. Raises
        `BadRequest`, `Refused` or `ServerUnavailable`.
        """
        arguments: dict[str, JsonValue] = {"agent_turn_id": await self.start(), "from_step": from_step, "model": model}
        arguments |= {"runtime_config": runtime_config, "budget": budget_of(budget)}
        arguments |= {"correlation_id": correlation_id or uuid7()}
        fields: JsonObject = {name: value for name, value in arguments.items() if value is not None}
        turn = self.again(parse_request(RerunRequest, fields))
        await turn.start()
        return turn

    @abstractmethod
    def again(self, request: RerunRequest) -> "Turn":
        """The turn that runs this one again, not enqueued yet."""

    async def steer(self, text: str, *, when_idle: bool = False, correlation_id: str | None = None) -> SteerReply:
        """Say something to the turn while it runs: its next step asks the model with it (protocol §6, steer).

        With `when_idle` only once the turn would end, which then takes another step. `describe` says what became of
        it. With a `correlation_id` of yours, the same request made again is the same steer. Raises `Refused`
        (`already_final` for a turn that is over, `not_yours`), or `ServerUnavailable`.
        """
        priority = SteerPriority.WHEN_IDLE if when_idle else SteerPriority.ASAP
        fields: dict[str, JsonValue] = {"agent_turn_id": await self.start(), "text": text, "priority": priority.value}
        fields["correlation_id"] = correlation_id or uuid7()
        return await self.call(verbs.STEER, parse_request(SteerRequest, fields))

    @abstractmethod
    async def tree(self) -> Sequence[TreeTurn]:
        """Every turn of the tree that it is in, parents before children; raises as `stop` does."""


class Backend(ABC):
    """A way to the agents of one channel of one project."""

    @abstractmethod
    def ask(self, request: EnqueueRequest) -> Turn:
        """The turn of a request, not enqueued yet."""

    @abstractmethod
    def known(self, agent_id: AgentId, agent_turn_id: AgentTurnId) -> Turn:
        """A turn of this channel that was asked for, without a look at it."""

    @abstractmethod
    async def find(self, agent_turn_id: AgentTurnId) -> Turn:
        """A turn that was asked for; raises `Refused` (unknown_turn) or `ServerUnavailable`."""

    @abstractmethod
    async def call(self, verb: Verb[Request, Answer], request: Request, channel: ChannelId | None = None) -> Answer:
        """The accepted reply to a verb, asked in this channel if one is given.

        Raises `Refused` with the code of the refusal, `BadRequest` for what cannot be sent, or `ServerUnavailable`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""
