"""Charts: round axes, escaped names, well-formed, and nothing that the Content-Security-Policy refuses."""

from xml.etree import ElementTree

import pytest

from turnstile.gateway.console.figures.charts import Bar, Frame, columns, rows, ticks
from turnstile.schema.amounts import money

FRAME = Frame("days", "Cost by day", "Dollars by day", money)
HOSTILE = '"><script>alert(1)</script>{0}'


@pytest.mark.parametrize("most", [0.000003, 0.034, 0.99, 1, 7, 1234, 10_000_000])
def test_an_axis_begins_at_zero_has_few_round_ticks_and_holds_all(most: float) -> None:
    found = ticks(most)
    assert found[0] == 0
    assert found[-1] >= most * (1 - 1e-9)
    assert 2 <= len(found) <= 6
    assert found[-1] < most * 2.1


@pytest.mark.parametrize("bars", [[], [Bar("2026-01-01", 0)], [Bar(HOSTILE, 1.5, HOSTILE), Bar("b" * 200, 3)]])
def test_charts_are_well_formed_and_say_what_they_show(bars: list[Bar]) -> None:
    for made in (columns(FRAME, bars, wide=True), columns(FRAME, bars, wide=False), rows(FRAME, bars)):
        root = ElementTree.fromstring(str(made))  # noqa: S314 -- our own
        tags = {each.tag for each in root.iter()}
        assert tags <= {"svg", "title", "desc", "g", "rect", "text", "line"}
        names = {name for each in root.iter() for name in each.attrib}
        assert "style" not in names
        assert not [name for name in names if name.startswith("on")]
        named = root.attrib["aria-labelledby"].split()
        assert [each.text for each in root.iter() if each.attrib.get("id") in named] == [
            "Cost by day",
            "Dollars by day",
        ]
        groups = [each for each in root.iter("g") if each.attrib.get("class") == "bar"]
        assert [group.findtext("title") for group in groups] == [
            f"{bar.name}: {money(bar.value)}{f', {bar.about}' if bar.about else ''}" for bar in bars
        ]


def test_bars_stay_within_their_chart() -> None:
    bars = [Bar(f"2026-01-{day:02}", day) for day in range(1, 32)]
    for made in (columns(FRAME, bars, wide=True), columns(FRAME, bars, wide=False), rows(FRAME, bars)):
        root = ElementTree.fromstring(str(made))  # noqa: S314 -- our own
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for rect in root.iter("rect"):
            x, y, wide, high = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert 0 <= x <= x + wide <= width + 0.1
            assert 0 <= y <= y + high <= height + 0.1
