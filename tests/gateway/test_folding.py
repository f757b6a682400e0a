"""Whatever comes in whatever order, a client that goes on anywhere folds the exact text (protocol §14.2).

A turn's history is drawn: steps, their attempts, what their cards say in the end and the results of their calls. Two
gateways hear of it each in its own way: chunks are lost, doubled, late or out of order, and the ledger is read now and
then. Clients read a few events at a time, go away, and go on at either gateway.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from turnstile.gateway.events.feed import TurnLog
from turnstile.gateway.events.positions import BEGIN, END, EventPart, Position, read_id
from turnstile.gateway.events.step_log import ChunkPiece, Event
from turnstile.schema.ids import AgentTurnId, step_id
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk

TURN = AgentTurnId("turn")


@dataclass(frozen=True)
class Step:
    """What happens in a step: the pieces of each attempt, the last of which its card has, or another text."""

    attempts: list[list[str]]
    other: bool
    ends: bool
    """Whether the end of the last attempt is published."""
    results: int

    @property
    def text(self) -> str:
        """What the card says."""
        return "another text" if self.other else "".join(self.attempts[-1])


@dataclass(frozen=True)
class Happened:
    """Something that happened: a chunk was published, a step committed, its results applied, or the turn was over."""

    kind: str
    step: int = 0
    chunk: Chunk | None = None


steps = st.builds(
    Step,
    st.lists(st.lists(st.sampled_from(["a", "bc", "def", ""]), max_size=5), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)


def history_of(turn: Sequence[Step]) -> list[Happened]:
    """What happens, in order."""
    found: list[Happened] = []
    for number, step in enumerate(turn, 1):
        for attempt, pieces in enumerate(step.attempts, 1):
            last = attempt == len(step.attempts)
            kinds = [(ChunkType.CONTENT, piece) for piece in pieces]
            kinds += [(ChunkType.END, "")] if last and step.ends else []
            found += [
                Happened(
                    "chunk",
                    number,
                    Chunk(
                        agent_turn_id=TURN,
                        step_id=step_id(TURN, number),
                        attempt=attempt,
                        index=index,
                        chunk_type=kind,
                        content=text,
                    ),
                )
                for index, (kind, text) in enumerate(kinds)
            ]
        found += [Happened("commit", number), Happened("results", number)]
    return [*found, Happened("over")]


def event(position: Position, kind: str, **data: Any) -> Event:
    """An event as a feed makes it."""
    head = f"id: {position.id(TURN)}\nevent: {kind}\ndata: "
    return Event(position, (head + json.dumps(data) + "\n\n").encode(), ChunkPiece(ChunkType.CONTENT, ""))


@dataclass
class Gateway:
    """What one gateway knows."""

    turn: Sequence[Step]
    log: TurnLog
    coming: list[Chunk] = field(default_factory=list[Chunk])
    known: int = 0
    """How much of the history it has read in the ledger."""

    def hear(self, place: int) -> None:
        """One of the next chunks arrives."""
        if self.coming:
            chunk = self.coming.pop(place % min(3, len(self.coming)))
            self.log.take(int(chunk.step_id.rpartition("s")[2]), chunk)

    def look(self, past: Sequence[Happened]) -> None:
        """Read the ledger."""
        seen = list(self.log.steps.values())
        for each in past[self.known :]:
            step = self.turn[each.step - 1]
            match each.kind:
                case "commit":
                    card = event(Position(each.step, EventPart.CARDS, 1, 0), "card", step=each.step, text=step.text)
                    done = event(Position(each.step, EventPart.STEP, 0, 0), "step", step=each.step)
                    self.log.commit(each.step, [card, done], [step.text])
                case "results":
                    for place in range(step.results):
                        self.log.apply(each.step, event(Position(each.step, EventPart.RESULTS, place + 1, 0), "result"))
                case "over":
                    self.log.end(event(END, "outcome"))
                case _:
                    pass
        for known in seen:
            known.looked = True
        self.known = len(past)


@dataclass
class Client:
    """A client that keeps the last id and the text of each step, and checks what comes."""

    cursor: Position = BEGIN
    text: dict[int, str] = field(default_factory=dict[int, str])
    places: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    got: list[Position] = field(default_factory=list[Position])
    cards: dict[int, str] = field(default_factory=dict[int, str])

    def read(self, log: TurnLog, most: int | None) -> None:
        """Take the next events."""
        for position, frame, _ in log.after(self.cursor)[:most]:
            lines = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n"))
            assert read_id(lines["id"]) == (TURN, position)
            assert position > self.cursor, "an event comes twice, or before one that it belongs before"
            self.cursor = position
            self.take(position, lines["event"], json.loads(lines["data"]))

    def take(self, position: Position, kind: str, data: dict[str, Any]) -> None:
        """One event."""
        match kind:
            case "chunk":
                attempt, index = self.places.get(position.step, (0, -1))
                if position.a > attempt:
                    attempt, index, self.text[position.step] = position.a, -1, ""
                assert (position.a, position.b) == (attempt, index + 1), "a chunk is lost"
                self.places[position.step] = position.a, position.b
                self.text[position.step] += data.get("content", "")
            case "reset":
                self.text[position.step] = ""
            case "card":
                self.cards[position.step] = data["text"]
                self.got.append(position)
            case _:
                self.got.append(position)


class World:
    """Two gateways, three clients and what has happened."""

    def __init__(self, turn: Sequence[Step], most: int) -> None:
        self.gateways = [Gateway(turn, TurnLog(TURN, most)) for _ in range(2)]
        self.clients = [Client() for _ in range(3)]
        self.to_come, self.past = history_of(turn), list[Happened]()

    def happen(self, lost: int) -> None:
        """The next thing happens; its chunk is lost on the way to a gateway, comes there, or comes twice."""
        if not self.to_come:
            return
        self.past.append(self.to_come.pop(0))
        if (chunk := self.past[-1].chunk) is not None:
            for number, gateway in enumerate(self.gateways):
                copies = {0: 0, 1: 2}.get((lost >> number) & 3, 1)
                gateway.coming += [chunk] * copies

    def move(self, what: int, how: int) -> None:
        """One thing is done."""
        gateway = self.gateways[how % 2]
        match what:
            case 0 | 1:
                self.happen(how)
            case 2:
                gateway.hear(how)
            case 3:
                gateway.look(self.past)
            case 4:
                self.clients[how % 3].read(self.gateways[how // 4].log, how % 4)
            case _:
                for each in self.past:  # what the stream still has is read back
                    if each.chunk is not None:
                        gateway.log.take(each.step, each.chunk)

    def end(self) -> None:
        """The turn ends, which all hear of, and each client reads the rest."""
        while self.to_come:
            self.happen(7)
        for gateway in self.gateways:
            gateway.look(self.past)
        for number, client in enumerate(self.clients):
            client.read(self.gateways[number % 2].log, None)


@settings(max_examples=400, deadline=None)
@given(
    turn=st.lists(steps, min_size=1, max_size=3),
    moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=120),
    most=st.sampled_from([300, 1000, 1 << 20]),
)
def test_the_text_that_a_client_folds_is_exact(turn: list[Step], moves: list[tuple[int, int]], most: int) -> None:
    world = World(turn, most)
    for what, how in moves:
        world.move(what, how)
    world.end()
    for client in world.clients:
        assert client.got == whole(turn)
        for place, step in enumerate(turn, 1):
            assert client.cards[place] == step.text
            assert client.text.get(place, "") in ("", step.text)


def test_a_result_that_was_applied_is_told_before_the_text_after_it() -> None:
    """The ledger was read between a step's commit and its results: the next step's text alone is not enough."""
    turn = [Step([["a"]], other=False, ends=True, results=1), Step([["b"]], other=False, ends=True, results=0)]
    world = World(turn, 1 << 20)
    gateway, client = world.gateways[0], world.clients[0]
    while not world.past or world.past[-1].kind != "commit":
        world.happen(7)
    gateway.look(world.past)
    client.read(gateway.log, None)
    world.happen(7)  # the result
    world.happen(7)
    gateway.coming = gateway.coming[-1:]
    gateway.hear(0)
    client.read(gateway.log, None)
    assert 2 not in client.text
    gateway.look(world.past)
    client.read(gateway.log, None)
    assert client.got[-1] == Position(1, EventPart.RESULTS, 1, 0)
    assert client.text[2] == "b"
    world.end()
    assert client.got == whole(turn)


def whole(turn: Sequence[Step]) -> list[Position]:
    """The places of all that is no text."""
    found: list[Position] = []
    for number, step in enumerate(turn, 1):
        found += [Position(number, EventPart.CARDS, 1, 0), Position(number, EventPart.STEP, 0, 0)]
        found += [Position(number, EventPart.RESULTS, place + 1, 0) for place in range(step.results)]
    return [*found, END]


def test_the_text_of_a_turn_is_bounded_as_a_whole() -> None:
    log = TurnLog(TURN, 10_000)
    for number in range(1, 30):
        for index in range(20):
            chunk = Chunk(
                agent_turn_id=TURN,
                step_id=step_id(TURN, number),
                attempt=1,
                index=index,
                chunk_type=ChunkType.CONTENT,
                content="x" * 100,
            )
            log.take(number, chunk)
        log.commit(number, [], ["x" * 2000])
    assert sum(step.size for step in log.steps.values()) <= 10_000
    assert log.steps[29].dropped == 0
