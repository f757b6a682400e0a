"""Clients of a gateway's streams: `python -m lab.bench.gateway.clients` reads one line of JSON and answers with one.

Each reads a turn's events over a bare socket, since an HTTP client would cost more than the gateway; cuts its
connection where the plan says so, in the midst of what has come; and goes on with the id of the last event, at the next
address if the one before is gone. Times are the machine's monotonic clock, which all its processes share.
"""

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from turnstile.schema.base import Strict

_AGAIN_SECONDS = 0.1
_LONGEST_SECONDS = 420.0


class Reader(Strict):
    """One client."""

    turn: str
    delay_seconds: float = 0.0
    """When it begins."""
    cuts: tuple[int, ...] = ()
    """After how many chunks it cuts its connection, rising."""
    pause_seconds: float = 0.0
    """How long it stays away after a cut."""


class Readers(Strict):
    """The clients of a process."""

    urls: tuple[str, ...]
    """Gateways; a client begins with the first, and takes the next where a connection breaks that it did not cut."""
    token: str
    readers: tuple[Reader, ...]
    text: str = ""
    """What each turn's first step and its deliverable must say; empty: it is not looked at."""
    timed: bool = False
    """Whether the time of each chunk is kept."""


class Answer(Strict):
    """What one client got."""

    chunks: int = 0
    lost: int = 0
    """Chunks whose predecessor was missing."""
    doubled: int = 0
    """Events that came twice, or in the wrong order."""
    resets: int = 0
    resumes: int = 0
    broken: int = 0
    """Connections that ended without the client's doing."""
    halved: int = 0
    """Those that ended in the midst of an event."""
    refused: dict[int, int] = Field(default_factory=dict)
    """Connections whose request had another answer than 200, by that."""
    reconnects: int = 0
    """Times that a gateway said that it stops."""
    exact: bool = False
    """Whether the text that it folded is the turn's."""
    began: float = 0.0
    """When its first connection was answered."""
    times: list[tuple[str, float]] = Field(default_factory=list)
    """The id of each chunk's event, and when it came."""


class Answers(Strict):
    """What the clients of a process got."""

    answers: list[Answer]
    cpu_seconds: float


class Stream(asyncio.Protocol):
    """One connection: its response's events, each given to `take` until that returns False."""

    def __init__(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._request = request
        self._take = take
        self._raw = bytearray()
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._raw += data
        if not self.status:
            head, separator, rest = bytes(self._raw).partition(b"\r\n\r\n")
            if not separator:
                return
            self.status, self._raw = int(head.split(b" ", 2)[1]), bytearray(rest)
        if self.status != HTTPStatus.OK:
            self.cut()
            return
        ended = False
        while not ended and (size := self._chunk_size()) is not None:
            start = self._raw.index(b"\r\n") + 2
            self._body += bytes(self._raw[start : start + size])
            del self._raw[: start + size + 2]
            ended = not size
        *events, self._body = self._body.split(b"\n\n")
        for event in events:
            if not self._take(event):
                self.cut()
                return
        if ended:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    @property
    def halved(self) -> bool:
        """Whether it is in the midst of an event."""
        return bool(self._raw or self._body)

    def cut(self) -> None:
        """End it at once, whatever else has come."""
        if self._transport is not None:
            self._transport.abort()

    def _chunk_size(self) -> int | None:
        """The size of the next whole chunk of the transfer; None if it is not there yet."""
        end = self._raw.find(b"\r\n")
        if end < 0:
            return None
        size = int(self._raw[:end], 16)
        return size if len(self._raw) >= end + 2 + size + 2 else None


class Fold:
    """What a client makes of the events of a turn."""

    def __init__(self, text: str, *, timed: bool) -> None:
        self.answer: Counter[str] = Counter()
        self.last = ""
        self.over = False
        self.refused: Counter[int] = Counter()
        self.began = 0.0
        self.times: list[tuple[str, float]] = []
        self._text = text
        self._timed = timed
        self._steps: dict[str, list[str]] = {}
        self._place: dict[str, tuple[int, int]] = {}
        self._seen: set[str] = set()
        self._said: str | None = None

    def take(self, event: bytes) -> str:
        """One event; returns its kind, empty for a comment."""
        kind, event_id, data = "", "", b""
        for line in event.split(b"\n"):
            name, _, value = line.partition(b": ")
            if name == b"event":
                kind = value.decode()
            elif name == b"id":
                event_id = value.decode()
            elif name == b"data":
                data = value
        if event_id:
            self.answer["doubled"] += event_id in self._seen
            self._seen.add(event_id)
            self.last = event_id
        if kind == "chunk":
            if self._timed:
                self.times.append((event_id, time.perf_counter()))
            self._chunk(json.loads(data))
        elif kind == "reset":
            self.answer["resets"] += 1
            step = json.loads(data)["step_id"]
            self._steps.pop(step, None)
            self._place.pop(step, None)
        elif kind == "reconnect":
            self.answer["reconnects"] += 1
        elif kind == "outcome":
            self.over = True
            output: dict[str, Any] | None = json.loads(data)["output"]
            self._said = None if output is None else output.get("text")
        return kind

    def done(self) -> Answer:
        """The answer of this client."""
        streamed = ["".join(parts) for parts in self._steps.values()]
        exact = not self._text or (
            self._said == self._text and (not streamed or bool(self.answer["resets"]) or streamed == [self._text])
        )
        return Answer(
            **self.answer, exact=self.over and exact, refused=self.refused, began=self.began, times=self.times
        )

    def _chunk(self, chunk: dict[str, Any]) -> None:
        self.answer["chunks"] += 1
        step, place = chunk["step_id"], (chunk["attempt"], chunk["index"])
        before = self._place.get(step)
        if before is None or before[0] < place[0]:
            self._steps[step] = []
            expected = 0
        else:
            expected = before[1] + 1
            self.answer["doubled"] += place <= before
        self.answer["lost"] += place[1] > expected
        self._place[step] = place
        if chunk["chunk_type"] == "content":
            self._steps[step].append(chunk["content"])


async def read(reader: Reader, shared: Readers) -> Answer:
    """Read a turn to its outcome, with the cuts that are wanted."""
    fold, cuts, gateway = Fold(shared.text, timed=shared.timed), list(reader.cuts), 0
    await asyncio.sleep(reader.delay_seconds)

    def take(event: bytes) -> bool:
        if not fold.began:
            fold.began = time.perf_counter()
        chunk = fold.take(event) == "chunk"
        if chunk and cuts and fold.answer["chunks"] >= cuts[0]:
            cuts.pop(0)
            return False
        return not fold.over

    async with asyncio.timeout(_LONGEST_SECONDS):
        while not fold.over:
            left = len(cuts)
            place = urlsplit(shared.urls[gateway % len(shared.urls)])
            request_bytes = request(reader.turn, place.netloc, shared.token, fold.last)
            halved = False
            try:
                _, stream = await asyncio.get_running_loop().create_connection(
                    lambda sent=request_bytes: Stream(sent, take), place.hostname or "", place.port or 80
                )
                await stream.over
                halved = stream.halved and stream.status == HTTPStatus.OK
                if stream.status != HTTPStatus.OK:
                    fold.refused[stream.status] += 1
            except OSError:
                pass
            if fold.over:
                break
            fold.answer["resumes"] += 1
            if len(cuts) == left:  # not cut here: the gateway is gone, or stops, or refused
                fold.answer["broken"] += 1
                fold.answer["halved"] += halved
                gateway += 1
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                await asyncio.sleep(reader.pause_seconds)
    return fold.done()


async def read_turns(shared: Readers) -> list[Answer]:
    """All clients at once."""
    return list(await asyncio.gather(*(read(reader, shared) for reader in shared.readers)))


def split(readers: Sequence[Reader], processes: int) -> list[tuple[Reader, ...]]:
    """The clients in so many shares."""
    return [tuple(readers[n::processes]) for n in range(min(processes, len(readers)))]


def request(turn: str, host: str, token: str, last: str) -> bytes:
    lines = [f"GET /v1/turns/{turn}/events HTTP/1.1", f"host: {host}", f"authorization: Bearer {token}"]
    lines += [f"last-event-id: {last}"] if last else []
    return "\r\n".join([*lines, "", ""]).encode()


def main() -> None:
    """Say that it is ready, read, and print what came of it."""
    gc.freeze()  # the collector would hold up what is timed
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    shared = Readers.model_validate_json(sys.stdin.readline())
    answers = asyncio.run(read_turns(shared))
    sys.stdout.write(Answers(answers=answers, cpu_seconds=time.process_time()).model_dump_json() + "\n")


if __name__ == "__main__":
    main()
