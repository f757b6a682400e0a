"""`stream`: many models stream concurrently at a fixed rate; measures the turns' delay and the cost of a stream.

Afterwards, with fewer streams and in processes of its own, the time until a client hears a model's first piece.
"""

import time
from itertools import pairwise

from lab.bench.agents import CHUNKS_PER_SECOND
from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most, percentile, spread
from lab.bench.load_client import CHANNEL
from lab.bench.streaming.first_piece import measure_first_pieces
from lab.bench.streaming.real_stream import run_real_stream
from lab.bench.system import open_system, usage_figures
from turnstile.schema.wire import subjects

_SPARE = 20


async def run_stream(environment: Environment, bars: Bars) -> Result:
    """Run all turns concurrently; the chunks of one agent are observed. With `plan.model` as `run_real_stream`."""
    plan = environment.plan
    if plan.model:
        return await run_real_stream(environment, bars, plan.model)
    slots = max(environment.settings.worker.max_concurrency, plan.streams + _SPARE)
    arrived: list[float] = []

    async def heard(_: object) -> None:
        arrived.append(time.perf_counter())

    async with open_system(
        environment, "stream", "bench_stream", plan.streams, sections={"worker": {"max_concurrency": slots}}, warm=False
    ) as system:
        subject = subjects.agent_chunk(system.project, CHANNEL, system.agents[0])
        subscription = await environment.conn.subscribe(subject, heard)
        before = await system.read()
        with bars.bar("stream", 1) as advance:
            seconds = await system.load.at_once(system.agents)
            advance(1)
        spent = (await system.read()).since(before)
        values = system.used(spent, plan.streams)
        await environment.conn.unsubscribe(subscription)
    gaps = [(later - earlier) * 1000 for earlier, later in pairwise(arrived)]
    common = await system.common()
    step = next(figure.value for figure in common if figure.name == "step_ms p99")
    figures = [
        Figure(
            name="pieces a second, all streams", value=plan.streams * CHUNKS_PER_SECOND * plan.stream_seconds / seconds
        ),
        Figure(name="turns", value=plan.streams / seconds, unit="/s"),
        Figure(name="step p99 ÷ the model's own time", value=step / (plan.stream_seconds * 1000), goal=at_most(1.1)),
        Figure(
            name="CPU for a second of one stream",
            value=values["cpu kernel"] / plan.stream_seconds,
            unit="ms",
            goal=at_most(4),
        ),
        *await measure_first_pieces(environment, bars),
        *spread("between chunks as heard", gaps),
        Figure(name="chunks heard of one stream", value=len(arrived)),
        *usage_figures(values),
        *common,
    ]
    return Result(
        scenario="stream", figures=tuple(figures), details={"gap_max_ms": percentile(gaps, 1.0) if gaps else 0}
    )
