"""Whatever comes in whatever order, a run's events are in AG-UI's order and fold to what was done (protocol §17.4).

The histories are those of tests/gateway/test_folding.py. Clients read a few events at a time, go away, and ask for the
same run again at either gateway, with the messages that they hold.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import Message, RunFinishedEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.e2e.gateway.agui.front_end import Told
from tests.gateway.test_folding import TURN, Gateway, Happened, Step, World, steps
from turnstile.gateway.agui.run_stream import Run, RunStream
from turnstile.gateway.events.feed import TurnLog
from turnstile.gateway.events.frames import ResetEvent, StepDone
from turnstile.gateway.events.positions import BEGIN, END, EventPart, Position
from turnstile.gateway.events.step_log import Event
from turnstile.schema.api import CardAnswer, Output, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, ThoughtCall
from turnstile.schema.ids import CardId, ToolCallId, step_card_id, step_id, turn_card_id

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
USER: dict[str, Any] = {"id": "u1", "role": "user", "content": "hello"}


def call_of(step: int, place: int) -> ToolCallId:
    return ToolCallId(f"call_{step}_{place}")


def text(words: str) -> JsonObject:
    return {"__type__": "TextContent", "text": words}


def thought_of(number: int, step: Step) -> CardAnswer:
    """What a step said, and its calls."""
    calls = [
        ThoughtCall(tool_call_id=call_of(number, place), tool_name="search", arguments='{"q": 1}')
        for place in range(step.results)
    ]
    card = step_card_id(step_id(TURN, number), "thought")
    return CardAnswer(card_id=card, type=CardType.THOUGHT, content=text(step.text), tool_calls=calls or None)


class TypedGateway(Gateway):
    """A gateway that knows what a feed's events tell."""

    def look(self, past: Sequence[Happened]) -> None:
        """Read the ledger."""
        seen = list(self.log.steps.values())
        for each in past[self.known :]:
            step = self.turn[each.step - 1]
            match each.kind:
                case "commit":
                    cards = [Event(Position(each.step, EventPart.CARDS, 1, 0), b"", thought_of(each.step, step))]
                    if each.step == len(self.turn):
                        cards.append(Event(Position(each.step, EventPart.CARDS, 2, 0), b"", self._deliverable()))
                    done = StepDone(step_id=step_id(TURN, each.step), status="completed", finish_reason=None)
                    cards.append(Event(Position(each.step, EventPart.STEP, 0, 0), b"", done))
                    self.log.commit(each.step, cards, [step.text])
                case "results":
                    for place in range(step.results):
                        position = Position(each.step, EventPart.RESULTS, place + 1, 0)
                        self.log.apply(each.step, Event(position, b"", self._result(each.step, place)))
                case "over":
                    self.log.end(Event(END, b"", self._turn()))
                case _:
                    pass
        for known in seen:
            known.looked = True
        self.known = len(past)

    def _deliverable(self) -> CardAnswer:
        card = turn_card_id(TURN, "deliverable")
        return CardAnswer(card_id=card, type=CardType.DELIVERABLE, content=text(self.turn[-1].text))

    def _result(self, step: int, place: int) -> CardAnswer:
        call = call_of(step, place)
        content: JsonObject = {"__type__": "ToolResultContent", "status": "success", "result": f"found {step} {place}"}
        return CardAnswer(
            card_id=CardId(f"{call}-result"), type=CardType.TOOL_RESULT, content=content, tool_call_id=call
        )

    def _turn(self) -> Turn:
        output = Output.model_construct(card_id=turn_card_id(TURN, "deliverable"), text=self.turn[-1].text, data=None)
        return Turn.model_construct(agent_turn_id=TURN, status="success", output=output, error=None, error_code=None)


@dataclass
class Reader:
    """A client of AG-UI, which asks for the same run again whenever it was cut."""

    messages: list[dict[str, Any]] = field(default_factory=lambda: [{**USER}])
    told: Told | None = None
    stream: RunStream | None = None
    cursor: Position = BEGIN

    def read(self, log: TurnLog, most: int | None) -> None:
        """Take the next events of the run, from its begin if it was cut."""
        if self.stream is None or self.told is None:
            held = _MESSAGES.validate_python(json.loads(json.dumps(self.messages)))
            self.stream, self.told, self.cursor = (
                RunStream(Run(TURN, "t", "r", held, BEGIN)),
                Told(self.messages),
                BEGIN,
            )
            for event in self.stream.begun():
                self.told.take(event)
        for event in log.after(self.cursor)[:most]:
            self.cursor = event.position
            over = event.data if isinstance(event.data, Turn) else None
            for each in self.stream.take(event) if over is None else self.stream.ended(over, []):
                self.told.take(each)

    def cut(self) -> None:
        """The connection breaks."""
        self.stream = None


class Runs(World):
    """The same world, with clients of AG-UI."""

    def __init__(self, turn: Sequence[Step], most: int) -> None:
        super().__init__(turn, most)
        self.gateways = [TypedGateway(turn, TurnLog(TURN, most)) for _ in range(2)]
        self.readers = [Reader() for _ in range(3)]

    def move(self, what: int, how: int) -> None:
        """One thing is done."""
        if what == 4:
            reader = self.readers[how % 3]
            if how == 7:
                reader.cut()
            gateway = self.gateways[how % 3 % 2]  # a stream is one gateway's until it is cut
            reader.read(gateway.log, how % 4)
        else:
            super().move(what, how)

    def end(self) -> None:
        """The turn ends, which all hear of, and each client reads the rest."""
        while self.to_come:
            self.happen(7)
        for gateway in self.gateways:
            gateway.look(self.past)
        for number, reader in enumerate(self.readers):
            reader.read(self.gateways[number % 2].log, None)


def wanted(turn: Sequence[Step]) -> list[tuple[str, Any]]:
    """What a client must hold of the turn."""
    found: list[tuple[str, Any]] = [("user", "hello")]
    for number, step in enumerate(turn, 1):
        found += [("assistant", step.text)] if step.text else []
        found += [("call", call_of(number, place)) for place in range(step.results)]
        found += [("tool", f"found {number} {place}") for place in range(step.results)]
    return found


def held(reader: Reader) -> list[tuple[str, Any]]:
    """What it holds."""
    found: list[tuple[str, Any]] = []
    for message in reader.messages:
        found += [(message["role"], message["content"])] if message.get("content") else []
        found += [("call", call["id"]) for call in message.get("toolCalls") or ()]
    return found


@settings(max_examples=120, deadline=None)
@given(
    turn=st.lists(steps, min_size=1, max_size=3),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=120),
    most=st.sampled_from([300, 1000, 1 << 20]),
)
def test_what_a_client_folds_is_what_the_agent_did(turn: list[Step], moves: list[tuple[int, int]], most: int) -> None:
    world = Runs(turn, most)
    for what, how in moves:
        world.move(what, how)
    world.end()
    for reader in world.readers:
        assert reader.told is not None
        assert isinstance(reader.told.last, RunFinishedEvent)
        assert held(reader) == wanted(turn)


def test_a_reset_takes_back_what_was_told() -> None:
    """Also where its client asked for the run with messages of its own."""
    reader = Reader()
    log = TurnLog(TURN, 1 << 20)
    world = Runs([Step([["a", "b"]], other=True, ends=False, results=0)], 1 << 20)
    while not any(each.chunk is not None for each in world.past):
        world.happen(7)
    for each in world.past:
        if each.chunk is not None:
            log.take(1, each.chunk)
    reader.read(log, None)
    assert held(reader)[1:] == [("assistant", "a")]
    assert reader.stream is not None
    assert reader.told is not None
    reset = Event(Position(1, EventPart.CHUNKS, 9, 9), b"", ResetEvent(step_id=step_id(TURN, 1)))
    for event in reader.stream.take(reset):
        reader.told.take(event)
    assert held(reader) == [("user", "hello")]
