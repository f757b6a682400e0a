"""`providers`: the streams of real models' wire forms, from a provider of our own that streams at a pace.

Yardsticks read the same streams in a process of their own, in turns with the kernel: a bare loop, the `openai` client,
litellm alone. Then turns through the kernel, with each of the two readers; then, in OpenAI's form, ever more streams
until the median lateness of what a client hears passes 50 ms.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
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
from turnstile.schema.states import ChunkType
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Chunk

RATE = 50
_LATE_MS = 50.0
_SHAPES: tuple[Shape, ...] = ("several", "reasoning", "calls")
_HEARD = 10
"""Streams whose lateness is heard: who hears all of them would be late itself."""
_READERS = ("litellm", "bytes")


async def run_providers(environment: Environment, bars: Bars) -> Result:
    """Measure each form, then the shapes of OpenAI's form, then how many streams a worker holds."""
    plan = environment.plan
    what, figures = Asked(round(plan.provider_seconds * RATE), RATE), list[Figure]()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_provider(environment.directory))
        clients = await stack.enter_async_context(_clients(environment.directory))
        with bars.bar("providers: forms, each bare, by libraries and by the kernel", len(FORMS)) as advance:
            for form in FORMS:
                figures += await _measure_form(environment, clients, url, form, what)
                advance(1)
        for shape in _SHAPES:
            asked = Asked(what.chunks, RATE, shape)
            bare = await _alone(clients, url, "bare", "openai", asked, plan.provider_streams)
            adapter = await _alone(clients, url, "model", "openai", asked, plan.provider_streams)
            name = f"openai, {shape}: CPU of the adapter a chunk ÷ the bare loop's"
            figures.append(Figure(name=name, value=ratio(adapter, bare)))
        for reader in _READERS:
            held = await _held(environment, url, reader, bars)
            goal = at_least(200) if reader == "bytes" else None
            figures.append(Figure(name=f"{reader}: streams of 50 a second held", value=held, goal=goal))
    return Result(scenario="providers", figures=tuple(figures))


async def _measure_form(environment: Environment, clients: Child, url: str, form: Form, what: Asked) -> list[Figure]:
    streams = environment.plan.provider_streams
    yardsticks: tuple[Reader, ...] = ("openai", "litellm") if form == "openai" else ("litellm",)
    bare = await _alone(clients, url, "bare", form, what, streams)
    figures = [Figure(name=f"{form}: CPU of the bare loop a chunk", value=bare, unit="µs")]
    for reader in yardsticks:
        cost = await _alone(clients, url, reader, form, what, streams)
        figures.append(Figure(name=f"{form}: {reader} alone ÷ bare", value=ratio(cost, bare)))
    for reader in _READERS:
        async with _system(environment, url, form, reader, streams) as system:
            first = list[float]()
            cost, late = await _turns(system, what, first)
            goal = at_most(1.3) if reader == "bytes" else None
            bare = median((bare, await _alone(clients, url, "bare", form, what, streams)))
            figures += [
                Figure(name=f"{form}, {reader}: CPU of the worker a chunk ÷ bare", value=ratio(cost, bare), goal=goal),
                Figure(name=f"{form}, {reader}: first chunk late p50", value=percentile(first, 0.5), unit="ms"),
                Figure(name=f"{form}, {reader}: chunks late p50", value=percentile(late, 0.5), unit="ms"),
            ]
    return figures


async def _held(environment: Environment, url: str, reader: str, bars: Bars) -> float:
    """The most streams, of those in the plan, that one worker reads in time."""
    held, what = 0, Asked(round(environment.plan.provider_seconds * RATE), RATE)
    steps = environment.plan.provider_held
    async with _system(environment, url, "openai", reader, max(steps)) as system:
        for count in steps:
            before = resident_mb(system.pids())
            _, late = await _turns(system, what, [], count)
            late_ms = percentile(late, 0.5)
            memory = (resident_mb(system.pids()) - before) / count
            bars.print_line(f"{reader}: {count} streams, chunks {late_ms:.1f} ms late, {memory:.2f} MB a stream")
            if late_ms > _LATE_MS:
                break
            held = count
    return held


async def _turns(
    system: System, what: Asked, first: list[float], count: int | None = None
) -> tuple[float, list[float]]:
    """Run a turn of each agent at once; CPU of the worker a chunk in µs, and how late the chunks were in ms.

    `first` takes how late the first chunk of each observed turn was.
    """
    agents = system.agents[: count or len(system.agents)]
    late = list[float]()

    def hear(seen: set[str]) -> Callable[[Message], Awaitable[None]]:
        async def heard(message: Message) -> None:
            now, chunk = time.time_ns(), Chunk.model_validate_json(message.data)
            if chunk.chunk_type is not ChunkType.CONTENT:
                return
            stamps = [int(word) for word in chunk.content.split() if word.isdigit()]
            delays = [(now - stamp) / 1e6 for stamp in stamps]
            if delays and chunk.agent_turn_id not in seen:
                seen.add(chunk.agent_turn_id)
                first.append(delays[0])
            late.extend(delays)

        return heard

    subscriptions = [
        await system.environment.conn.subscribe(subjects.agent_chunk(system.project, CHANNEL, agent), hear(set()))
        for agent in agents[:_HEARD]
    ]
    before = await system.read()
    await system.load.at_once(agents, what.prompt())
    spent = (await system.read()).since(before)
    for subscription in subscriptions:
        await system.environment.conn.unsubscribe(subscription)
    return spent.kernel_cpu() * 1e6 / (len(agents) * what.chunks), late


@asynccontextmanager
async def _system(environment: Environment, url: str, form: Form, reader: str, streams: int) -> AsyncGenerator[System]:
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
async def _provider(directory: Path) -> AsyncGenerator[str]:
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
    """CPU of the yardsticks' process a chunk, in µs, while it reads so many streams at once."""
    stdin, stdout = clients.process.stdin, clients.process.stdout
    if stdin is None or stdout is None:
        raise BenchError("the yardsticks have no pipes")
    order = Order(url=url, reader=reader, form=form, prompt=what.prompt(), streams=streams)
    stdin.write(order.model_dump_json().encode() + b"\n")
    line = await asyncio.wait_for(stdout.readline(), 120)
    if not line:
        await clients.process.wait()
        clients.check()
    return Done.model_validate_json(line).cpu_seconds * 1e6 / (streams * what.chunks)
