"""Writes a run's files: a JSON file with everything, and a picture of latency against offered load."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, JsonValue

from lab.bench.figures import Result
from lab.bench.run import Report

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Point(BaseModel):
    """Latency at a rate of arrival, in ms."""

    model_config = ConfigDict(extra="ignore")

    offered: float
    p50: float
    p95: float
    p99: float


def save(report: Report, directory: Path) -> list[Path]:
    """Write the files, named by the time at which the run began; the picture only if `load` ran.

    Without matplotlib (`turnstile-kernel[bench]`) there is no picture.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = report.began_at.strftime("%Y%m%d-%H%M%S")
    written = [directory / f"{name}.json"]
    written[0].write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    load = report.result("load")
    if load is not None and draw(load, directory / f"{name}.png"):
        written.append(directory / f"{name}.png")
    return written


def plain(report: Report) -> JsonValue:
    """The report as JSON, as in the file; unknown values (NaN) are null."""
    return json.loads(report.model_dump_json())


def draw(load: Result, path: Path) -> bool:
    """Draw the picture of the scenario `load`; False without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 -- an extra
        from matplotlib.figure import Figure as Picture  # noqa: PLC0415
    except ImportError:
        return False
    points: Sequence[_Point] = [_Point.model_validate(each) for each in _points(load)]
    picture: Any = Picture(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    offered = [point.offered for point in points]
    for name in ("p99", "p95", "p50"):
        axes.plot(offered, [getattr(point, name) for point in points], marker="o", label=name)
    axes.axvline(load.value("turns at once"), color="grey", linestyle=":", label="turns/s, all at once")
    axes.set_yscale("log")
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
