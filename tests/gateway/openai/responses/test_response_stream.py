"""A response's stream, cut after any event and gone on with at a gateway that knows more or less of the text."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from turnstile.gateway.events.frames import ResetEvent, StepDone
from turnstile.gateway.events.positions import BEGIN, END, EventPart, Position, reset_position
from turnstile.gateway.events.step_log import Event, StepLog
from turnstile.gateway.openai.responses.numbers import read_number
from turnstile.gateway.openai.responses.objects import Response, Status
from turnstile.gateway.openai.responses.response_stream import ResponseStream
from turnstile.schema.api import CardAnswer, Output, Turn
from turnstile.schema.cards import CardType, TextContent, ThoughtCall, ToolResultContent
from turnstile.schema.ids import AgentTurnId, CardId, StepId, ToolCallId, step_id
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.events import Chunk

TURN = AgentTurnId("t-1")
ENDED = Turn.model_validate(
    {
        **{name: None for name, field in Turn.model_fields.items() if field.is_required()},
        "agent_turn_id": TURN,
        "project_id": "p",
        "agent_id": "a",
        "channel_id": "c",
        "inbox_id": "i",
        "inbox_status": "consumed",
        "status": "success",
        "created_at": datetime.now(UTC),
        "steps": 2,
        "duplicate": False,
        "output": Output(card_id=CardId("t-1-deliverable"), text="the end"),
    }
)
SHAPE = [("I look. " * 3, True), ("", True), ("the end", False)]
"""What each step says, and whether it makes a call."""
FINAL = ["I look. " * 3 + "\n\n", "result", "result", "the end"]


def shown(status: Status) -> Response:
    return Response(id="resp_t-1", created_at=1, status=status, model="a")


def pieces(text: str) -> list[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def card(kind: CardType, name: str, content: Any, **fields: Any) -> CardAnswer:
    made = {"card_id": name, "type": kind, "content": content.model_dump(), **fields}
    return CardAnswer.model_validate(made)


def cards_of(number: int) -> tuple[list[CardAnswer], list[CardAnswer]]:
    """The cards of a step, and the results of its calls."""
    step, (text, calls) = step_id(TURN, number), SHAPE[number - 1]
    call = ToolCallId(f"{step}-c0")
    made = [ThoughtCall(tool_call_id=call, tool_name="search", arguments="{}")] if calls else None
    cards = [card(CardType.THOUGHT, f"{step}-thought", TextContent(text=text), tool_calls=made)]
    if not calls:
        return [*cards, card(CardType.DELIVERABLE, "t-1-deliverable", TextContent(text=text))], []
    result = ToolResultContent(status=TurnStatus.SUCCESS, result="result")
    return cards, [card(CardType.TOOL_RESULT, f"{call}-result", result, tool_call_id=call)]


class Gateway:
    """What one gateway knows: of each step the attempts whose chunks it heard, and how far the turn is."""

    def __init__(self, heard: Sequence[int], done: int, told: int) -> None:
        self.steps: list[StepLog] = []
        for number in range(1, min(done + 1, len(SHAPE)) + 1):
            step = StepLog(number)
            for attempt in range(1, heard[number - 1] + 1):
                self._hear(step, attempt, last=attempt == 2, most=told if number > done else 1000)
            if number <= done:
                self._commit(step)
            self.steps.append(step)
        self.over = done == len(SHAPE)

    def _hear(self, step: StepLog, attempt: int, *, last: bool, most: int) -> None:
        said = pieces(SHAPE[step.number - 1][0]) if last else ["oh", " no"]
        kinds = [(ChunkType.START, ""), *((ChunkType.CONTENT, text) for text in said)]
        kinds += [(ChunkType.END, "")] if last else []
        for index, (kind, text) in enumerate(kinds[:most] if last else kinds):
            step.take(
                Chunk(
                    agent_turn_id=TURN,
                    step_id=StepId(step_id(TURN, step.number)),
                    attempt=attempt,
                    index=index,
                    chunk_type=kind,
                    content=text,
                )
            )

    def _commit(self, step: StepLog) -> None:
        number, (cards, results) = step.number, cards_of(step.number)
        step.cards = [Event(Position(number, EventPart.CARDS, n, 0), b"", each) for n, each in enumerate(cards, 1)]
        done = StepDone(step_id=step_id(TURN, number), status="completed", finish_reason=None)
        step.cards.append(Event(Position(number, EventPart.STEP, 0, 0), b"", done))
        step.results = [
            Event(Position(number, EventPart.RESULTS, n, 0), b"", each) for n, each in enumerate(results, 1)
        ]
        step.finish([SHAPE[number - 1][0]])

    def after(self, cursor: Position) -> list[Event]:
        events: list[Event] = []
        for step in self.steps[max(cursor.step - 1, 0) :]:
            events += step.after(cursor, reset)
        return [*events, Event(END, b"", ENDED)] if self.over and cursor < END else events


def reset(number: int) -> Event:
    """The event that voids the text of a step."""
    return Event(reset_position(number), b"", ResetEvent(step_id=step_id(TURN, number)))


class Client:
    """Folds events as OpenAI's does."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.items: list[dict[str, Any]] = []
        self.final: Response | None = None

    def read(self, gateway: Gateway, most: int) -> None:
        mark = None if self.last is None else read_number(self.last)
        stream = ResponseStream(TURN, shown, mark)
        cursor = stream.cursor
        told = list(stream.status("running"))
        events = gateway.after(cursor)
        if mark is not None:
            stream.known(gateway.after(BEGIN))
        if not stream.over:
            for event in events:
                told += stream.take(event)
                if isinstance(event.data, Turn):
                    told += stream.end(event.data, shown("completed"))
        for each in told[:most]:
            self.take(each.sequence_number, each.type, each.model_dump(exclude_none=True))

    def take(self, number: int, kind: str, event: dict[str, Any]) -> None:
        assert self.last is None or number > self.last
        self.last = number
        is_known = "output_index" in event and "added" not in kind
        item: dict[str, Any] = self.items[int(event["output_index"])] if is_known else {}
        if kind == "response.output_item.added":
            assert event["output_index"] == len(self.items)
            assert event["item"]["id"] not in [i["id"] for i in self.items if i["status"] != "incomplete"]
            self.items.append({**event["item"], "text": "", "arguments": "", "open": True})
        elif "item_id" in event and item:
            assert item["open"]
            assert item["id"] == event["item_id"]
        if kind == "response.output_text.delta":
            item["text"] += event["delta"]
        elif kind == "response.mcp_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.output_text.done":
            assert item["text"] == event["text"]
        elif kind == "response.output_item.done":
            assert item["open"]
            assert item["id"] == event["item"]["id"]
            item.update(open=False, status=event["item"]["status"], output=event["item"].get("output"))
        elif kind == "response.completed":
            self.final = Response.model_validate(event["response"])

    def held(self) -> list[str]:
        names = {"message": "text", "mcp_call": "output"}
        return [item[names[item["type"]]] for item in self.items if item["status"] == "completed"]


READS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=3, max_size=3), st.integers(0, 3), st.integers(1, 9), st.integers(0, 9)
    ),
    max_size=12,
)


@given(READS)
@settings(deadline=None)
def test_a_cut_stream_tells_everything_once(reads: list[tuple[list[int], int, int, int]]) -> None:
    """Turns only go on, so later reads know at least as many committed steps."""
    client, done = Client(), 0
    for heard, further, told, most in reads:
        done = max(done, min(further, len(SHAPE)))
        client.read(Gateway(heard, done, told), most)
    client.read(Gateway([0, 0, 0], len(SHAPE), 0), 1000)
    assert client.final is not None
    assert client.held() == FINAL
    assert not [item for item in client.items if item["open"]]


def test_every_place_of_a_live_stream_is_gone_on_from() -> None:
    for heard in ([2, 2, 2], [1, 0, 2], [0, 0, 0]):
        for most in range(1, 40, 5):
            for done in range(len(SHAPE) + 1):
                client = Client()
                client.read(Gateway(heard, done, 3), most)
                for _ in range(2):
                    client.read(Gateway([2, 2, 2], len(SHAPE), 9), 1 + most % 3)
                client.read(Gateway([2, 2, 2], len(SHAPE), 9), 1000)
                assert client.held() == FINAL
