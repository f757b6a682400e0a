"""What a watcher sees of a stream: attempts that start over, pieces that come late or never, nothing that steers."""

import pytest

from turnstile.cli.output import Output
from turnstile.cli.turns.live import LiveView
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.sdk.client import WatchEvent

TURN = AgentTurnId("t1")


def chunk(
    text: str, index: int, *, step: int = 1, attempt: int = 1, kind: str = "content", **metadata: str
) -> WatchEvent:
    payload: JsonObject = {
        "agent_turn_id": TURN,
        "step_id": f"{TURN}-s{step}",
        "attempt": attempt,
        "index": index,
        "chunk_type": kind,
        "content": text,
        "metadata": {**metadata},
    }
    return WatchEvent("cg.v1r4.p.c.str.agent.a.chunk", "chunk", AgentId("a"), payload, {})


def shown(events: list[WatchEvent], capsys: pytest.CaptureFixture[str]) -> str:
    view = LiveView(Output(as_json=False), TURN)
    for event in events:
        view.take(event)
    view.close()
    return capsys.readouterr().out


def test_a_higher_attempt_starts_over_and_the_lower_one_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    events = [chunk("", 0, kind="start"), chunk("half", 1), chunk("", 0, attempt=2, kind="start")]
    events += [chunk(" late", 2), chunk("whole", 1, attempt=2), chunk("", 2, attempt=2, kind="end")]
    assert shown(events, capsys) == "half\n— attempt 2, starting over —\nwhole\n"


def test_lost_repeated_and_late_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    events = [chunk("a", 0), chunk("a", 0), chunk("c", 2), chunk("d", 0, step=2), chunk("late", 3)]
    assert shown(events, capsys) == "a\n· a part of the stream was lost\ncd\n"


def test_kinds_are_told_apart_and_an_error_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    events = [chunk("hm", 0, kind="reasoning"), chunk("so", 1), chunk('{"q":', 2, kind="tool_call", tool_name="search")]
    events += [chunk(" 1}", 3, kind="tool_call"), chunk("", 4, kind="end", error_code="rate_limited")]
    assert shown(events, capsys) == 'hm\nso\n→ search {"q": 1}\n· the model failed: rate_limited\n'


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown([chunk("a\x1b]0;evil\x07b\r\n[red]c[/red]", 0)], capsys) == "a]0;evilb\n[red]c[/red]\n"


def test_events_of_other_turns_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    task = WatchEvent("s", "task", AgentId("a"), {"agent_turn_id": "t2", "status": "success"}, {})
    assert shown([task], capsys) == ""
    assert LiveView(Output(as_json=False), TURN).take(
        WatchEvent("s", "task", AgentId("a"), {"agent_turn_id": TURN}, {})
    )


def test_the_text_that_was_shown_last_is_known() -> None:
    """Of the last attempt at the last step: the deliverable is not printed again if it is that."""
    view = LiveView(Output(as_json=False), TURN)
    for event in [chunk("", 0, kind="start"), chunk("half", 1), chunk("", 0, attempt=2, kind="start")]:
        view.take(event)
    view.take(chunk("whole", 1, attempt=2))
    assert view.last_text == "whole"
    for event in [chunk("", 0, step=2, kind="start"), chunk("the ", 1, step=2), chunk("end", 2, step=2)]:
        view.take(event)
    assert view.last_text == "the end"
