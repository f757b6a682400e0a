"""Who expands states: an explorer in this process, or several processes with a database each and one frontier.

A state is expanded by the process that met it first, so that mostly digests and answers travel.
"""

import asyncio
import logging
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import permutations
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from lab.explore.expansion import Expanded, Explorer, Round
from lab.explore.mutations import mutated
from lab.explore.states.folding import State
from lab.explore.states.place import Place
from lab.explore.worlds import all_worlds

Job = Literal["expand", "alone", "healthy"]
"""Expand a state; take a round of the net alone; or a round of the net and a worker that lives."""
_CHUNK = 8
_WORTH_GIVING = 8


class Crew(ABC):
    """Expands states of one world."""

    @abstractmethod
    async def start(self) -> bytes:
        """The state of the starting ledger."""

    @abstractmethod
    def work(self, job: Job, digests: Sequence[bytes]) -> AsyncGenerator[Any]:
        """Do the job for each of the states; yields the results in any order."""

    @abstractmethod
    async def counts(self) -> Mapping[str, int]:
        """Moves made and spared."""


class LoneCrew(Crew):
    """One explorer, in this process."""

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer

    async def start(self) -> bytes:
        return await self._explorer.start()

    async def work(self, job: Job, digests: Sequence[bytes]) -> AsyncGenerator[Any]:
        for digest in digests:
            yield await _do(self._explorer, job, digest)

    async def counts(self) -> Mapping[str, int]:
        return self._explorer.counts


async def _do(explorer: Explorer, job: Job, digest: bytes) -> Expanded | Round:
    return await explorer.expand(digest) if job == "expand" else await explorer.round(digest, healthy=job == "healthy")


@dataclass(frozen=True, slots=True)
class _Ask:
    """A message to a member: `start`, `counts`, `give` or `take` states, or a job for these states."""

    what: str
    digests: Sequence[bytes] = ()
    states: Sequence[State] = ()


class ProcessCrew(Crew):
    """Several processes. A state belongs to the one that met it first, or to which it was given since it had less."""

    def __init__(self, members: Sequence["Connection[Any, Any]"]) -> None:
        self._members = members
        self._owners: dict[bytes, int] = {}

    async def start(self) -> bytes:
        for member in self._members:
            member.send(_Ask("start"))
        digests: list[bytes] = [await asyncio.to_thread(member.recv) for member in self._members]
        if len(set(digests)) != 1:
            raise RuntimeError("the processes do not start from one ledger")
        self._owners[digests[0]] = 0
        return digests[0]

    async def work(self, job: Job, digests: Sequence[bytes]) -> AsyncGenerator[Any]:
        queues: list[list[bytes]] = [[] for _ in self._members]
        for digest in digests:
            queues[self._owners[digest]].append(digest)
        await self._share(queues)
        waiting = {member: number for number, member in enumerate(self._members) if self._send(job, queues, number)}
        while waiting:
            ready: list[Any] = await asyncio.to_thread(wait, list(waiting))
            for member in ready:
                number = waiting[member]
                results = member.recv()
                if not self._send(job, queues, number):
                    del waiting[member]
                for result in results:
                    reached = [m.digest for m in result.made] if job == "expand" else [result.reached]
                    for digest in reached:
                        self._owners.setdefault(digest, number)
                    yield result

    async def _share(self, queues: list[list[bytes]]) -> None:
        """Give states of members that have more than their share to those that have less."""
        share = -(-sum(map(len, queues)) // len(queues))
        for rich, poor in permutations(range(len(queues)), 2):
            count = min(len(queues[rich]) - share, share - len(queues[poor]))
            if count < _WORTH_GIVING:
                continue
            moved, queues[rich] = queues[rich][-count:], queues[rich][:-count]
            self._members[rich].send(_Ask("give", moved))
            states = await asyncio.to_thread(self._members[rich].recv)
            self._members[poor].send(_Ask("take", states=states))
            await asyncio.to_thread(self._members[poor].recv)
            self._owners.update(dict.fromkeys(moved, poor))
            queues[poor] += moved

    def _send(self, job: Job, queues: list[list[bytes]], number: int) -> bool:
        chunk, queues[number] = queues[number][:_CHUNK], queues[number][_CHUNK:]
        if chunk:
            self._members[number].send(_Ask(job, chunk))
        return bool(chunk)

    async def counts(self) -> Mapping[str, int]:
        total: dict[str, int] = {}
        for member in self._members:
            member.send(_Ask("counts"))
            for name, count in (await asyncio.to_thread(member.recv)).items():
                total[name] = total.get(name, 0) + count
        return total


@asynccontextmanager
async def process_crew(urls: Sequence[str], world: str, mutation: str | None = None) -> AsyncGenerator[Crew]:
    """A process for each of these databases; they end with the block, and with this process."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Any] = []
    processes: list[Any] = []
    try:
        for url in urls:
            ours, theirs = context.Pipe()
            process = context.Process(target=_member, args=(theirs, url, world, mutation), daemon=True)
            process.start()
            pipes.append(ours)
            processes.append(process)
            theirs.close()
        yield ProcessCrew(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def silence_rules() -> None:
    """Log no warnings of the bridge's rules: they run in every state."""
    logging.getLogger("turnstile.bridge").setLevel(logging.CRITICAL)


def _member(pipe: Any, url: str, world: str, mutation: str | None) -> None:
    """The life of a process: it answers until the pipe is closed."""
    silence_rules()
    asyncio.run(_serve(pipe, url, world, mutation))


async def _serve(pipe: Any, url: str, world: str, mutation: str | None) -> None:
    place = Place(url)
    await place.open()
    explorer = Explorer(place, all_worlds()[world])
    with mutated(mutation):
        while True:
            try:
                ask: _Ask = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                break
            match ask.what:
                case "start":
                    pipe.send(await explorer.start())
                case "counts":
                    pipe.send(dict(explorer.counts))
                case "give":
                    pipe.send([explorer.state(digest) for digest in ask.digests])
                case "take":
                    pipe.send([explorer.meet(state) for state in ask.states])
                case "expand" | "alone" | "healthy" as job:
                    pipe.send([await _do(explorer, job, digest) for digest in ask.digests])
                case _:
                    raise ValueError(ask.what)
    await place.close()
