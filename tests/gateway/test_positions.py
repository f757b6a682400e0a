"""Places in a turn's events: their ids, and their order (protocol §14.2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.gateway.events.positions import BEGIN, END, EventPart, Position, are_places, read_id, reset_position
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId

TURN = AgentTurnId("01a2-turn_1")
places = st.builds(
    Position, st.integers(0, 999_999), st.integers(0, 3), st.integers(0, 999_999_999), st.integers(0, 999_999_999)
)


@given(places)
def test_an_id_is_read_as_the_place_that_it_names(place: Position) -> None:
    assert read_id(place.id(TURN)) == (TURN, place)
    assert BEGIN <= place < END


def test_the_end_has_an_id_of_its_own() -> None:
    assert END.id(TURN) == f"{TURN}:end"
    assert read_id(f"{TURN}:end") == (TURN, END)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "1", f"{TURN}", f"{TURN}:", f"{TURN}:1", f"{TURN}:1.0.1", f"{TURN}:1.0.1.1.1", f"{TURN}:1.5.1.1"),
        *(f"{TURN}:end ", f"{TURN}:END", f"{TURN}:-1.0.1.1", f"{TURN}:1.0.1.1\n", f"{TURN}:9999999.0.1.1", "a.b:end"),
        *(f"{TURN}:1.0.1.9999999999", f"{TURN}:².0.1.1", f"{TURN}:٣.0.1.1", "x" * 200 + ":end", f"{TURN}:1.0.1.1\0"),
    ],
)
def test_what_no_event_had_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="omit it") as refused:
        read_id(text)
    assert refused.value.code == "wrong_event_id"


def test_a_step_is_told_in_its_order() -> None:
    chunks = [Position(2, EventPart.CHUNKS, attempt, index) for attempt in (1, 2) for index in (0, 1, 10)]
    rest = [Position(2, EventPart.CARDS, 1, 0), Position(2, EventPart.CARDS, 2, 0), Position(2, EventPart.STEP, 0, 0)]
    order = [BEGIN, *chunks, reset_position(2), *rest, Position(2, EventPart.RESULTS, 1, 0), Position(3, 0, 1, 0), END]
    assert order == sorted(order)
    assert [place.in_chunks for place in chunks] == [True] * 6
    assert not any(place.in_chunks for place in (BEGIN, reset_position(2), *rest, END))


def test_chunks_without_a_place_are_a_strangers() -> None:
    assert are_places(1, 1, 0)
    for step, attempt, index in ((0, 1, 0), (1_000_000, 1, 0), (1, -1, 0), (1, 10**9, 0), (1, 1, -1), (1, 1, 10**9)):
        assert not are_places(step, attempt, index)
