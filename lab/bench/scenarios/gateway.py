"""`gateway`: a gateway in a process of its own, under streams that are cut, timed streams, and turns over HTTP."""

from collections.abc import Awaitable, Callable, Mapping

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result
from lab.bench.gateway.latency import measure_latency
from lab.bench.gateway.process import GatewayProcess, open_gateway
from lab.bench.gateway.ratio import measure_ratio
from lab.bench.gateway.slow import measure_slow
from lab.bench.gateway.streams import measure_streams
from lab.bench.plan import GatewayPart
from lab.bench.system import System, open_system

_PARTS: Mapping[GatewayPart, Callable[[System, GatewayProcess, Bars], Awaitable[list[Figure]]]] = {
    GatewayPart.STREAMS: measure_streams,
    GatewayPart.LATENCY: measure_latency,
    GatewayPart.SLOW: measure_slow,
    GatewayPart.RATIO: measure_ratio,
}


async def run_gateway(environment: Environment, bars: Bars) -> Result:
    """Measure the plan's parts, one after the other, at one gateway."""
    plan, figures = environment.plan, list[Figure]()
    async with open_system(environment, "gateway", "instant", plan.callers) as system, open_gateway(system) as gateway:
        for part in (g for g in GatewayPart if g in plan.gateway_parts):
            figures += await _PARTS[part](system, gateway, bars)
    return Result(scenario="gateway", figures=tuple(figures))
