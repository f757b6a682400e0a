"""The text of one step as it streams: gaps, attempts, what is kept, and what a client that goes on gets."""

from turnstile.gateway.events.frames import ResetEvent
from turnstile.gateway.events.positions import EventPart, Position, reset_position
from turnstile.gateway.events.step_log import ChunkPiece, Event, StepLog
from turnstile.schema.ids import AgentTurnId, step_id
from turnstile.schema.states import ChunkType
from turnstile.schema.wire.events import Chunk

TURN = AgentTurnId("turn")
RESET = Event(reset_position(1), b"reset", ResetEvent(step_id=step_id(TURN, 1)))


def chunk(index: int, text: str = "x", *, attempt: int = 1, end: bool = False) -> Chunk:
    """A chunk of step 1."""
    return Chunk(
        agent_turn_id=TURN,
        step_id=step_id(TURN, 1),
        attempt=attempt,
        index=index,
        chunk_type=ChunkType.END if end else ChunkType.CONTENT,
        content="" if end else text,
    )


def at(index: int, attempt: int = 1) -> Position:
    """The place of a chunk."""
    return Position(1, EventPart.CHUNKS, attempt, index)


def void(_: int) -> Event:
    """The event that voids the text."""
    return RESET


def positions(events: list[Event]) -> list[Position]:
    """Their places."""
    return [event.position for event in events]


CARD = Event(Position(1, EventPart.CARDS, 1, 0), b"card", ChunkPiece(ChunkType.CONTENT, "card"))


def filled(*chunks: Chunk) -> StepLog:
    """A step that these came for."""
    step = StepLog(1)
    for each in chunks:
        step.take(each)
    return step


def committed(step: StepLog, *texts: str) -> StepLog:
    """The step, committed with these texts."""
    step.cards = [CARD]
    step.finish(list(texts))
    return step


def test_a_chunk_that_comes_early_waits_for_those_before_it() -> None:
    step = StepLog(1)
    assert not step.take(chunk(1))
    assert step.has_gap
    assert step.after(Position(0, 0, 0, 0), void) == []
    assert step.take(chunk(0))
    assert not step.has_gap
    assert positions(step.after(at(0), void)) == [at(1)]
    assert not step.take(chunk(1))


def test_a_higher_attempt_voids_the_lower_and_a_lower_is_ignored() -> None:
    step = filled(chunk(0, "a"), chunk(1, "b"), chunk(0, "c", attempt=2))
    assert not step.take(chunk(2, attempt=1))
    assert positions(step.after(at(1), void)) == [at(0, attempt=2)]


def test_a_committed_step_goes_on_where_its_text_is_the_cards() -> None:
    step = committed(filled(chunk(0, "ab"), chunk(1, "cd"), chunk(2, end=True)), "abcd")
    assert positions(step.after(at(0), void)) == [at(1), at(2), CARD.position]
    assert positions(step.after(Position(0, 0, 0, 0), void)) == [CARD.position]
    assert step.after(CARD.position, void) == []


def test_a_committed_step_whose_text_is_not_the_cards_is_reset() -> None:
    for step, text in (
        (filled(chunk(0, "ab"), chunk(1, end=True)), "other"),
        (filled(chunk(0, "ab")), "ab"),
        (filled(chunk(1, "b"), chunk(2, end=True)), "ab"),
    ):
        events = committed(step, text).after(at(0), void)
        assert events == [RESET, CARD]
        assert step.after(reset_position(1), void) == [CARD]


def test_who_is_further_behind_than_what_is_kept_waits_for_the_card() -> None:
    step = filled(*(chunk(number, "x" * 100) for number in range(20)))
    step.shrink(step.size // 2)
    assert 0 < step.dropped < 20
    assert step.after(at(0), void) == []
    assert positions(step.after(at(step.dropped - 1), void)) == [at(n) for n in range(step.dropped, 20)]
    step.take(chunk(20, end=True))
    assert committed(step, "x" * 2000).after(at(0), void)[0] == RESET
    assert positions(step.after(at(19), void)) == [at(20), CARD.position]


def test_what_comes_after_the_commit_is_ignored() -> None:
    step = committed(filled(chunk(0)), "x")
    assert not step.take(chunk(1))
    assert not step.take(chunk(0, attempt=9))


def test_early_chunks_are_bounded() -> None:
    step = filled(*(chunk(number) for number in range(5, 5000)))
    assert len(step.early) == 1000
