"""`providers`: the streams of real models' wire forms, from a provider of our own that streams at a pace.

Yardsticks read the same streams in a process of their own, in turns with a worker, which is a process of its own here:
a bare loop, the `openai` client, litellm alone, and the loop of pydantic-ai where that is installed. CPU a chunk is the
slope between short and long answers, of yardsticks and worker alike, so that what a turn costs once is a figure of its
own. Then ever more streams at once, until the median lateness of what a client hears passes 50 ms.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from lab.bench.bars import Bars
from lab.bench.children import BenchError, Child, child
from lab.bench.environment import Environment, Section
from lab.bench.figures import Figure, Result, at_least, at_most, median, percentile, ratio
from lab.bench.load_client import CHANNEL, Message
from lab.bench.proc import resident_mb
from lab.bench.providers.clients import Done, Order, Reader
from lab.bench.providers.forms import FORMS, KEY, MODELS, PATHS, Asked, Form, Shape
from lab.bench.providers.server import LISTENS
from lab.bench.system import System, open_system
from turnstile.schema.ids import AgentId
from turnstile.schema.states import ChunkType
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Chunk

RATE = 50
_FEW = 2
"""Chunks of a short answer."""
_LATE_MS = 50.0
_SHAPES: tuple[Shape, ...] = ("several", "reasoning", "calls")
_HEARD = 10
"""Streams whose lateness is heard: who hears all of them would be late itself."""
_READERS = ("litellm", "bytes")
_LOOK_SECONDS = 0.25


@dataclass
class Streamed:
    """What turns that streamed at once came to."""

    cpu_ms: float = 0.0
    """CPU of the worker."""
    first_ms: list[float] = field(default_factory=list[float])
    """How late the first chunks of the observed turns were heard after the provider had sent them."""
    late_ms: list[float] = field(default_factory=list[float])
    """As `first_ms`, of all chunks."""
    peak_mb: float = 0.0
    """What the worker's memory grew by, at most."""


async def run_providers(environment: Environment, bars: Bars) -> Result:
    """Measure each form, with the streams that a worker holds, then the shapes of OpenAI's form."""
    environment = replace(environment, plan=replace(environment.plan, split=True, workers=1))
    plan = environment.plan
    what, figures = Asked(round(plan.provider_seconds * RATE), RATE), list[Figure]()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provider(environment.directory))
        clients = await stack.enter_async_context(_clients(environment.directory))
        with bars.bar("providers: forms, each bare, by libraries and by a worker", len(FORMS)) as advance:
            for form in plan.provider_forms:
                figures += await _measure_form(environment, clients, url, form, what, bars)
                advance(1)
        for shape in _SHAPES:
            asked = Asked(what.chunks, RATE, shape)
            bare = await _alone(clients, url, "bare", "openai", asked, plan.provider_streams)
            adapter = await _alone(clients, url, "model", "openai", asked, plan.provider_streams)
            name = f"openai, {shape}: CPU of the adapter a chunk ÷ the bare loop's"
            figures.append(Figure(name=name, value=ratio(adapter, bare)))
    return Result(scenario="providers", figures=tuple(figures))


async def _measure_form(
    environment: Environment, clients: Child, url: str, form: Form, what: Asked, bars: Bars
) -> list[Figure]:
    streams = environment.plan.provider_streams
    yardsticks: tuple[Reader, ...] = ("openai", "litellm") if form == "openai" else ("litellm",)
    if form == "openai" and find_spec("pydantic_ai"):
        yardsticks = (*yardsticks, "pydantic-ai")
    bare = await _alone(clients, url, "bare", form, what, streams)
    figures = [Figure(name=f"{form}: CPU of the bare loop a chunk", value=bare, unit="µs")]
    for yardstick in yardsticks:
        cost = await _alone(clients, url, yardstick, form, what, streams)
        figures.append(Figure(name=f"{form}: {yardstick} alone ÷ bare", value=ratio(cost, bare)))
    for reader in _READERS:
        ours, few = reader == "bytes", replace(what, chunks=_FEW)
        agents = max(environment.plan.provider_held) if ours else streams
        async with provider_system(environment, url, form, reader, agents) as system:
            short = await stream_turns(system, few, system.agents[:streams])
            long = await stream_turns(system, what, system.agents[:streams])
            bare = median((bare, await _alone(clients, url, "bare", form, what, streams)))
            cost = (long.cpu_ms - short.cpu_ms) * 1000 / (streams * (what.chunks - _FEW))
            name = f"{form}, {reader}"
            figures += [
                Figure(
                    name=f"{name}: CPU of the worker a chunk ÷ bare",
                    value=ratio(cost, bare),
                    goal=at_most(1.3) if ours else None,
                ),
                Figure(
                    name=f"{name}: CPU of the worker a turn of {_FEW} chunks", value=short.cpu_ms / streams, unit="ms"
                ),
                Figure(
                    name=f"{name}: first chunk beyond the provider's p50",
                    value=percentile(long.first_ms, 0.5),
                    unit="ms",
                ),
                Figure(name=f"{name}: chunks late p50", value=percentile(long.late_ms, 0.5), unit="ms"),
            ]
            if ours:
                figures += await _held(system, form, what, bars)
    return figures


async def _held(system: System, form: Form, what: Asked, bars: Bars) -> list[Figure]:
    """The most streams, of those in the plan, that one worker reads in time, and what each took of its memory."""
    held, memory = 0, list[float]()
    for count in system.environment.plan.provider_held:
        streamed = await stream_turns(system, what, system.agents[:count])
        late_ms = percentile(streamed.late_ms, 0.5)
        memory.append(streamed.peak_mb / count)
        bars.print_line(f"{form}: {count} streams, chunks {late_ms:.1f} ms late, {memory[-1]:.2f} MB a stream")
        if late_ms > _LATE_MS:
            break
        held = count
    return [
        Figure(name=f"{form}: streams of {RATE} a second held", value=held, goal=at_least(200)),
        Figure(name=f"{form}: memory a stream, at most", value=max(memory), unit="MB"),
    ]


async def stream_turns(system: System, what: Asked, agents: Sequence[AgentId]) -> Streamed:
    """Run a turn of each agent at once."""
    streamed = Streamed()

    def hear(seen: set[str]) -> Callable[[Message], Awaitable[None]]:
        async def heard(message: Message) -> None:
            now, chunk = time.time_ns(), Chunk.model_validate_json(message.data)
            if chunk.chunk_type is not ChunkType.CONTENT:
                return
            stamps = [int(word) for word in chunk.content.split() if word.isdigit()]
            delays = [(now - stamp) / 1e6 for stamp in stamps]
            if delays and chunk.agent_turn_id not in seen:
                seen.add(chunk.agent_turn_id)
                streamed.first_ms.append(delays[0])
            streamed.late_ms.extend(delays)

        return heard

    workers = [process.pid for role, process, _ in system.children if role == "worker"]
    resident = resident_mb(workers)

    async def look() -> None:
        while True:
            streamed.peak_mb = max(streamed.peak_mb, resident_mb(workers) - resident)
            await asyncio.sleep(_LOOK_SECONDS)

    conn = system.environment.conn
    subscriptions = [
        await conn.subscribe(subjects.agent_chunk(system.project, CHANNEL, agent), hear(set()))
        for agent in agents[:_HEARD]
    ]
    before, looking = await system.read(), asyncio.create_task(look())
    try:
        await system.load.at_once(agents, what.prompt())
    finally:
        looking.cancel()
    streamed.cpu_ms = (await system.read()).since(before).cpu["worker"] * 1000
    for subscription in subscriptions:
        await conn.unsubscribe(subscription)
    return streamed


@asynccontextmanager
async def provider_system(
    environment: Environment, url: str, form: Form, reader: str, streams: int
) -> AsyncGenerator[System]:
    """A system whose models of this form are the provider's; every agent has had a turn of two chunks."""
    key = environment.directory / "provider-key"
    key.write_text(KEY)
    key.chmod(0o600)
    sections: Mapping[str, Section] = {
        "model.api_bases": {form: url + PATHS[form]},
        "model.api_key_files": {form: str(key)},
        "model": {"reader": reader},
        "worker": {"max_concurrency": max(environment.settings.worker.max_concurrency, streams + 20)},
        "limits": {"requests_per_second": 0},
    }
    name = f"providers-{form}-{reader}"
    async with open_system(environment, name, MODELS[form], streams, sections=sections, warm=False) as system:
        await system.load.turn(system.agents[0], Asked(2, RATE).prompt())  # loads what is loaded at first use
        await system.load.at_once(system.agents[:20], Asked(2, RATE).prompt())
        yield system


@asynccontextmanager
async def provider(directory: Path) -> AsyncGenerator[str]:
    """The provider in a process of its own; yields its address."""
    log = directory / "provider.log"
    async with child("provider", ("-m", "lab.bench.providers.server"), log) as process:
        await process.wait_for_log("\n")
        yield log.read_text().strip().removeprefix(LISTENS)


@asynccontextmanager
async def _clients(directory: Path) -> AsyncGenerator[Child]:
    """The process of the yardsticks."""
    environment: dict[str, str] = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), KEY)
    words, log = ("-m", "lab.bench.providers.clients"), directory / "clients.log"
    async with child("clients", words, log, piped=True, environment=environment) as process:
        yield process


async def _alone(clients: Child, url: str, reader: Reader, form: Form, what: Asked, streams: int) -> float:
    """CPU of the yardsticks' process a chunk, in µs, while it reads so many streams at once: long ones beside short."""
    short = await _read_alone(clients, url, reader, form, replace(what, chunks=_FEW), streams)
    long = await _read_alone(clients, url, reader, form, what, streams)
    return (long - short) * 1e6 / (streams * (what.chunks - _FEW))


async def _read_alone(clients: Child, url: str, reader: Reader, form: Form, what: Asked, streams: int) -> float:
    """CPU seconds of the yardsticks' process."""
    stdin, stdout = clients.process.stdin, clients.process.stdout
    if stdin is None or stdout is None:
        raise BenchError("the yardsticks have no pipes")
    order = Order(url=url, reader=reader, form=form, prompt=what.prompt(), streams=streams)
    stdin.write(order.model_dump_json().encode() + b"\n")
    line = await asyncio.wait_for(stdout.readline(), 120)
    if not line:
        await clients.process.wait()
        clients.check()
    return Done.model_validate_json(line).cpu_seconds
