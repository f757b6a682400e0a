"""The picture of one turn: its stages by who works, and the CPU that it takes under load.

For a slide: 16 to 9, few words, and no text upon another. Every stage has a row of its own, with its time beside it;
one of less than a fiftieth of the turn has none, and is in the table and in the JSON file only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bench.drawings.canvas import canvas
from lab.bench.figures import Result
from lab.bench.stages import Stage, Who

_COLOURS = {
    Who.CLIENT: "#7a869a",
    Who.POSTGRES: "#2f6f9f",
    Who.TEMPORAL: "#6b4fa0",
    Who.WORKER: "#d9822b",
    Who.NATS: "#3d8f62",
}
_INK, _FAINT = "#1d2433", "#c9d0da"
_BESIDE_ALPHA = 0.45
_CPU = (
    ("worker and bridge", "CPU a turn, worker and bridge together", Who.WORKER),
    ("PostgreSQL", "CPU a turn, postgres", Who.POSTGRES),
    ("Temporal", "CPU a turn, temporal", Who.TEMPORAL),
    ("NATS", "CPU a turn, nats", Who.NATS),
)
_SMALLEST = 0.02
"""The share of the turn from which on a stage has a row."""
_LONGEST = 1.6
"""Where the axis ends, in turns: what takes longer beside them is cut there."""
_ROOM = 1.12
"""The width of an axis, in widths of the longest bar: room for the time beside it."""
_BAR = 0.74
_Axes = Any
"""Of matplotlib, which is an extra."""


def draw_turn(stages: Result, turn: Result | None, path: Path) -> bool:
    """Draw the picture of the scenario `stages`, and CPU below it if `turn` ran too; False without matplotlib."""
    picture = canvas(13.33, 7.5)
    if picture is None:
        return False
    whole = stages.value("a turn alone, request to event p50") or 0.0
    large = [stage for stage in _stages(stages) if stage.took >= whole * _SMALLEST]
    cpu = [] if turn is None else [(name, value, who) for name, key, who in _CPU if (value := turn.value(key))]
    picture.get_layout_engine().set(w_pad=0.2, h_pad=0.12)
    if cpu:
        upper, lower = picture.subplots(2, 1, height_ratios=(len(large) + 2.6, len(cpu) + 0.6))
        _draw_cpu(lower, cpu)
    else:
        upper = picture.subplots()
    _draw_stages(upper, large, whole)
    _draw_legend(picture, large)
    picture.savefig(path, dpi=150)
    return True


def _stages(result: Result) -> list[Stage]:
    values = result.details["stages"]
    return [Stage.model_validate(v) for v in values] if isinstance(values, list) else []


def _draw_stages(axes: _Axes, stages: Sequence[Stage], whole: float) -> None:
    path, beside = ([s for s in stages if s.beside is which] for which in (False, True))
    end = min(max([whole, *(s.ended for s in stages)]), whole * _LONGEST)
    rows = [*enumerate(path, 1), *enumerate(beside, len(path) + 2)]
    axes.barh(0, whole, color=_INK, height=_BAR)
    axes.text(whole / 2, 0, f"{whole:.1f} ms", ha="center", va="center_baseline", color="white", fontsize=15)
    for row, stage in rows:
        alpha = _BESIDE_ALPHA if stage.beside else 1
        ended = min(stage.ended, end)
        axes.barh(row, ended - stage.began, left=stage.began, color=_COLOURS[stage.who], height=_BAR, alpha=alpha)
        _write(axes, ended + end / 120, row, stage.took, more=stage.ended > end)
    if beside:
        axes.text(0, len(path) + 1, "beside it, while no client waits:", va="center", color=_INK, fontsize=13)
    axes.set_yticks([0, *(row for row, _ in rows)], ["request to event", *(stage.text for _, stage in rows)])
    _finish(axes, len(rows) + 1 + bool(beside), end, "ms since the request, medians of turns one at a time")
    axes.set_title("Where the time of one turn goes", fontsize=21, color=_INK, loc="left", pad=10)


def _draw_cpu(axes: _Axes, cpu: Sequence[tuple[str, float, Who]]) -> None:
    most = max(value for _, value, _ in cpu)
    for row, (_, value, who) in enumerate(cpu):
        axes.barh(row, value, color=_COLOURS[who], height=_BAR)
        _write(axes, value + most / 120, row, value)
    axes.set_yticks(range(len(cpu)), [name for name, _, _ in cpu])
    _finish(axes, len(cpu), most, "ms of CPU a turn")
    axes.set_title("and its CPU, with many turns at once", fontsize=16, color=_INK, loc="left", pad=8)


def _write(axes: _Axes, x: float, row: int, value: float, *, more: bool = False) -> None:
    axes.text(x, row, f"{value:.1f} ms{' →' if more else ''}", ha="left", va="center_baseline", color=_INK, fontsize=14)


def _finish(axes: _Axes, rows: int, end: float, unit: str) -> None:
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, end * _ROOM)
    axes.set_xlabel(unit, fontsize=13, color=_INK)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x", color=_FAINT, linewidth=0.7)
    axes.tick_params(length=0, labelcolor=_INK, labelsize=12)
    axes.tick_params(axis="y", labelsize=14)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_legend(picture: Any, stages: Sequence[Stage]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415 -- an extra

    there = [who for who in Who if any(stage.who == who for stage in stages)]
    picture.legend(
        handles=[Patch(color=_COLOURS[who], label=who) for who in there],
        loc="outside lower center",
        ncols=len(there),
        frameon=False,
        fontsize=14,
        labelcolor=_INK,
        handlelength=1.2,
    )
