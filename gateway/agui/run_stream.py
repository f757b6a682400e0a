"""The events of one turn as AG-UI's events, from the begin of a run (protocol §17.4). Pure.

Messages and calls derive from the turn's cards, as the items of OpenAI's responses do; their ids name turn and step, so
a repeated run streams the same. Text that becomes void is taken back by a `MESSAGES_SNAPSHOT` without it, then sent
again: AG-UI's clients replace their messages by it. So is, at the begin, what the client has of the run from before.
Reasoning is sent as it streams, under an id for each attempt; it is on no card, and never taken back.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import (
    PROTOCOL_VERSION,
    AssistantMessage,
    BaseEvent,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)

from turnstile.gateway.events.frames import ResetEvent, StepDone
from turnstile.gateway.events.positions import END, EventPart, Position
from turnstile.gateway.events.step_log import ChunkPiece, Event
from turnstile.gateway.openai.responses.items import ActLog, Called, PlacedAct, Returned, Spoken
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.ids import AgentTurnId, CardId, ToolCallId, step_card_id, step_id
from turnstile.schema.states import ChunkType, TurnStatus

OWN = "turnstile"
"""The key of our own notes in AG-UI's metadata."""
Events = Iterator[BaseEvent]


@dataclass(slots=True)
class _Open:
    """A message whose text is on its way."""

    message_id: str
    attempt: int
    pieces: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a turn, as its client names it, and what the client holds of the thread."""

    turn: AgentTurnId
    thread_id: str
    run_id: str
    messages: Sequence[Message]
    begin: Position
    """The place in the turn after which it streams."""

    @property
    def notes(self) -> dict[str, Any]:
        """The metadata of its first and last event."""
        return {OWN: {"agent_turn_id": self.turn}}


class RunStream:
    """The events of a run for one client."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._log = ActLog()
        self._kept: list[Message] = []
        """What the client has from before this run, and every snapshot repeats."""
        self._thought: dict[str, str] = {}
        """Reasoning that the client has, and is not sent again."""
        self._outputs = set[str]()
        """Calls whose results the client has: it ran them, or they came before the place after which it streams."""
        self._said: list[Message] = []
        self._step: int | None = None
        self._text: _Open | None = None
        self._reasoning: _Open | None = None
        self._stale = self._take_out(run)

    def begun(self) -> Events:
        """The begin of the run; what the client has of it from before is taken out of its messages."""
        run = self._run
        yield RunStartedEvent(
            thread_id=run.thread_id, run_id=run.run_id, protocol_version=PROTOCOL_VERSION, metadata=run.notes
        )
        if self._stale:
            yield self._snapshot()

    def take(self, event: Event) -> Events:
        """The events for one of the turn's; nothing for its outcome."""
        match event.data:
            case ChunkPiece(kind=kind, text=text):
                yield from self._enter(event.position.step)
                yield from self._piece(event.position, kind, text)
            case CardAnswer() as card:
                if event.position.part != EventPart.RESULTS:
                    yield from self._enter(event.position.step)
                yield from self._thought_ends()
                yield from self._entries(self._log.take(event.position, card))
            case StepDone():
                yield from self._enter(event.position.step)
                yield from self._left()
            case ResetEvent():
                yield from self._thought_ends()
                yield from self._void()
            case Turn():
                pass

    def asks(self, interrupts: Sequence[Interrupt]) -> Events:
        """The end of a run whose turn waits for people; questions are in the order of their calls."""
        known = [message for message in (*self._kept, *self._said) if isinstance(message, AssistantMessage)]
        calls = [call.id for message in known for call in message.tool_calls or ()]
        place = {call: number for number, call in enumerate(calls)}
        ordered = sorted(interrupts, key=lambda interrupt: place.get(interrupt.tool_call_id or "", len(calls)))
        yield self._finished(RunFinishedInterruptOutcome(interrupts=ordered))

    def calls(self, calls: Sequence[ToolCallId]) -> Events:
        """The end of a run whose turn waits for nothing but these calls of the front end's own tools."""
        yield self._finished(RunFinishedSuccessOutcome(pending_tool_call_ids=[*calls]))

    def ended(self, turn: Turn, usage: Sequence[TokenUsage]) -> Events:
        """The end of a run whose turn is over."""
        yield from self._thought_ends()
        yield from self._void()
        yield from self._entries(self._log.end(turn))
        yield from self._left()
        counted = list(usage) or None
        match TurnStatus(turn.status):
            case TurnStatus.SUCCESS | TurnStatus.PARTIAL:
                result = None if turn.output is None else turn.output.data
                yield self._finished(RunFinishedSuccessOutcome(), status=turn.status, result=result, usage=counted)
            case TurnStatus.CANCELED:
                yield self._finished(RunFinishedCancelledOutcome(), status=turn.status, usage=counted)
            case TurnStatus.FAILED | TurnStatus.TIMEOUT:
                message = turn.error or f"the turn ended: {turn.status}"
                code = turn.error_code or turn.status
                yield RunErrorEvent(message=message, code=code, usage=counted, metadata=self._run.notes)

    def _take_out(self, run: Run) -> bool:
        """Keep what the client has from before this run; returns whether it has more than that."""
        ids = re.compile(rf"{re.escape(run.turn)}-(?:s(\d{{1,6}})-.+|deliverable)", re.DOTALL)
        stale, calls = False, set[str]()
        for message in run.messages:
            match = ids.fullmatch(message.id)
            step = int(match[1] or END.step) if match else 0
            again = bool(match) and step > run.begin.step
            if isinstance(message, AssistantMessage) and again:
                calls |= {call.id for call in message.tool_calls or ()}
            if isinstance(message, ToolMessage):
                again = again or message.tool_call_id in calls
                if not again:
                    self._outputs.add(message.tool_call_id)
            if message.role == "reasoning" and again:
                self._thought[message.id] = message.content
            elif again:
                stale = True
            elif message.role not in ("reasoning", "activity"):  # which its client keeps by itself
                self._kept.append(message)
        return stale

    def _enter(self, step: int) -> Events:
        if self._step is None:
            self._step = step
            yield StepStartedEvent(step_name=_name(step))

    def _left(self) -> Events:
        yield from self._thought_ends()
        yield from self._void()  # no card has this text
        if self._step is not None:
            yield StepFinishedEvent(step_name=_name(self._step))
            self._step = None

    def _piece(self, position: Position, kind: ChunkType, text: str) -> Events:
        if self._text is not None and self._text.attempt != position.a:
            yield from self._void()
        if self._reasoning is not None and (self._reasoning.attempt != position.a or kind is not ChunkType.REASONING):
            yield from self._thought_ends()
        step = step_id(self._run.turn, position.step)
        if not text:
            return
        if kind is ChunkType.CONTENT:
            if self._text is None:
                self._text = _Open(step_card_id(step, "thought"), position.a)
                yield TextMessageStartEvent(message_id=self._text.message_id, role="assistant")
            self._text.pieces.append(text)
            yield TextMessageContentEvent(message_id=self._text.message_id, delta=text)
        elif kind is ChunkType.REASONING:
            yield from self._thinks(f"{step}-reasoning-{position.a}", position.a, text)

    def _thinks(self, named: str, attempt: int, text: str) -> Events:
        known = self._thought.get(named, "")
        had = min(len(known), len(text))
        self._thought[named], text = known[had:], text[had:]
        if not text:
            return
        if self._reasoning is None:
            self._reasoning = _Open(named, attempt)
            yield ReasoningStartEvent(message_id=named)
            yield ReasoningMessageStartEvent(message_id=named)
        yield ReasoningMessageContentEvent(message_id=named, delta=text)

    def _thought_ends(self) -> Events:
        if self._reasoning is not None:
            named, self._reasoning = self._reasoning.message_id, None
            yield ReasoningMessageEndEvent(message_id=named)
            yield ReasoningEndEvent(message_id=named)

    def _entries(self, entries: Sequence[PlacedAct]) -> Events:
        for position, act in entries:
            match act:
                case Spoken(card=card, text=text):
                    yield from self._message(card, text)
                case Called():
                    yield from self._call(position.step, act)
                case Returned(call=call) if call in self._outputs:
                    pass
                case Returned(call=call, output=output):
                    named = f"{step_id(self._run.turn, position.step)}-{call}"
                    self._said.append(ToolMessage(id=named, tool_call_id=call, content=output))
                    yield ToolCallResultEvent(message_id=named, tool_call_id=call, content=output, role="tool")

    def _message(self, card: CardId, text: str) -> Events:
        named: str = card
        if self._text is not None and "".join(self._text.pieces) == text:
            named, self._text = self._text.message_id, None
        else:
            yield from self._void()
            yield TextMessageStartEvent(message_id=named, role="assistant")
            yield TextMessageContentEvent(message_id=named, delta=text)
        yield TextMessageEndEvent(message_id=named)
        self._said.append(AssistantMessage(id=named, content=text))

    def _call(self, step: int, act: Called) -> Events:
        yield from self._void()
        parent = step_card_id(step_id(self._run.turn, step), "thought")
        call = ToolCall(id=act.call, function=FunctionCall(name=act.name, arguments=act.arguments))
        last = self._said[-1] if self._said else None
        if isinstance(last, AssistantMessage) and last.id == parent:
            self._said[-1] = last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})
        else:
            self._said.append(AssistantMessage(id=parent, tool_calls=[call]))
        yield ToolCallStartEvent(tool_call_id=call.id, tool_call_name=act.name, parent_message_id=parent)
        yield ToolCallArgsEvent(tool_call_id=call.id, delta=act.arguments)
        yield ToolCallEndEvent(tool_call_id=call.id)

    def _void(self) -> Events:
        """Take back the text that is on its way: it is not what the agent says."""
        if self._text is not None:
            named, self._text = self._text.message_id, None
            yield TextMessageEndEvent(message_id=named)
            yield self._snapshot()

    def _snapshot(self) -> MessagesSnapshotEvent:
        return MessagesSnapshotEvent(messages=[*self._kept, *self._said])

    def _finished(self, outcome: Any, status: str | None = None, **more: Any) -> RunFinishedEvent:
        run = self._run
        notes = {OWN: {**run.notes[OWN], "status": status}} if status else run.notes
        return RunFinishedEvent(thread_id=run.thread_id, run_id=run.run_id, outcome=outcome, metadata=notes, **more)


def _name(step: int) -> str:
    return f"step-{step}"
