"""Many clients of one gateway, each cut at random: what is lost, what comes twice, and what a stream costs."""

import random
from collections import Counter

from lab.bench.agents import add_players, streamed_text
from lab.bench.bars import Bars
from lab.bench.figures import Figure, at_most, ratio
from lab.bench.gateway.clients import Answer, Reader, Readers, split
from lab.bench.gateway.process import GatewayProcess, open_clients, read_all
from lab.bench.plan import Plan
from lab.bench.system import System

SCRIPT = "bench_sse"
_SEED = 7
_PROCESSES = 2
_RAMP = 0.1
"""The share of a turn within which its clients come."""


async def measure_streams(system: System, gateway: GatewayProcess, bars: Bars) -> list[Figure]:
    """Let the plan's clients read the plan's turns at once."""
    plan, environment = system.environment.plan, system.environment
    agents = await add_players(environment.pool, system.project, environment.target, SCRIPT, "sse", plan.sse_turns)
    began_mb, began_cpu = gateway.memory_mb(), gateway.cpu()
    async with open_clients(gateway, "streams", _PROCESSES) as clients:
        with bars.bar("gateway: streams", 1) as advance:
            turns = [await system.load.enqueue(agent) for agent in agents]
            drawn = random.Random(_SEED)  # noqa: S311 -- the same cuts in every run
            readers = [_reader(plan, turns[n % len(turns)], drawn) for n in range(plan.sse_clients)]
            text = streamed_text(plan)
            shares = [
                Readers(urls=(gateway.url,), token=gateway.token, readers=part, text=text)
                for part in split(readers, _PROCESSES)
            ]
            answers_read, peak = await read_all(gateway, clients, shares)
            for turn in turns:
                await system.load.wait(turn)
            advance(1)
    answers, cpu = [answer for a in answers_read for answer in a.answers], gateway.cpu() - began_cpu
    return [*_exactness(answers), *_costs(plan, answers, cpu, peak - began_mb, peak)]


def _reader(plan: Plan, turn: str, drawn: random.Random) -> Reader:
    cuts = sorted(drawn.sample(range(1, plan.sse_chunks), min(plan.sse_cuts, plan.sse_chunks - 1)))
    return Reader(turn=turn, cuts=tuple(cuts), delay_seconds=drawn.random() * plan.sse_seconds * _RAMP)


def _exactness(answers: list[Answer]) -> list[Figure]:
    refused = sum((Counter(answer.refused) for answer in answers), Counter[int]())
    return [
        Figure(name="chunks lost", value=sum(answer.lost for answer in answers), goal=at_most(0)),
        Figure(name="chunks doubled", value=sum(answer.doubled for answer in answers), goal=at_most(0)),
        Figure(name="clients whose text differs", value=sum(not answer.exact for answer in answers), goal=at_most(0)),
        Figure(name="clients", value=len(answers)),
        Figure(name="chunks to all clients", value=sum(answer.chunks for answer in answers)),
        Figure(name="resumes", value=sum(answer.resumes for answer in answers)),
        Figure(name="connections that broke by themselves", value=sum(answer.broken for answer in answers)),
        *(Figure(name=f"requests answered {status}", value=count) for status, count in sorted(refused.items())),
        Figure(name="resets", value=sum(answer.resets for answer in answers)),
    ]


def _costs(plan: Plan, answers: list[Answer], cpu: float, grown_mb: float, peak_mb: float) -> list[Figure]:
    chunks = sum(answer.chunks for answer in answers)
    return [
        Figure(name="gateway's memory a stream", value=grown_mb * 1000 / len(answers), unit="kB"),
        Figure(name="gateway's memory, most", value=peak_mb, unit="MB"),
        Figure(name="gateway's CPU a stream, whole turn", value=cpu * 1000 / len(answers), unit="ms"),
        Figure(
            name="gateway's CPU for a second of one stream",
            value=cpu * 1000 / len(answers) / plan.sse_seconds,
            unit="ms",
        ),
        Figure(name="gateway's CPU a chunk and client", value=ratio(cpu * 1_000_000, chunks), unit="µs"),
    ]
