"""The text that a chat client is told only grows, and is what the turn says in the end, or the stream is void."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.gateway.events.frames import ResetEvent, StepDone
from turnstile.gateway.events.positions import BEGIN, EventPart, Position, reset_position
from turnstile.gateway.events.step_log import Event, StepLog
from turnstile.gateway.openai.chat import SentText, StreamVoided
from turnstile.schema.api import CardAnswer
from turnstile.schema.ids import AgentTurnId, CardId, StepId
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk

TURN = AgentTurnId("t")
PARTS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4)


def step_of(number: int) -> StepId:
    """The id of a step."""
    return StepId(f"t-s{number}")


def chunks(step: int, attempt: int, parts: list[str], *, end: bool) -> list[Chunk]:
    """An attempt that says these parts."""
    kinds = [(ChunkType.START, ""), *((ChunkType.CONTENT, part) for part in parts)]
    kinds += [(ChunkType.END, "")] if end else []
    return [
        Chunk(agent_turn_id=TURN, step_id=step_of(step), attempt=attempt, index=index, chunk_type=kind, content=content)
        for index, (kind, content) in enumerate(kinds)
    ]


def reset(step: int) -> Event:
    """What voids the text of a step."""
    return Event(reset_position(step), b"", ResetEvent(step_id=step_of(step)))


def commit(log: StepLog, text: str) -> None:
    """The step is over, with this text on its card."""
    card = CardAnswer(card_id=CardId("c"), type="agent.thought", content={"kind": "text", "text": text})
    done = StepDone(step_id=step_of(log.number), status="completed", finish_reason="stop")
    log.cards = [Event(Position(log.number, EventPart.CARDS, 1, 0), b"", card)] if text else []
    log.cards.append(Event(Position(log.number, EventPart.STEP, 0, 0), b"", done))
    log.finish([text] if text else [])


@given(
    st.lists(st.tuples(st.lists(PARTS, min_size=1, max_size=3), st.booleans(), st.booleans()), min_size=1, max_size=3),
    st.data(),
)
def test_what_was_told_is_what_was_said_or_the_stream_is_void(
    steps: list[tuple[list[list[str]], bool, bool]], data: st.DataObject
) -> None:
    """Steps with several attempts, of which the last one counts; its last chunks may be lost."""
    told, text, cursor = SentText(), "", BEGIN
    try:
        for number, (attempts, whole, reads_all) in enumerate(steps, 1):
            log = StepLog(number)
            for attempt, parts in enumerate(attempts, 1):
                last = attempt == len(attempts)
                for chunk in chunks(number, attempt, parts, end=last and whole):
                    log.take(chunk)
                    if reads_all or data.draw(st.booleans()):
                        events = log.after(cursor, reset)
                        cursor = events[-1].position if events else cursor
                        text += told.take(events)
            commit(log, "".join(attempts[-1]))
            events = log.after(cursor, reset)
            cursor = events[-1].position
            text += told.take(events)
    except StreamVoided:
        assert any(len(attempts) > 1 for attempts, _, _ in steps)
        return
    said = ["".join(attempts[-1]) for attempts, _, _ in steps]
    assert text == "\n\n".join(each for each in said if each)
    assert told.deliver(said[-1]) == ""


def test_the_deliverable_follows_unless_it_was_told() -> None:
    told, log = SentText(), StepLog(1)
    for chunk in chunks(1, 1, ["so ", "far"], end=True):
        log.take(chunk)
    assert told.take(log.after(BEGIN, reset)) == "so far"
    assert told.deliver("so far") == ""
    assert told.deliver("so far so good") == " so good"
    assert told.deliver("{}") == "\n\n{}"
    assert told.deliver("") == ""
    assert SentText().deliver("all of it") == "all of it"


def test_what_was_not_streamed_is_told_by_its_card() -> None:
    told, log = SentText(), StepLog(1)
    commit(log, "from the card")
    assert told.take(log.after(BEGIN, reset)) == "from the card"


def test_an_attempt_that_says_less_than_was_told_voids_the_stream() -> None:
    told, log = SentText(), StepLog(1)
    cursor, texts = BEGIN, [["a", "a"], ["a"]]
    for attempt, parts in enumerate(texts, 1):
        for chunk in chunks(1, attempt, parts, end=attempt == 2):
            log.take(chunk)
        events = log.after(cursor, reset)
        cursor = events[-1].position
        told.take(events)
    commit(log, "a")
    with pytest.raises(StreamVoided):
        told.take(log.after(cursor, reset))


def test_a_reset_is_void_only_if_the_card_says_something_else() -> None:
    for text, voided in (("so far so good", False), ("so", True), ("quite another", True), ("", True)):
        told, log = SentText(), StepLog(1)
        for chunk in chunks(1, 1, ["so ", "far"], end=False):
            log.take(chunk)
        events = log.after(BEGIN, reset)
        assert told.take(events) == "so far"
        commit(log, text)
        after = log.after(events[-1].position, reset)
        assert isinstance(after[0].data, ResetEvent)
        if voided:
            with pytest.raises(StreamVoided):
                told.take(after)
        else:
            assert told.take(after) == " so good"
