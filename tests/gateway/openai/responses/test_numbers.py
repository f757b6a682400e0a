"""Sequence numbers rise with their places, and say them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.gateway.events.positions import BEGIN, END, Position, reset_position
from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.responses.numbers import FIRST, MOST, Mark, Sub, read_number

PLACES = st.builds(
    Position, st.integers(1, 4094), st.integers(0, 3), st.integers(0, 510), st.integers(0, (1 << 18) - 2)
) | st.integers(1, 4094).map(reset_position)
MARKS = st.builds(Mark, PLACES, st.sampled_from(Sub), st.integers(0, 255), st.booleans())


@given(MARKS)
def test_a_number_says_its_place(mark: Mark) -> None:
    assert mark.number is not None
    assert read_number(mark.number) == mark


@given(MARKS, MARKS)
def test_numbers_rise_with_their_places(one: Mark, other: Mark) -> None:
    assert one.number is not None
    assert other.number is not None
    if (one.position, one.sub) < (other.position, other.sub):
        assert one.number < other.number
    assert FIRST.number == 0 < one.number < (Mark(END, Sub.RESPONSE).number or 0) <= MOST


@given(st.integers(0, MOST))
def test_any_number_is_a_place(number: int) -> None:
    assert read_number(number).sub in Sub


@pytest.mark.parametrize("number", [-1, MOST + 1])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(BadField):
        read_number(number)


@pytest.mark.parametrize("place", [Position(1, 0, 600, 1), Position(1, 0, 1, 1 << 18), Position(5000, 1, 1, 0)])
def test_a_place_beyond_the_bounds_has_no_number(place: Position) -> None:
    assert Mark(place, Sub.DELTA).number is None
    assert Mark(BEGIN, Sub.ADDED).number is not None
