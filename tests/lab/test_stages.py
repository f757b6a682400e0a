"""The stages of a turn, and their picture."""

from pathlib import Path

from lab.bench.drawings.turn import draw_turn
from lab.bench.figures import Figure, Result
from lab.bench.stages import MOMENTS, Stage, stages_of

PLAIN = {
    "requested": 0.0,
    "enqueued": 1.0,
    "reply": 3.0,
    "claimed": 2.0,
    "workflow_started": 4.0,
    "task_started": 4.0,
    "step_started": 7.0,
    "begun": 7.1,
    "asked": 9.0,
    "turn_ended": 10.0,
    "step_ended": 10.5,
    "event": 12.0,
    "announced": 13.0,
    "workflow_completed": 16.0,
}


def took(stages: list[Stage], *, beside: bool = False) -> dict[str, float]:
    return {stage.name: round(stage.took, 6) for stage in stages if stage.beside is beside}


def test_the_stages_of_one_turn_add_up_to_its_time() -> None:
    stages = stages_of([PLAIN])
    assert {stage.name for stage in stages} == {moment.name for moment in MOMENTS}
    assert round(sum(took(stages).values()), 6) == 12.0
    assert list(took(stages))[:3] == ["enqueued", "claimed", "workflow_started"]
    assert took(stages, beside=True) == {"reply": 2.0, "announced": 3.0, "workflow_completed": 6.0}


def test_what_is_beside_the_way_begins_where_its_moment_is() -> None:
    began = {stage.name: stage.began for stage in stages_of([PLAIN]) if stage.beside}
    assert began == {"reply": 1.0, "announced": 10.0, "workflow_completed": 10.0}


def test_moments_that_are_missing_or_come_together_or_in_another_order_make_other_stages() -> None:
    turn = {name: at for name, at in PLAIN.items() if name not in {"announced", "asked", "workflow_completed"}}
    stages = stages_of([turn | {"claimed": 1.0, "step_ended": 9.5}])
    assert took(stages)["claimed"] == 0.0
    assert list(took(stages))[-3:] == ["step_ended", "turn_ended", "event"]
    assert round(sum(took(stages).values()), 6) == 12.0
    assert took(stages, beside=True) == {"reply": 2.0}


def test_what_comes_after_the_event_is_beside_the_way() -> None:
    stages = stages_of([PLAIN | {"step_ended": 14.0}])
    assert list(took(stages))[-1] == "event"
    assert took(stages, beside=True)["step_ended"] == 2.0


def test_a_stage_is_the_median_of_the_turns_that_have_it() -> None:
    slow = {name: at * 10 for name, at in PLAIN.items()}
    some = {name: at for name, at in PLAIN.items() if name != "claimed"}
    assert took(stages_of([PLAIN, PLAIN, slow]))["enqueued"] == 1.0
    assert took(stages_of([PLAIN, some, some]))["claimed"] == 1.0


def test_the_picture_is_drawn_with_and_without_cpu(tmp_path: Path) -> None:
    stages = [stage.model_dump(mode="json") for stage in stages_of([PLAIN | {"announced": 900.0}])]
    whole = Figure(name="a turn alone, request to event p50", value=12.0, unit="ms")
    found = Result(scenario="stages", figures=(whole,), details={"stages": [*stages]})
    names = ("worker and bridge together", "postgres", "temporal", "nats")
    turn = Result(scenario="turn", figures=tuple(Figure(name=f"CPU a turn, {name}", value=5.0) for name in names))
    for beside in (turn, None):
        assert draw_turn(found, beside, tmp_path / "turn.png")
        assert (tmp_path / "turn.png").read_bytes().startswith(b"\x89PNG")
