"""The pure parts of the pages of turns: timelines, trees rolled up, and what turns wait for in words."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.gateway.console.turns.tree import (
    FEW,
    MOST_LINES,
    STANDING_OUT,
    Line,
    group_of,
    lines_of,
    rolled_up,
)
from turnstile.gateway.console.turns.turn_page import MOST_STEPS, drawn, timeline_of
from turnstile.gateway.console.turns.waits import stall_of, waits_of
from turnstile.ledger.access.now import TurnCall, TurnNow
from turnstile.schema.ledger_reads import StepView
from turnstile.schema.wire.descriptions import TreeTurn, TurnView

THEN = datetime(2026, 11, 23, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return THEN + timedelta(seconds=seconds)


def turn(**fields: Any) -> TurnView:
    given = dict.fromkeys(TurnView.model_fields) | {
        "agent_turn_id": "t1",
        "project_id": "p1",
        "agent_id": "a",
        "channel_id": "public",
        "inbox_id": "i",
        "inbox_status": "consumed",
        "status": "success",
        "created_at": THEN,
        "steps": 0,
        "reruns": (),
        "started_at": after(1),
        "ended_at": after(11),
    }
    return TurnView.model_validate(given | fields)


def step(number: int, begin: float, end: float | None, *attempts: dict[str, Any]) -> StepView:
    return StepView.model_validate(
        {
            "step_id": f"t1-s{number}",
            "status": "completed",
            "tool_call_ids": None,
            "error": None,
            "started_at": after(begin),
            "ended_at": None if end is None else after(end),
            "metadata": json.dumps({"attempts": attempts}),
        }
    )


def call(step: int, begin: float, **fields: Any) -> TurnCall:
    given = dict.fromkeys(TurnCall.model_fields) | {
        "tool_call_id": f"c{begin}",
        "tool_name": "search",
        "step_id": f"t1-s{step}",
        "wait_status": "waiting",
        "created_at": after(begin),
        "updated_at": after(begin),
        "call_card_id": "k",
    }
    return TurnCall.model_validate(given | fields)


def test_a_timeline_has_the_steps_their_attempts_and_their_calls() -> None:
    attempts = [{"duration_ms": 1000, "model": "m", "error_code": "rate_limited"}, {"duration_ms": 2000, "model": "m"}]
    steps = [step(1, 1, 6, *attempts), step(2, 9, 11)]
    calls = [call(1, 6, received_at=after(9), wait_status="applied", result_status="success")]
    found = timeline_of(turn(), steps, calls, [], after(99))
    assert [(row.label, row.depth) for row in found.rows] == [
        ("queued", 0),
        ("step 1", 0),
        ("search", 1),
        ("step 2", 0),
        ("end", 0),
    ]
    bars = [(bar.kind, (bar.begin - THEN).seconds, (bar.end - THEN).seconds) for bar in found.rows[1].bars]
    assert bars == [("step", 1, 6), ("failed", 1, 2), ("attempt", 4, 6)], "the last attempt ends with its step"
    assert (found.end, found.live) == (after(11), False)


def test_a_call_that_people_decide_shows_how_long_that_took() -> None:
    asked: Any = type("Asked", (), {"tool_call_id": "c6", "created_at": after(6), "decided_at": after(8)})()
    asked.decision, asked.status = "approve", "resolved"
    live = turn(status="suspended", ended_at=None)
    found = timeline_of(live, [step(1, 1, 6)], [call(1, 6)], [asked], after(20))
    people = next(bar for row in found.rows for bar in row.bars if bar.kind == "people")
    assert (people.begin, people.end, found.end, found.live) == (after(6), after(8), after(20), True)


def test_a_running_turn_has_a_bar_until_now() -> None:
    found = timeline_of(turn(status="running", ended_at=None), [step(1, 1, 3)], [], [], after(7))
    [bar] = found.rows[-1].bars
    assert (found.rows[-1].label, bar.kind, bar.begin, bar.end) == ("step 2", "live", after(3), after(7))


def test_of_many_steps_those_in_the_midst_are_one_row() -> None:
    steps = [step(n, n, n + 0.5) for n in range(1, 101)]
    found = timeline_of(turn(ended_at=after(101)), steps, [], [], after(101))
    assert len(found.rows) == 1 + MOST_STEPS + 2, "what was queued, what is folded, and the end"
    assert [row.label for row in found.rows][5:8] == ["step 5", "steps 6 to 75", "step 76"]


def test_a_drawing_is_to_scale_and_holds_nothing_of_strangers_but_text() -> None:
    hostile = '<script>"&\u202e'
    calls = [call(1, 6, tool_name=hostile, received_at=after(11), wait_status="applied")]
    svg = str(drawn(timeline_of(turn(), [step(1, 1, 6)], calls, [], after(11))))
    assert "style=" not in svg
    assert "\u202e" not in svg
    found = ElementTree.fromstring(svg)  # noqa: S314 -- our own
    bars = {each.attrib["class"]: each.attrib for each in found.iter("rect")}
    queued, taken, called = (float(bars[f"tl-{kind}"]["width"]) for kind in ("queue", "step", "call"))
    assert taken == pytest.approx(called, abs=0.2)
    assert taken == pytest.approx(5 * queued, rel=0.02)
    assert hostile[:8] in "".join(found.itertext())


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e3, 1e6) | st.none(), st.floats(-1, 1e9)), max_size=60))
def test_whatever_the_ledger_has_is_drawn_within_the_picture(times: list[tuple[float, float | None, float]]) -> None:
    steps = [
        step(n, begin, None if end is None else begin + end, {"duration_ms": length, "model": None}, {})
        for n, (begin, end, length) in enumerate(times, 1)
    ]
    found = ElementTree.fromstring(str(drawn(timeline_of(turn(ended_at=None), steps, [], [], after(10)))))  # noqa: S314
    for bar in found.iter("rect"):
        assert 0 <= float(bar.attrib["x"]) <= float(bar.attrib["x"]) + float(bar.attrib["width"]) <= 1000


def node(name: str, parent: str | None = None, status: str = "success", **fields: Any) -> TreeTurn:
    given = dict.fromkeys(TreeTurn.model_fields) | {
        "agent_turn_id": name,
        "parent_turn_id": parent,
        "depth": 0,
        "agent_id": f"agent-{name}",
        "waited": True,
        "stopping": False,
        "status": status,
        "created_at": THEN,
        "started_at": after(1),
        "tokens": 10,
        "steps": 1,
        "ended_at": None if status in {"running", "queued"} else after(5),
        "cost": 0.5,
    }
    return TreeTurn.model_validate(given | fields)


def test_time_state_and_cost_are_rolled_up() -> None:
    nodes = [node("r"), node("a", "r"), node("b", "a", "failed", ended_at=after(9)), node("c", "r", cost=None)]
    forest = rolled_up(nodes)
    assert (forest.whole.turns, forest.whole.cost, forest.whole.tokens, forest.whole.end) == (4, 1.5, 40, after(9))
    assert (forest.by_turn[nodes[1].agent_turn_id].whole.turns, forest.whole.states["failed"]) == (2, 1)
    words = {line.branch.node.agent_turn_id: line.words for line in lines_of(forest.tops)}
    assert words == {"r": ("1 failed below",), "a": ("1 failed below",), "b": (), "c": ()}


def test_one_whose_parent_may_not_be_seen_is_a_top() -> None:
    forest = rolled_up([node("a", "unseen"), node("b", "a")])
    assert [top.node.agent_turn_id for top in forest.tops] == ["a"]


def test_a_thousand_children_are_folded_but_for_those_that_stand_out() -> None:
    states = ["failed" if n % 100 == 0 else "running" if n % 250 == 1 else "success" for n in range(1000)]
    forest = rolled_up([node("r"), *(node(f"c{n:04}", "r", state) for n, state in enumerate(states))])
    lines = lines_of(forest.tops)
    counts = Counter("group" if line.status else line.branch.node.status for line in lines)
    assert counts == {"success": 1, "failed": 10, "running": 4, "group": 1}
    assert (lines[-1].status, lines[-1].words, lines[-1].sums.turns) == ("success", ("986 turns",), 986)
    assert len(group_of(forest.tops[0], "success")) == 986
    assert lines[0].words == ("10 failed below", "4 running below")


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(["success", "failed", "running"])), max_size=700))
def test_no_turn_is_lost_and_a_page_has_an_end(made: list[tuple[int, str]]) -> None:
    nodes = [node("n0")]
    for number, (above, state) in enumerate(made, 1):
        nodes.append(node(f"n{number}", f"n{above % number}", state))
    forest = rolled_up(nodes)
    lines = lines_of(forest.tops)
    assert forest.whole.turns == len(nodes)
    assert counted(lines) == len(nodes)
    assert len(lines) <= MOST_LINES + 3 * (MOST_LINES + STANDING_OUT)
    assert all(line.depth >= 0 for line in lines)
    assert FEW > STANDING_OUT


def counted(lines: list[Line]) -> int:
    """The turns that lines and groups stand for."""
    return sum(line.sums.turns if line.status else 1 for line in lines)


def live(**fields: Any) -> TurnNow:
    given = dict.fromkeys(TurnNow.model_fields) | {
        "agent_turn_id": "t1",
        "agent_id": "a/b",
        "channel_id": "public",
        "status": "queued",
        "inbox_status": "queued",
        "created_at": THEN,
        "since": THEN,
        "steps": 0,
        "step_attempt": 0,
        "model_failures": 0,
        "restart_count": 0,
        "retry_count": 0,
        "asks_people": False,
        "unserved": False,
        "stopping": False,
        "tokens": 0,
        "open_calls": 0,
    }
    return TurnNow.model_validate(given | fields)


def waiting(**fields: Any) -> dict[str, Any]:
    return {
        "tool_call_id": "c",
        "tool_name": "pay",
        "created_at": THEN,
        "deadline": None,
        "wait_status": "waiting",
        "tasks": None,
        "tasks_done": None,
        "only_turn_id": None,
        "question_id": None,
        **fields,
    }


@pytest.mark.parametrize(
    ("turn", "text", "href"),
    [
        (live(), "its lease: it is next", None),
        (live(queued_because="agent_paused"), "its agent, which is paused", "/console/agents/a%2Fb"),
        (live(status="dispatched"), "a worker to begin it", None),
        (
            live(status="dispatched", defer_reason="engine_unreachable", retry_count=3),
            "Temporal, which does not accept it (tried 3 times)",
            None,
        ),
        (
            live(status="dispatched", defer_reason="not_begun", retry_count=1),
            "a worker to begin it (tried 1 time)",
            None,
        ),
        (live(status="running", model="m", steps=2), "model m, step 3", None),
        (
            live(status="running", model="m", step_attempt=3, model_failures=2),
            "model m, step 1, attempt 3, 2 failures",
            None,
        ),
        (live(status="suspended", calls=[waiting()], open_calls=1), "tool pay", "/console/calls"),
        (
            live(status="suspended", calls=[waiting(question_id="q")], open_calls=1),
            "a person, about pay",
            "/console/approvals/q",
        ),
        (
            live(status="suspended", calls=[waiting(tasks=3, tasks_done=1)], open_calls=1),
            "1 of 3 turns of pay are over",
            "/console/turns/t1/tree",
        ),
        (
            live(status="suspended", calls=[waiting(tasks=1, only_turn_id="t2")], open_calls=1),
            "a turn that pay started",
            "/console/turns/t2",
        ),
        (
            live(status="suspended", calls=[waiting(wait_status="received")], open_calls=1),
            "its next step: pay has answered",
            None,
        ),
        (live(status="suspended"), "its next step: all calls are answered", None),
    ],
)
def test_a_turn_says_what_it_waits_for(turn: TurnNow, text: str, href: str | None) -> None:
    [wait] = waits_of(turn)
    assert (wait.text, wait.href) == (text, href)


def test_calls_that_are_not_listed_are_counted() -> None:
    found = waits_of(live(status="suspended", calls=[waiting()] * 5, open_calls=12))
    assert [wait.text for wait in found][-1] == "7 more calls"


@pytest.mark.parametrize(
    ("stalled", "more", "words"),
    [
        ("not_leased", {}, "nothing has leased it for 1 min 30 s"),
        ("not_begun", {"unserved": True}, "no worker has begun it for 1 min 30 s: no worker serves its agent's target"),
        ("slow_step", {}, "no step for 1 min 30 s (usual is 2.0 s)"),
        ("overdue", {"resume_deadline": after(30)}, "its deadline passed 1 min ago"),
        (None, {}, None),
    ],
)
def test_why_a_turn_stands_still_is_said(stalled: str | None, more: dict[str, Any], words: str | None) -> None:
    assert stall_of(live(stalled=stalled, **more), after(90), 2.0) == words
