"""A step that compacts the memory of its turn where the request would be too large (protocol §7.3).

The turn's model is not asked for an answer: the step makes a box without the earliest turns, summed up before if the
profile says so, in which the turn and its conversation go on, and another step follows. Where the summary fails they
leave without one. It costs a count of tokens, which is made only where the size of a request may be over the limit, and
a few more to choose the place.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from turnstile.activities.prompt.model_attempts import Question
from turnstile.activities.turn.current_step import CurrentStep
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.decide import StepRequest
from turnstile.rules.memory import cut_card, summary_card, summary_messages, summary_text
from turnstile.rules.messages import build_messages
from turnstile.rules.tool_specs import READ_RESULT_SPEC
from turnstile.rules.turn_config import PinnedConfig
from turnstile.rules.turn_step import MadeBox
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Model, ModelMessage, ModelRequest, TokenCount
from turnstile.schema.cards import Card, MemoryCut
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import new_box_id
from turnstile.schema.profiles import LlmConfig, Memory
from turnstile.schema.step_metadata import Compaction

log = logging.getLogger(__name__)

TOO_LONG = "context_window_exceeded"
"""`error_code` of a request that the model refused as too long."""
TOO_SMALL = "memory_too_small"
"""`error_code` of a turn that alone is over its `max_context_tokens`."""
_LEAST_SUMMARY = 256
"""The least `max_tokens` of a summary: what is too long is shortened."""
_MESSAGE_BYTES = 64
"""More than a message's frame takes."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The cards of the compaction, the box that it makes, and what the step's row says of it."""

    cards: tuple[Card, ...]
    made_box: MadeBox
    compaction: Compaction


@dataclass(frozen=True, slots=True)
class _Room:
    """How long the text that is summed up may be, and how many tokens its summary may have."""

    chars: int
    summary: int


@dataclass(frozen=True, slots=True)
class CompactedStep:
    """A step whose request may be too large. `ask` answers a question, with the step's attempts."""

    step: CurrentStep
    pinned: PinnedConfig
    request: StepRequest
    model: Model
    ask: Callable[[Question], Awaitable[ModelAnswer]]

    @property
    def _policy(self) -> Memory:
        return self.pinned.config.memory or Memory()

    def question(self, messages: tuple[ModelMessage, ...]) -> Question:
        """What the turn's model is asked in this step; with `read_result`, if it sees a result in part."""
        tools = self.pinned.last_specs if self.request.is_last else self.pinned.specs
        if not self.request.is_last and any(message.shortened for message in messages):
            tools = (*tools, READ_RESULT_SPEC)
        return Question(
            turn=self.step.turn.agent_turn_id,
            step_id=self.request.step_id,
            step=self.request.model_step,
            config=self.pinned.config.llm_config,
            messages=messages,
            tools=tools,
            address=self.step.turn_events.address,
            agent_name=self.pinned.config.profile_name,
            box=self.step.turn.output_box_id,
        )

    async def if_full(self, messages: tuple[ModelMessage, ...]) -> Compacted | None:
        """A cut, if the request is over `max_context_tokens`; else None.

        Raises `ModelError` (`memory_too_small`) if the turn alone is over it, or `CardUnreadable`.
        """
        limit = self._policy.max_context_tokens
        if limit is None or self._bytes(messages) <= limit:
            return None
        before = await self._count(messages)
        if before.tokens <= limit:
            return None
        places = self.step.memory.places()
        alone = await self._count(self.step.messages(self.pinned, places[-1])) if places else before
        if alone.tokens > limit:
            says = f"the turn alone takes {alone.tokens} tokens, and memory.max_context_tokens is {limit}"
            raise ModelError(TOO_SMALL, says, retryable=False)
        return await self._cut("full", places, before, limit * 3 // 4, limit)

    async def if_refused(self, messages: tuple[ModelMessage, ...], error: ModelError) -> Compacted:
        """A cut, if the model said that the request is too long, once a turn; else raises the error."""
        memory = self.step.memory
        places = memory.places()
        again = any(cut.reason == "refused" for cut in memory.compactions)
        if error.code != TOO_LONG or self.pinned.config.memory is None or again or not places:
            raise error
        before = await self._count(messages)
        limit = self._policy.max_context_tokens or before.tokens
        return await self._cut("refused", places, before, min(before.tokens // 2, limit * 3 // 4), limit)

    async def _cut(
        self, reason: Literal["full", "refused"], places: list[int], before: TokenCount, target: int, limit: int
    ) -> Compacted:
        step, policy, memory = self.step, self._policy, self.step.memory
        sums_up = policy.when_full == "summarize"
        share = target // 4 if sums_up else 0
        place, kept = await self._choose(places[-policy.keep_last_turns - 1 :], target - share)
        code, summary = None, None
        if sums_up:
            most = limit * self._bytes(step.messages(self.pinned)) // max(before.tokens, 1)
            code, summary = await self._summary(place, _Room(most, max(0, min(share, limit - kept.tokens))))
        after = kept if summary is None else await self._count(step.messages(self.pinned, place, summary))
        first = memory.cards[place].card_id if place < len(memory.cards) else self.pinned.cards[0].card_id
        cut = MemoryCut(first_card_id=first, summary_card_id=summary and summary.card_id, reason=reason)
        box = MadeBox(new_box_id(), first, memory.carried(place))
        compaction = Compaction(
            reason=reason,
            when_full="drop" if code is not None else policy.when_full,
            error_code=code,
            tokens_before=before.tokens,
            tokens_after=after.tokens,
            counted="exact" if before.exact else "estimated",
            turns_cut=memory.turns(0, place),
            turns_kept=memory.turns(place, len(memory.cards)),
            output_box_id=box.box,
        )
        cards = (*(() if summary is None else (summary,)), cut_card(step.turn, step.number, cut))
        return Compacted(cards, box, compaction)

    async def _choose(self, places: list[int], target: int) -> tuple[int, TokenCount]:
        """The earliest of these places that leaves at most so many tokens, else the last; and what it leaves."""
        low, high = 0, len(places) - 1
        best = await self._count(self.step.messages(self.pinned, places[high]))
        while low < high:
            middle = (low + high) // 2
            count = await self._count(self.step.messages(self.pinned, places[middle]))
            if count.tokens <= target:
                high, best = middle, count
            else:
                low = middle + 1
        return places[high], best

    async def _summary(self, place: int, room: _Room) -> tuple[str | None, Card | None]:
        """Why there is no new summary of the cards before this place, and the summary, new or as it was."""
        step, memory = self.step, self.step.memory
        earlier = memory.earlier()
        gone = earlier[: len(earlier) - len(memory.earlier(place))]
        try:
            messages = summary_messages(gone, max(1, room.summary * 3 // 4), room.chars)
            answer = await self.ask(self._wish(messages, room))
            hit(Fault.SUMMARY_ANSWERED)
            code, text = (None, answer.text.strip()) if answer.text.strip() else ("summary_empty", "")
        except ModelError as error:
            code, text = error.code, ""
        if code is not None:
            log.warning("turn %s: turns leave the memory without a summary: %s", step.turn.agent_turn_id, code)
            text = "" if memory.summary is None else summary_text(memory.summary)
        fitting = await self._shortened(text, room.summary)
        if not fitting:
            return code or "summary_too_long", None
        return code, summary_card(step.turn, step.number, fitting)

    def _wish(self, messages: tuple[ModelMessage, ...], room: _Room) -> Question:
        """The question for a summary: of the profile's own configuration, it has the model and its timeout alone."""
        turn_model = self.pinned.config.llm_config
        config = LlmConfig(
            model=self._policy.summary_model or turn_model.model,
            max_tokens=max(room.summary, _LEAST_SUMMARY),
            timeout_seconds=turn_model.timeout_seconds,
        )
        return Question(
            turn=self.step.turn.agent_turn_id,
            step_id=self.request.step_id,
            step=1,
            config=config,
            messages=messages,
            tools=(),
            address=self.step.turn_events.address,
            agent_name=self.pinned.config.profile_name,
            box=self.step.turn.output_box_id,
            heard=False,
        )

    async def _shortened(self, text: str, most: int) -> str:
        """The beginning of the text that takes at most so many tokens in a request."""
        while text:
            card = summary_card(self.step.turn, self.step.number, text)
            tokens = (await self._count(build_messages("", (card,), (), ()), alone=True)).tokens
            if tokens <= most:
                return text
            text = text[: len(text) * most * 9 // (tokens * 10)].rstrip()
        return text

    async def _count(self, messages: tuple[ModelMessage, ...], *, alone: bool = False) -> TokenCount:
        question = self.question(messages)
        tools = () if alone else question.tools
        return await self.model.count(ModelRequest(question.config, messages, tools, question.step, 1, 1.0))

    def _bytes(self, messages: tuple[ModelMessage, ...]) -> int:
        """The size of the request, which is more than its tokens."""
        size = sum(len(message.content.encode()) + _MESSAGE_BYTES for message in messages)
        calls = sum(len(call.model_dump_json()) + _MESSAGE_BYTES for message in messages for call in message.tool_calls)
        thought = sum(len(message.reasoning.model_dump_json()) for message in messages if message.reasoning is not None)
        return size + calls + thought + len(json.dumps(self.question(messages).tools))
