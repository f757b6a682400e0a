"""States that no statement can tell apart have one form; those that differ have two."""

import json
from typing import Any

from lab.explore.actors.cast import renaming
from lab.explore.states.folding import COLUMNS, Key, fold


def head(**columns: Any) -> str:
    """A head's row."""
    known: dict[str, Any] = {
        "project_id": "p1",
        "agent_id": "alice",
        "status": "idle",
        "turn_epoch": 1,
        "updated_at": "2026-11-22T10:00:00+00:00",
        "started_at": None,
        "resume_deadline": None,
        "queue_seq": 3,
        "step_attempt": 0,
        "model_failures": 0,
    }
    return json.dumps(known | columns)


def outcome(turn: str, epoch: int, **columns: Any) -> tuple[Key, str]:
    """An outcome's row with its key."""
    known: dict[str, Any] = {
        "agent_turn_id": turn,
        "project_id": "p1",
        "agent_id": "alice",
        "turn_epoch": epoch,
        "started_at": None,
        "ended_at": "2026-11-22T10:00:00+00:00",
        "announced_at": None,
        "stats": {"steps": 1, "e2e_ms": 7},
    }
    return ("turn_outcomes", turn), json.dumps(known | columns)


HEAD = ("agent_state_head", "alice/p1")


def test_moments_and_counters_are_left_out() -> None:
    later = head(updated_at="2026-11-22T11:00:00.5+00:00", queue_seq=9, step_attempt=0)
    assert fold({HEAD: head()}) == fold({HEAD: later})
    assert fold({HEAD: head(step_attempt=1)}) == fold({HEAD: head(step_attempt=4)}) != fold({HEAD: head()})


def test_a_deadline_is_ahead_or_past() -> None:
    ahead, past = (
        fold({HEAD: head(resume_deadline=at)}) for at in ("2098-01-01T00:00:00+00:00", "2020-01-02T00:00:00")
    )
    assert len({ahead.digest, past.digest, fold({HEAD: head()}).digest}) == 3


def test_epochs_keep_their_order_and_whether_they_are_equal() -> None:
    def form(epoch: int, *ended: int) -> bytes:
        outcomes = dict(outcome(f"turn_{n}", each) for n, each in enumerate(ended))
        return fold({HEAD: head(turn_epoch=epoch), **outcomes}).digest

    assert form(7, 2, 5) == form(3, 1, 2)
    assert form(5, 2, 5) != form(7, 2, 5)


def test_a_form_is_its_own_form() -> None:
    form = fold({HEAD: head(turn_epoch=8), **dict([outcome("turn_a", 5)])})
    assert fold(dict(form.rows)) == form


def test_queued_turns_of_a_conversation_keep_the_order_in_which_they_came() -> None:
    def queued(turn: str, minute: int, number: int) -> tuple[Key, str]:
        made = f"2026-11-22T10:{minute:02d}:00+00:00"
        known = dict.fromkeys(COLUMNS["agent_inbox"])
        columns = {"agent_turn_id": turn, "project_id": "p1", "agent_id": "alice", "message_type": "turn"}
        columns |= {"created_at": made, "conversation_seq": number, "context_headers": {}, "status": "queued"}
        return ("agent_inbox", turn), json.dumps(known | columns)

    first_a = fold(dict([queued("turn_a", 1, 1), queued("turn_b", 2, 2)]))
    first_b = fold(dict([queued("turn_b", 1, 1), queued("turn_a", 2, 2)]))
    assert first_a != first_b
    assert fold(dict([queued("turn_a", 4, 7), queued("turn_b", 9, 8)])) == first_a
    moments = {key[1]: json.loads(text)["created_at"] for key, text in first_a.rows}
    assert moments["turn_a"] < moments["turn_b"]


def test_a_row_has_one_rank_at_most() -> None:
    """A second column with a rank, or a second epoch, would take the place of the first."""
    for table, columns in COLUMNS.items():
        kinds = ["rank" if how == "order" else how for how in columns.values()]
        assert (kinds.count("rank") <= 1, kinds.count("epoch") <= 1) == (True, True), table


def test_like_turns_are_folded_by_renaming() -> None:
    swaps = [renaming("a", "b")]
    assert fold(dict([outcome("turn_a", 1)]), swaps) == fold(dict([outcome("turn_b", 1)]), swaps)
