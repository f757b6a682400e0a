"""`stream --model ID`: a few turns of a real model at once, for orientation, since its pace is its own."""

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result
from lab.bench.system import open_system
from turnstile.ledger.turns.usage import sum_usage

STREAMS = 8
"""Most turns at once."""
_STORY = "Tell a long story about a cat who wanders through the cities of the world."


async def run_real_stream(environment: Environment, bars: Bars, model: str) -> Result:
    """Ask once alone, so that everything is loaded, then with all agents at once."""
    streams = min(environment.plan.streams, STREAMS)

    async def written() -> int:
        usage = await environment.pool.run(lambda conn: sum_usage(conn, system.project, "model"))
        return usage[-1].completion_tokens

    async with open_system(environment, "stream", model, streams, warm=False) as system:
        cold = await system.load.turn(system.agents[0], _STORY)
        before, tokens = await system.read(), await written()
        with bars.bar("stream", 1) as advance:
            seconds = await system.load.at_once(system.agents, _STORY)
            advance(1)
        spent, tokens = (await system.read()).since(before), await written() - tokens
    figures = [
        Figure(name="the first turn, with what it loads", value=cold, unit="ms"),
        Figure(name="turns at once", value=streams),
        Figure(name="tokens a second, all streams", value=tokens / seconds, unit="/s"),
        Figure(
            name="CPU of worker and bridge for a token", value=spent.kernel_cpu() * 1000 / max(tokens, 1), unit="ms"
        ),
        *await system.common(),
    ]
    return Result(scenario="stream", figures=tuple(figures), details={"model": model, "tokens": tokens})
