"""The arithmetic of the report, and how it is shown."""

import json
import math
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lab.bench.figures import (
    Figure,
    Result,
    at_least,
    at_most,
    held,
    median,
    medians,
    percentile,
    ratio,
    slope,
    spread,
)
from lab.bench.report import number, rows, save, summary, table
from lab.bench.run import Report


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert percentile([7.0], 0.5) == percentile([7.0], 0.99) == 7
    assert percentile([1.0, 2.0], 0.99) == 2
    assert math.isnan(percentile([], 0.5))


def test_medians_are_those_of_each_value_over_the_rounds_that_have_it() -> None:
    assert medians([{"a": 1, "b": 5}, {"a": 9}, {"a": 2}]) == {"a": 2, "b": 5}
    assert median([math.nan, 3.0]) == 3
    assert math.isnan(median([]))


def test_a_ratio_to_nothing_and_an_unknown_value_meet_no_goal() -> None:
    unknown = ratio(1, 0)
    assert math.isnan(unknown)
    assert not at_least(0).met(unknown)
    assert not at_most(1e9).met(unknown)
    assert ratio(3, 2) == 1.5


def test_goals_hold_at_their_bound() -> None:
    assert at_least(0.95).met(0.95)
    assert not at_least(0.95).met(0.9499)
    assert at_most(250).met(250)
    assert not at_most(250).met(250.1)
    assert Figure(name="free", value=1).met is None


def test_figures_are_held_to_the_goals_of_their_names() -> None:
    free, bound = Figure(name="free", value=1), Figure(name="bound", value=1, goal=at_most(1))
    found = held([free, bound], {"free": at_least(2), "unknown": at_least(3)})
    assert [figure.goal for figure in found] == [at_least(2), at_most(1)]


def test_a_slope_is_by_the_unit_of_x() -> None:
    assert slope((1, 2000), (500, 2000)) == 0
    assert slope((1, 2000), (501, 3000)) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (1.0, "1.00"),
        (64.25, "64.2"),
        (987.6, "988"),
        (12345.6, "12,346"),
        (math.nan, "unknown"),
    ],
)
def test_three_digits_count(value: float, text: str) -> None:
    assert number(value) == text


def test_percentiles_share_a_row_unless_one_has_a_goal() -> None:
    figures = [*spread("step_ms", [1.0, 2.0]), *spread("e2e_ms", [3.0]), Figure(name="turns", value=1)]
    assert [stem for stem, _ in rows(figures)] == ["step_ms p50 / p95 / p99", "e2e_ms p50 / p95 / p99", "turns"]
    stops = [Figure(name="stop p50", value=1), Figure(name="stop p99", value=2, goal=at_most(250))]
    assert [stem for stem, _ in rows(stops)] == ["stop p50", "stop p99"]
    first = [Figure(name="piece p50", value=1, goal=at_most(10)), *spread("piece", [2.0])[1:]]
    assert [stem for stem, _ in rows(first)] == ["piece p50", "piece p95 / p99"]


def a_report() -> Report:
    good = Figure(name="engine share", value=0.97, goal=at_least(0.95))
    bad = Figure(name="CPU ratio", value=1.5, goal=at_most(1.3))
    points = [{"offered": rate, "p50": rate, "p95": 2 * rate, "p99": 3 * rate} for rate in (10.0, 20.0)]
    return Report(
        began_at=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        seconds=12,
        machine={"cpus": 2},
        load_before=0.1,
        load_after=1.9,
        generator_cpu_seconds=1,
        embedded=["postgres", "nats", "temporal"],
        plan={},
        results=[
            Result(scenario="turn", figures=(good, bad, Figure(name="peak memory", value=math.nan, unit="MB"))),
            Result(
                scenario="load",
                figures=(Figure(name="turns at once", value=25, unit="/s"),),
                details={"points": [dict(point) for point in points]},
            ),
        ],
    )


def test_the_table_says_what_is_met_and_what_is_missed() -> None:
    shown = StringIO()
    Console(file=shown, width=120).print(table(a_report()))
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("2 CPUs, load 0.10 before and 1.90 after, embedded servers")
    assert any("engine share" in line and "≥ 0.95" in line and "met" in line for line in lines)
    assert any("CPU ratio" in line and "≤ 1.3" in line and "missed" in line for line in lines)
    assert any("peak memory" in line and "unknown" in line for line in lines)
    assert summary(a_report()) == "1 of 2 goals met; missed: turn: CPU ratio"


def test_a_run_leaves_a_file_and_a_picture(tmp_path: Path) -> None:
    written = save(a_report(), tmp_path / "results")
    assert [path.name for path in written] == ["20300102-030405.json", "20300102-030405.png"]
    saved = json.loads(written[0].read_text())
    assert saved["results"][0]["figures"][2]["value"] is None
    assert saved["results"][0]["figures"][0]["goal"] == {"relation": ">=", "bound": 0.95}
    assert written[1].read_bytes().startswith(b"\x89PNG")
