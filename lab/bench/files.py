"""Writes a run's files: a JSON file with everything, and pictures of latency against load and of one turn."""

import json
from pathlib import Path

from pydantic import JsonValue

from lab.bench.drawings.load import draw_load
from lab.bench.drawings.turn import draw_turn
from lab.bench.run import Report


def save(report: Report, directory: Path) -> list[Path]:
    """Write the files, named by the time at which the run began; a picture only if its scenario ran.

    Without matplotlib (`turnstile-kernel[bench]`) there are no pictures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = report.began_at.strftime("%Y%m%d-%H%M%S")
    written = [directory / f"{name}.json"]
    written[0].write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    load, stages = report.result("load"), report.result("stages")
    if load is not None and draw_load(load, directory / f"{name}.png"):
        written.append(directory / f"{name}.png")
    if stages is not None and draw_turn(stages, report.result("turn"), directory / f"{name}-turn.png"):
        written.append(directory / f"{name}-turn.png")
    return written


def plain(report: Report) -> JsonValue:
    """The report as JSON, as in the file; unknown values (NaN) are null."""
    return json.loads(report.model_dump_json())
