"""A turn as a program sees it, whichever way it asks: over NATS (`sdk.nats_turns`) or HTTP (`sdk.http_turns`)."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetRaiseRequest,
    ProjectLimitRequest,
)
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.cards import SubmittedField
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ChannelId, InterruptId, StepId, uuid7
from turnstile.schema.people.interrupt_requests import InterruptListRequest, InterruptView
from turnstile.schema.people.interrupts import DecideReply, DecideRequest
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.people.steers import SteerReply, SteerRequest
from turnstile.schema.states import ChunkType, SteerPriority, TurnStatus
from turnstile.schema.wire.descriptions import TreeTurn, TurnView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest, StopReply
from turnstile.schema.wire.progress import CallProgress
from turnstile.sdk.requests import Budget, budget_of, parse_request

Cascade = Literal["waited", "all"]
"""Which turns below a stopped one end too: those that are waited for, or all."""
_FIELDS = TypeAdapter(dict[str, list[SubmittedField]])


class TurnResult(Tolerant):
    """What a turn came to: its outcome and its one deliverable (protocol §2.4, §4)."""

    agent_turn_id: AgentTurnId
    status: TurnStatus
    value: JsonValue
    """The deliverable: a text, the fields that were asked for, or what the kernel made in place of one."""
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

    @property
    def ok(self) -> bool:
        """Whether the turn succeeded."""
        return self.status is TurnStatus.SUCCESS

    @property
    def fields(self) -> dict[str, JsonValue]:
        """The fields that were asked for, by name; empty if the deliverable is something else."""
        try:
            found = _FIELDS.validate_python(self.value)
        except ValidationError:
            return {}
        return {field.name: field.value for field in found.get("fields", ())}


class Stopped(StopReply):
    """What a stop has done; false if the turn was over before."""

    def __bool__(self) -> bool:
        return not self.already_final


class Turn(ABC):
    """A turn of an agent: iterate it for its text, await `result`, or `stop` it. `Client` makes them."""

    reply: EnqueueReply | None = None
    """The answer to the request, once the turn is started: agent, boxes, `duplicate`; None for one that was found."""

    on_progress: Callable[[CallProgress], object] | None = None
    """Called with how far tools are, as they say, while `chunks` are read; by a turn of a gateway only."""

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

    @abstractmethod
    def chunks(self) -> AbstractAsyncContextManager[AsyncGenerator[Chunk]]:
        """All that the model writes, until the turn has ended: text, reasoning, calls of tools, by step and attempt.

        Listening begins on entry; the turn is started by the first step of the iteration, unless that was done.
        """

    @abstractmethod
    async def describe(self) -> TurnView:
        """Where the turn stands now; raises `Refused` or `ServerUnavailable`."""

    @abstractmethod
    async def result(self, timeout: float | None = None) -> TurnResult:
        """What the turn came to, whatever its status; while a server is away it waits.

        Raises `TimeoutError` after `timeout` seconds: the turn then goes on. `ServerUnavailable` once the connection is
        closed.
        """

    @abstractmethod
    async def stop(self, reason: str = "", *, cascade: Cascade = "waited") -> Stopped:
        """End the turn and the turns below it: it keeps what it has and ends as `canceled`. False if it was over.

        Raises `Refused` or `ServerUnavailable`.
        """

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
        asked: dict[str, JsonValue] = {"agent_turn_id": await self.start(), "from_step": from_step, "model": model}
        asked |= {"runtime_config": runtime_config, "budget": budget_of(budget)}
        asked |= {"correlation_id": correlation_id or uuid7()}
        given: JsonObject = {name: value for name, value in asked.items() if value is not None}
        made = self.again(parse_request(RerunRequest, given))
        await made.start()
        return made

    @abstractmethod
    def again(self, request: RerunRequest) -> "Turn":
        """The turn that runs this one again, not enqueued yet."""

    @abstractmethod
    async def steer(self, text: str, *, when_idle: bool = False, correlation_id: str | None = None) -> SteerReply:
        """Say something to the turn while it runs: its next step asks the model with it (protocol §6, steer).

        With `when_idle` only once the turn would end, which then takes another step. `describe` tells what became of
        it. With a `correlation_id` of yours, the same request made again is the same steer. Raises `Refused`
        (`already_final` for a turn that is over, `not_yours`), or `ServerUnavailable`.
        """

    @abstractmethod
    async def tree(self) -> Sequence[TreeTurn]:
        """Every turn of the tree that it is in, parents before children; raises as `stop` does."""


def steer_request(turn: AgentTurnId, text: str, *, when_idle: bool, correlation_id: str | None) -> SteerRequest:
    """The request for a steer; raises `BadRequest`. It has a name of its own, so that it can be repeated."""
    priority = SteerPriority.WHEN_IDLE if when_idle else SteerPriority.ASAP
    given: dict[str, JsonValue] = {"agent_turn_id": turn, "text": text, "priority": priority.value}
    return parse_request(SteerRequest, {**given, "correlation_id": correlation_id or uuid7()})


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
    async def list_interrupts(self, wanted: InterruptListRequest) -> tuple[list[InterruptId], InterruptId | None]:
        """A page of the ids of questions to people, and the `after` of the next page."""

    @abstractmethod
    async def get_interrupt(self, interrupt_id: InterruptId) -> InterruptView:
        """A question to a person with its call; raises `Refused` (unknown_interrupt) or `ServerUnavailable`."""

    @abstractmethod
    async def decide(self, about: InterruptView, wanted: DecideRequest) -> DecideReply:
        """Decide a question; raises `Refused` with the code of the refusal, or `ServerUnavailable`."""

    @abstractmethod
    async def list_budgets(self, wanted: BudgetListRequest) -> BudgetListReply:
        """A page of budgets, and what the project may spend."""

    @abstractmethod
    async def get_budget(self, budget_id: BudgetId) -> BudgetView:
        """A budget; raises `Refused` (unknown_budget) or `ServerUnavailable`."""

    @abstractmethod
    async def raise_budget(self, wanted: BudgetRaiseRequest, channel: ChannelId | None) -> BudgetView:
        """The budget, of this channel if one is given, with its new limits.

        Raises `Refused` with the code of the refusal, or `ServerUnavailable`.
        """

    @abstractmethod
    async def limit_project(self, wanted: ProjectLimitRequest) -> BudgetView:
        """The budget of this day or month; raises as `raise_budget`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""
