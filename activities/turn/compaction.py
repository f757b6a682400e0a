"""Makes the request of a step fit: results shown shorter, the memory cut, steps of the turn summed up (protocol §7.3).

What loses least is tried first. The oldest results are shown shorter, which changes no card. Where that does not
suffice, the step compacts instead of asking: it makes a box without the earliest turns, or, where the turn alone is too
long, without its earliest steps, summed up before, and another step follows in that box. Where a summary fails they
leave without one. Nothing is cut where the turn would not fit even so. It costs a count of tokens, which is made only
where the size of a request may be over a limit, and a few more to choose the place.

A limit is `max_context_tokens` of the profile's memory, or what a model was seen to refuse (`Windows`).
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from turnstile.activities.prompt.model_attempts import Question
from turnstile.activities.turn.current_step import CurrentStep
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.decide import StepRequest
from turnstile.rules.memory import (
    cut_card,
    summary_card,
    summary_messages,
    summary_text,
    turn_summary_card,
    without_summary,
)
from turnstile.rules.messages import build_messages
from turnstile.rules.model_files import file_tokens
from turnstile.rules.tool_specs import READ_FILE_SPEC, READ_RESULT_SPEC
from turnstile.rules.turn_config import PinnedConfig
from turnstile.rules.turn_step import MadeBox
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Model, ModelFile, ModelMessage, TokenCount
from turnstile.schema.cards import TOO_LONG, TOO_SMALL, Card, CardType, MemoryCut
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import ArtifactId, new_box_id
from turnstile.schema.profiles import LlmConfig, Memory
from turnstile.schema.step_metadata import Compaction
from turnstile.schema.tools import READ_FILE

log = logging.getLogger(__name__)

Messages = tuple[ModelMessage, ...]
Reason = Literal["full", "refused"]
_LEAST_SUMMARY = 256
"""The least `max_tokens` of a summary: what is too long is shortened."""
_MESSAGE_BYTES = 64
"""More than a message's frame takes."""
_GROUP = 8
"""Results become short in groups of so many, so that the beginning of a turn's requests changes rarely."""
_MOST_MODELS = 1024


@dataclass(slots=True)
class Windows:
    """The tokens that models take, as far as refusals have shown: lost with the process, and learned again."""

    limits: dict[str, int] = field(default_factory=dict[str, int])

    def of(self, config: LlmConfig) -> int | None:
        """The most tokens of a request that its model may take; None if it has refused none."""
        return self.limits.get(config.model)

    def learn(self, config: LlmConfig, refused: int, window: int | None) -> int:
        """The most tokens, now that a request of so many was refused; `window`: what the model says that it takes."""
        limit = refused * 9 // 10
        if window is not None:  # the answer goes into it, too
            limit = min(limit, window * 19 // 20 - min(config.max_tokens or window // 8, window // 2))
        if len(self.limits) < _MOST_MODELS or config.model in self.limits:
            self.limits[config.model] = min(limit, self.limits.get(config.model, limit))
        return limit


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
class _Excess:
    """A request that is over its limit."""

    reason: Reason
    messages: Messages
    before: TokenCount
    limit: int

    @property
    def target(self) -> int:
        """The tokens that a compaction leaves at most, so that the turn has room to go on."""
        most = self.limit * 3 // 4
        return most if self.reason == "full" else min(self.before.tokens // 2, most)


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A step whose request may be too large. `ask` answers a question, with the step's attempts."""

    step: CurrentStep
    pinned: PinnedConfig
    request: StepRequest
    model: Model
    windows: Windows
    ask: Callable[[Question], Awaitable[ModelAnswer]]
    files: Mapping[ArtifactId, ModelFile] | None = None
    """The newest files of the messages; None: nobody reads files here."""

    @property
    def _policy(self) -> Memory:
        return self.pinned.config.memory or Memory()

    @property
    def _config(self) -> LlmConfig:
        return self.step.llm_config(self.pinned)

    def question(self, messages: Messages) -> Question:
        """What the turn's model is asked in this step; with `read_result`, if it sees a result in part."""
        tools = self.pinned.last_specs if self.request.is_last else self.pinned.specs
        if not self.request.is_last and any(message.shortened for message in messages):
            tools = (*tools, READ_RESULT_SPEC)
        pinned = self.pinned.config
        if not self.request.is_last and pinned.tool(READ_FILE) is None and self._has_more(messages):
            tools = (*tools, READ_FILE_SPEC)
        is_text = len(tools) == len(self.pinned.specs) == 1 and not pinned.must_end_with
        return Question(
            turn=self.step.turn.agent_turn_id,
            step_id=self.request.step_id,
            step=self.request.model_step,
            config=self._config,
            messages=messages,
            tools=tools,
            address=self.step.turn_events.address,
            agent_name=pinned.profile_name,
            box=self.step.turn.output_box_id,
            may_be_blank=bool(pinned.choices),
            output_schema=pinned.output_schema if is_text else None,
            files=self.files or {},
        )

    def _has_more(self, messages: Messages) -> bool:
        """Whether the messages name a file that is not shown with them."""
        if (files := self.files) is None:
            return False
        named = (part.artifact_id for message in messages for part in message.files)
        return any(name not in files or files[name].kind == "note" for name in named)

    async def fitted(self, messages: Messages) -> Messages | Compacted:
        """The messages, shown shorter where they are over a limit; or a compaction.

        Raises `ModelError` (`memory_too_small`) if the turn alone is over `max_context_tokens`, or `CardUnreadable`.
        """
        config = self._config
        limits = [limit for limit in (self._policy.max_context_tokens, self.windows.of(config)) if limit is not None]
        limit = min(limits, default=None)
        if limit is None or self._bytes(messages) <= limit:
            return messages
        before = await self._count(messages)
        if before.tokens <= limit:
            return messages
        fitting = await self._fit(_Excess("full", messages, before, limit))
        most = self._policy.max_context_tokens
        if fitting is not None or most is None or before.tokens <= most:
            return (
                messages if fitting is None else fitting
            )  # what a model was seen to refuse is a guess: it may take these
        says = f"the turn alone takes more than memory.max_context_tokens, which is {most}"
        raise ModelError(TOO_SMALL, says, retryable=False)

    async def refitted(self, messages: Messages, error: ModelError) -> Messages | Compacted:
        """Fewer messages, or a compaction, if the model said that these are too long; else raises the error."""
        if error.code != TOO_LONG:
            raise error
        before = await self._count(messages)
        limit = self.windows.learn(self._config, before.tokens, error.window)
        limit = min(limit, self._policy.max_context_tokens or limit)
        fitting = await self._fit(_Excess("refused", messages, before, limit))
        if fitting is None:
            raise error
        return fitting

    async def _fit(self, excess: _Excess) -> Messages | Compacted | None:
        """The request within its limit; None if nothing that may be left out makes it fit."""
        if (shorter := await self._shorter(excess)) is not None:
            return shorter
        places = self.step.memory.places()
        if places and self.pinned.config.memory is not None:
            alone = await self._count(self._old_short(self.step.messages, self.pinned, places[-1]))
            if alone.tokens <= excess.limit:
                return await self._cut(excess, places)
        if (steps := self.step.memory.steps()) and (cut := await self._cut_within(excess, steps)) is not None:
            return cut
        return await self._shorter(excess, newest=True)

    async def _shorter(self, excess: _Excess, *, newest: bool = False) -> Messages | None:
        """The request with its oldest results shown short, so few as suffice; None if that does not suffice.

        Those of the newest step stay as they are, unless `newest`.
        """
        old, every = _results(excess.messages)
        last = every if newest else old
        bytes_before = self._bytes(excess.messages)
        numbers = [*range(_GROUP, last, _GROUP), *([last] if last else [])]
        for tokens in (excess.target, excess.limit):
            most = tokens * bytes_before // max(excess.before.tokens, 1)
            low, high = 0, len(numbers)
            while low < high:
                middle = (low + high) // 2
                messages = self.step.messages(self.pinned, short=numbers[middle])
                low, high = (low, middle) if self._bytes(messages) <= most else (middle + 1, high)
            if low < len(numbers):
                messages = self.step.messages(self.pinned, short=numbers[low])
                fits = messages != excess.messages and (await self._count(messages)).tokens <= excess.limit
                if fits:
                    return messages
        return None

    def _old_short(self, build: Callable[..., Messages], *arguments: object, **named: object) -> Messages:
        """The messages with all results short but those of the newest step."""
        old, _ = _results(build(*arguments, **named))
        return build(*arguments, **named, short=old)

    async def _cut(self, excess: _Excess, places: list[int]) -> Compacted:
        step, policy, memory = self.step, self._policy, self.step.memory
        sums_up = policy.when_full == "summarize"
        share = excess.target // 4 if sums_up else 0
        kept_turns = places[-policy.keep_last_turns - 1 :]
        place, kept = await self._choose(kept_turns, excess.target - share, self._after_cut)
        code, summary = None, None
        if sums_up:
            room = _Room(self._chars(excess), max(0, min(share, excess.limit - kept.tokens)))
            earlier = memory.earlier()
            gone = earlier[: len(earlier) - len(memory.earlier(place))]
            code, text = await self._summary(gone, room)
            if code is not None:
                text = "" if memory.summary is None else summary_text(memory.summary)
            fitting = await self._shortened(text, room.summary)
            summary = summary_card(step.turn, step.number, fitting) if fitting else None
            code = code if fitting else code or "summary_too_long"
        after = kept if summary is None else await self._count(self._after_cut(place, summary))
        first = memory.cards[place].card_id if place < len(memory.cards) else self.pinned.cards[0].card_id
        cut = MemoryCut(first_card_id=first, summary_card_id=summary and summary.card_id, reason=excess.reason)
        box = MadeBox(new_box_id(), first, memory.carried(place))
        compaction = Compaction(
            reason=excess.reason,
            when_full="drop" if code is not None else policy.when_full,
            error_code=code,
            tokens_before=excess.before.tokens,
            tokens_after=after.tokens,
            counted="exact" if excess.before.exact else "estimated",
            turns_cut=memory.turns(0, place),
            turns_kept=memory.turns(place, len(memory.cards)),
            output_box_id=box.box,
        )
        cards = (*(() if summary is None else (summary,)), cut_card(step.turn, step.number, cut))
        return Compacted(cards, box, compaction)

    def _after_cut(self, place: int, summary: Card | None = None) -> Messages:
        return self._old_short(self.step.messages, self.pinned, place, summary)

    async def _cut_within(self, excess: _Excess, places: list[int]) -> Compacted | None:
        """A cut of the turn's own steps before one of these places; None if what stays is over the limit.

        Without a `memory` in the profile they are summed up, since a turn that forgets its steps takes them again.
        """
        step, memory = self.step, self.step.memory
        sums_up = self.pinned.config.memory is None or self._policy.when_full == "summarize"
        share = excess.target // 4 if sums_up else 0
        place, kept = await self._choose(places, excess.target - share, self._after_cut_within)
        if kept.tokens > excess.limit:
            return None
        gone = memory.left_out(place)
        code, text = None, ""
        if sums_up:
            room = _Room(self._chars(excess), max(0, min(share, excess.limit - kept.tokens)))
            code, text = await self._summary(gone, room)
            text = await self._shortened(text, room.summary)
            code = code if text else code or "summary_too_long"
        summary = turn_summary_card(step.turn, step.number, text or without_summary(gone))
        after = await self._count(self._after_cut_within(place, summary))
        if after.tokens > excess.limit:
            return None
        first, made_of = memory.cards[place].card_id, memory.within(place)
        cut = MemoryCut(first_card_id=first, summary_card_id=summary.card_id, reason=excess.reason, within_turn=True)
        carried = tuple(card.card_id for card in made_of.cards[: made_of.cards.index(memory.cards[place])])
        box = MadeBox(new_box_id(), first, carried, within=(summary.card_id,))
        compaction = Compaction(
            reason=excess.reason,
            when_full="summarize" if sums_up and code is None else "drop",
            error_code=code,
            tokens_before=excess.before.tokens,
            tokens_after=after.tokens,
            counted="exact" if excess.before.exact else "estimated",
            steps_cut=sum(card.type == CardType.THOUGHT for card in gone),
            turns_cut=0,
            turns_kept=memory.turns(0, len(memory.cards)),
            output_box_id=box.box,
        )
        return Compacted((cut_card(step.turn, step.number, cut), summary), box, compaction)

    def _after_cut_within(self, place: int, summary: Card | None = None) -> Messages:
        return self._old_short(self.step.messages, self.pinned, memory=self.step.memory.within(place, summary))

    async def _choose(self, places: list[int], target: int, build: Callable[[int], Messages]) -> tuple[int, TokenCount]:
        """The earliest of these places that leaves at most so many tokens, else the last; and what it leaves."""
        low, high = 0, len(places) - 1
        best = await self._count(build(places[high]))
        while low < high:
            middle = (low + high) // 2
            count = await self._count(build(places[middle]))
            if count.tokens <= target:
                high, best = middle, count
            else:
                low = middle + 1
        return places[high], best

    def _chars(self, excess: _Excess) -> int:
        """The most characters of a text that is summed up: what the limit holds beside the summary."""
        most = excess.limit if excess.reason == "full" else excess.target
        return most * self._bytes(excess.messages) // max(excess.before.tokens, 1)

    async def _summary(self, gone: tuple[Card, ...], room: _Room) -> tuple[str | None, str]:
        """Why there is no new summary of these cards, and the summary."""
        try:
            messages = summary_messages(gone, max(1, room.summary * 3 // 4), room.chars)
            answer = await self.ask(self._wish(messages, room))
            hit(Fault.SUMMARY_ANSWERED)
            code, text = None, answer.text.strip()
        except ModelError as error:
            code, text = error.code, ""
        if code is not None:
            log.warning("turn %s: the memory is cut without a summary: %s", self.step.turn.agent_turn_id, code)
        return code, text

    def _wish(self, messages: Messages, room: _Room) -> Question:
        """The question for a summary: of the profile's own configuration, it has the model and its timeout alone."""
        turn_model = self._config
        config = LlmConfig(
            model=self._policy.summary_model or turn_model.model,
            max_tokens=max(room.summary, _LEAST_SUMMARY),
            timeout_seconds=turn_model.timeout_seconds,
            reasoning_in_text="tagged" if self._policy.summary_model else turn_model.reasoning_in_text,
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

    async def _count(self, messages: Messages, *, alone: bool = False) -> TokenCount:
        question = self.question(messages)
        if alone:
            question = replace(question, tools=(), output_schema=None)
        return await self.model.count(question.request(1, 1.0))

    def _bytes(self, messages: Messages) -> int:
        """The size of the request, which is more than its tokens."""
        size = sum(len(message.content.encode()) + _MESSAGE_BYTES for message in messages)
        calls = sum(len(call.model_dump_json()) + _MESSAGE_BYTES for message in messages for call in message.tool_calls)
        thought = sum(len(message.reasoning.model_dump_json()) for message in messages if message.reasoning is not None)
        files = file_tokens(messages, self.files or {}, self._config.model)
        return size + calls + thought + files + len(json.dumps(self.question(messages).tools))


def _results(messages: Messages) -> tuple[int, int]:
    """How many results a request shows: before those of the newest step, and in all."""
    last_call = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=0)
    every = sum(message.role == "tool" for message in messages)
    return every - sum(message.role == "tool" for message in messages[last_call:]), every
