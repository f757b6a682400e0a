"""`stream`: many models that stream at once, at a pace; how far the turns fall behind it, and what a stream costs."""

import time
from itertools import pairwise

from lab.bench.asking import CHANNEL
from lab.bench.bars import Bars
from lab.bench.cast import CHUNKS_PER_SECOND
from lab.bench.figures import Figure, Result, percentile, spread
from lab.bench.place import Place
from lab.bench.stage import staged, usage_figures
from turnstile.schema.wire import subjects

_SPARE = 20


async def run_stream(place: Place, bars: Bars) -> Result:
    """All at once; one agent's chunks are listened to."""
    plan = place.plan
    slots = max(place.settings.worker.max_concurrency, plan.streams + _SPARE)
    arrived: list[float] = []

    async def heard(_: object) -> None:
        arrived.append(time.perf_counter())

    async with staged(
        place, "stream", "bench_stream", plan.streams, sections={"worker": {"max_concurrency": slots}}, warm=False
    ) as stage:
        subject = subjects.agent_chunk(stage.project, CHANNEL, stage.agents[0])
        subscription = await place.conn.subscribe(subject, heard)
        before = await stage.read()
        with bars.bar("stream", 1) as advance:
            seconds = await stage.asker.at_once(stage.agents)
            advance(1)
        spent = (await stage.read()).since(before)
        values = stage.used(spent, plan.streams)
        await place.conn.unsubscribe(subscription)
    gaps = [(later - earlier) * 1000 for earlier, later in pairwise(arrived)]
    common = await stage.common()
    step = next(figure.value for figure in common if figure.name == "step_ms p99")
    figures = [
        Figure(
            name="pieces a second, all streams", value=plan.streams * CHUNKS_PER_SECOND * plan.stream_seconds / seconds
        ),
        Figure(name="turns", value=plan.streams / seconds, unit="/s"),
        Figure(name="step p99 ÷ the model's own time", value=step / (plan.stream_seconds * 1000)),
        Figure(name="CPU for a second of one stream", value=values["cpu kernel"] / plan.stream_seconds, unit="ms"),
        *spread("between chunks as heard", gaps),
        Figure(name="chunks heard of one stream", value=len(arrived)),
        *usage_figures(values),
        *common,
    ]
    return Result(
        scenario="stream", figures=tuple(figures), details={"gap_max_ms": percentile(gaps, 1.0) if gaps else 0}
    )
