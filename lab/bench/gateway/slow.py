"""Clients that ask for a long turn and take nothing, beside clients whose chunks are timed."""

import asyncio
import socket
import time
from urllib.parse import urlsplit

from lab.bench.agents import add_players
from lab.bench.bars import Bars
from lab.bench.figures import Figure, at_most
from lab.bench.gateway.clients import request
from lab.bench.gateway.latency import measure_latency
from lab.bench.gateway.process import GatewayProcess
from lab.bench.system import System

SCRIPT = "bench_big"
_RECEIVE_BYTES = 4096
_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 120.0
_CLOSED = 7
"""TCP_CLOSE, of Linux's tcp_states.h."""


async def measure_slow(system: System, gateway: GatewayProcess, bars: Bars) -> list[Figure]:
    """Let the plan's stuck clients ask, time the others meanwhile, and wait until the stuck ones are cut."""
    environment, plan = system.environment, system.environment.plan
    [agent] = await add_players(environment.pool, system.project, environment.target, SCRIPT, "big", 1)
    turn = await system.load.enqueue(agent)
    await system.load.wait(turn)
    before = gateway.memory_mb()
    stuck = [await asyncio.to_thread(_ask, gateway, turn) for _ in range(plan.sse_stuck)]
    began, peak = time.perf_counter(), before
    timed = asyncio.create_task(measure_latency(system, gateway, bars, "beside"))
    seconds = 0.0
    try:
        while (left := sum(_open(client) for client in stuck)) and time.perf_counter() - began < _LONGEST_SECONDS:
            peak = max(peak, gateway.memory_mb())
            await asyncio.sleep(_POLL_SECONDS)
            seconds = time.perf_counter() - began
        others = await timed
    finally:
        timed.cancel()
        for client in stuck:
            client.close()
    return [
        Figure(name="stuck clients", value=len(stuck)),
        Figure(name="stuck clients that were not cut", value=left, goal=at_most(0)),
        Figure(name="from the last one's request until all are cut", value=seconds, unit="s"),
        Figure(name="gateway's memory a stuck client", value=(peak - before) * 1000 / len(stuck), unit="kB"),
        *(figure.model_copy(update={"name": f"beside them: {figure.name}"}) for figure in others[:3]),
    ]


def _ask(gateway: GatewayProcess, turn: str) -> socket.socket:
    place = urlsplit(gateway.url)
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    asking.connect((place.hostname, place.port))
    asking.sendall(request(turn, place.netloc, gateway.token, ""))
    return asking


def _open(asking: socket.socket) -> bool:
    """Whether the gateway has not cut it; nothing is read to find out."""
    return asking.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _CLOSED
