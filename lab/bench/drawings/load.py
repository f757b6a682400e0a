"""The picture of the scenario `load`: latency against offered load."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from lab.bench.drawings.canvas import canvas
from lab.bench.figures import Result

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Point(BaseModel):
    """Latency at a rate of arrival, in ms."""

    model_config = ConfigDict(extra="ignore")

    offered: float
    p50: float
    p95: float
    p99: float


def draw_load(load: Result, path: Path) -> bool:
    """Draw the picture of the scenario `load`; False without matplotlib."""
    picture = canvas(8, 5)
    if picture is None:
        return False
    points: Sequence[_Point] = [_Point.model_validate(p) for p in _points(load)]
    axes = picture.subplots()
    offered = [point.offered for point in points]
    for name in ("p99", "p95", "p50"):
        axes.plot(offered, [getattr(point, name) for point in points], marker="o", label=name)
    axes.axvline(load.value("turns at once"), color="grey", linestyle=":", label="turns/s, all at once")
    axes.set_yscale("log")
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which("{x:g}")
    axes.set_xlim(left=0)
    axes.set_xlabel("offered load, turns/s (random arrivals)")
    axes.set_ylabel("enqueue to task event, ms")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    picture.savefig(path, dpi=120)
    return True


def _points(load: Result) -> list[Any]:
    points = load.details["points"]
    return points if isinstance(points, list) else []
