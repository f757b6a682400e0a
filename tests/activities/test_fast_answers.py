"""Which profiles' models count as fast."""

import pytest

from turnstile.activities.turn import fast_answers
from turnstile.activities.turn.fast_answers import LEARNED_AFTER, FastAnswers
from turnstile.schema.ids import new_box_id

BOX = new_box_id()


def after(*seconds: float, patience: float = 0.1) -> bool:
    """Whether a model counts as fast after these answers."""
    paces = FastAnswers(patience)
    for each in seconds:
        paces.record(BOX, each)
    return paces.is_quick(BOX)


FAST = [0.01] * LEARNED_AFTER


def test_a_model_is_fast_after_some_fast_answers() -> None:
    assert not after()
    assert not after(*FAST[1:])
    assert after(*FAST)


def test_an_answer_that_was_slower_takes_one_back() -> None:
    assert not after(*FAST, 0.07)
    assert after(*FAST, 0.01, 0.07)
    assert after(*FAST * 20, *[0.07] * LEARNED_AFTER)
    assert not after(*FAST * 20, *[0.07] * (LEARNED_AFTER + 1))


def test_an_answer_as_late_as_one_waits_forgets_all() -> None:
    assert not after(*FAST * 20, 0.1)
    assert not after(*FAST * 20, 0.1, *FAST[1:])
    assert after(*FAST * 20, 0.1, *FAST)


def test_no_model_is_fast_where_none_is_waited_for() -> None:
    assert not after(*FAST * 20, patience=0)


def test_profiles_are_told_apart_and_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_answers, "_REMEMBERED", 2)
    paces, boxes = FastAnswers(0.1), [new_box_id() for _ in range(3)]
    for box in boxes:
        for seconds in FAST:
            paces.record(box, seconds)
    assert [paces.is_quick(box) for box in boxes] == [False, True, True]
