"""Turns of a conversation, run by the activities themselves on a ledger, with scripted models and without an engine."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue
from temporalio.testing import ActivityEnvironment

from tests.support.ledger.agents import ALICE, PROJECT, ask, rows, start
from tests.support.ledger.calls import told as told_report
from turnstile.activities.models import ScriptedModel, ScriptLine
from turnstile.activities.models.script import Script, ScriptCall
from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.activities.turn.compaction import Windows
from turnstile.activities.turn.steps import StepActivities
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Row
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.cards import BoxCache, BoxKey, BoxPrefix
from turnstile.rules.turn_step import OpenedBox
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import AgentTurnId, BoxId, InboxId, ToolCallId
from turnstile.schema.profiles import LlmConfig, Memory, Profile
from turnstile.schema.turns import RunStepInput, StepContinues, StepEnds, StepResult, StepSuspends, TurnRef
from turnstile.schema.wire.events import Message

_MARKER = re.compile(r"m-(\d+)")


def told(request: ModelRequest) -> list[int]:
    """The numbers of the user's messages of a request, in order."""
    return [int(n) for message in request.messages if message.role == "user" for n in _MARKER.findall(message.content)]


def is_summed_up(request: ModelRequest) -> bool:
    """Whether a summary stands in the request."""
    return any("summed up here" in message.content for message in request.messages)


@dataclass
class Cast:
    """The scripted models, and what each was asked."""

    window: int | None = None
    """The most words that `talker` takes; more is too long for it."""
    asked: list[ModelRequest] = field(default_factory=list[ModelRequest])
    summaries: list[ModelRequest] = field(default_factory=list[ModelRequest])

    def talker(self, request: ModelRequest) -> ScriptLine:
        """Calls a tool that is not there, then says what it was told of."""
        words = sum(len(message.content.split()) for message in request.messages)
        if self.window is not None and words > self.window:
            raise ModelError("context_window_exceeded", "too long", retryable=False)
        self.asked.append(request)
        if request.step == 1:
            return ScriptLine(tool_calls=(ScriptCall(name="nosuch"),))
        numbers, summed = told(request), "after a summary" if is_summed_up(request) else "from the start"
        return ScriptLine(text=f"heard {numbers[0]} to {numbers[-1]} {summed}")

    def summary(self, request: ModelRequest) -> ScriptLine:
        """Says which words it was given, in five words."""
        self.summaries.append(request)
        numbers = told(request)
        return ScriptLine(text=f"talk went from {numbers[0]} on", usage={"prompt_tokens": 7, "completion_tokens": 5})

    def lengthy(self, request: ModelRequest) -> ScriptLine:
        """A summary of 500 words."""
        self.summaries.append(request)
        return ScriptLine(text="word " * 500)

    def silent(self, request: ModelRequest) -> ScriptLine:
        """No summary."""
        self.summaries.append(request)
        return ScriptLine(text=" ")

    def broken(self, request: ModelRequest) -> ScriptLine:
        """Fails for good."""
        self.summaries.append(request)
        raise ModelError("auth_failed", "no key", retryable=False)

    def result_of(self, call: ToolCallId) -> JsonValue:
        """What the tool says to a call."""
        return f"found by {call}"

    def scripts(self) -> Mapping[str, Script]:
        """By their names."""
        named = (self.talker, self.summary, self.lengthy, self.silent, self.broken)
        return {each.__name__: each for each in named}


class CountedCache(BoxCache):
    """Counts the rows that are read."""

    def __init__(self, max_bytes: int = 0) -> None:
        super().__init__(max_bytes)
        self.rows = 0

    def extend(self, key: BoxKey, known: BoxPrefix, opened: OpenedBox, rows: Sequence[Row]) -> BoxPrefix:
        """As ever."""
        self.rows += len(rows)
        return super().extend(key, known, opened, rows)


@dataclass
class Events:
    """A publisher that keeps what it is given."""

    sent: list[Message] = field(default_factory=list[Message])

    async def publish(self, messages: Sequence[Message]) -> None:
        """Keep them."""
        self.sent.extend(messages)

    async def emit(self, message: Message) -> None:
        """Keep it."""
        self.sent.append(message)


@dataclass(frozen=True)
class Said:
    """A turn that is over: its outcome, the metadata of its steps, and the rows that it read."""

    turn: AgentTurnId
    output_box_id: BoxId
    status: str
    error_code: str | None
    text: str | None
    steps: list[dict[str, Any]]
    rows: int

    @property
    def prompts(self) -> list[int]:
        """The tokens of each request to its own model."""
        return [step["llm_usage"]["prompt_tokens"] for step in self.steps if "compaction" not in step]

    @property
    def compactions(self) -> list[dict[str, Any]]:
        """How its memory was cut."""
        return [step["compaction"] for step in self.steps if "compaction" in step]


@dataclass
class Talk:
    """An agent with a memory, and what runs its turns."""

    pool: Pool
    cast: Cast = field(default_factory=Cast)
    cache: CountedCache = field(default_factory=CountedCache)
    events: Events = field(default_factory=Events)
    limits: StepLimits = field(default_factory=StepLimits)
    windows: Windows = field(default_factory=Windows)

    @property
    def steps(self) -> StepActivities:
        """The activities, which hold nothing."""
        model = ScriptedModel(self.cast.scripts())
        return StepActivities(self.pool, self.events, model, self.limits, self.cache, windows=self.windows)

    async def begun(self, memory: Memory | None, **profile: Any) -> "Talk":
        """Add the agent; returns the talk."""
        await put_profile(self.pool, PROJECT, self.profile(memory, **profile))
        await add_agent(self.pool, PROJECT, ALICE, "talker")
        return self

    def profile(self, memory: Memory | None, **profile: Any) -> Profile:
        """The agent's profile."""
        return Profile(name="talker", llm_config=LlmConfig(model="scripted/talker"), memory=memory, **profile)

    async def enqueue(self, number: int, conversation: str = "c1", words: int = 3) -> None:
        """Ask the agent something with a marker, so many words long."""
        await ask(self.pool, ALICE, f"m-{number} " + "word " * (words - 1), conversation_id=conversation)

    async def begin(self, number: int) -> TurnRef:
        """Ask; returns the turn, which is claimed."""
        await self.enqueue(number)
        return await start(self.pool)

    async def say(self, number: int, conversation: str = "c1", words: int = 3) -> Said:
        """Ask, and play the turn to its end."""
        await self.enqueue(number, conversation, words)
        return await self.play()

    async def step(self, turn: TurnRef, number: int = 0, reports: tuple[InboxId, ...] = ()) -> StepResult:
        """One step, after these reports of calls."""
        return await ActivityEnvironment().run(
            self.steps.run_step, RunStepInput(turn=turn, step=number, reports=reports)
        )

    async def play(self) -> Said:
        """Run the agent's leased turn to its end."""
        turn, before = await start(self.pool), self.cache.rows
        result = await self.step(turn)
        while not isinstance(result, StepEnds):
            assert isinstance(result, StepContinues | StepSuspends), result
            waiting = result.waiting if isinstance(result, StepSuspends) else ()
            reports = tuple([await told_report(self.pool, call, result=self.cast.result_of(call)) for call in waiting])
            result = await self.step(turn, result.step + 1, reports)
        return await self.said(turn, self.cache.rows - before)

    async def said(self, turn: TurnRef, read: int = 0) -> Said:
        """What is recorded of a turn."""
        [ended] = await rows(
            self.pool,
            "SELECT o.status, o.error_code, c.content ->> 'text' AS text FROM state.turn_outcomes o"
            " JOIN cards c ON c.card_id = o.deliverable_card_id WHERE o.agent_turn_id = $1",
            turn.agent_turn_id,
        )
        steps = await rows(
            self.pool,
            "SELECT metadata FROM state.agent_steps WHERE agent_turn_id = $1 ORDER BY started_at",
            turn.agent_turn_id,
        )
        found = [json.loads(step["metadata"]) for step in steps]
        return Said(turn.agent_turn_id, turn.output_box_id, **ended, steps=found, rows=read)
