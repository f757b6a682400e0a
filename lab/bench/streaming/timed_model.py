"""Scripts whose pieces are moments: when the model was asked, and when it yielded the piece.

Whoever hears a piece on the same machine reads the same clock, so the difference is what the kernel adds. Workers load
this file by its path, as `[model].scripts`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from turnstile.activities.models.script import Script
from turnstile.runtime.ports import ContentDelta, ModelDone, ModelEvent, ModelRequest

PATH = Path(__file__)
AT_ONCE, PACED = "bench_stamped", "bench_paced"
"""Names of the two scripts: one piece without delay; as many pieces as the instruction says, at `PIECES_PER_SECOND`."""
PIECES_PER_SECOND = 50


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a model was asked, and when it yielded a piece, in seconds since 1970."""

    requested: float
    yielded: float


def stamp_of(text: str) -> Stamp:
    """The stamp of the first piece in the text of a chunk."""
    requested, yielded = text.split(maxsplit=1)[0].split("-")
    return Stamp(int(requested) / 1e9, int(yielded) / 1e9)


async def _at_once(_: ModelRequest) -> AsyncIterator[ModelEvent]:
    yield _piece(time.time_ns())
    yield _done(1)


async def _paced(request: ModelRequest) -> AsyncIterator[ModelEvent]:
    requested, pieces = time.time_ns(), int(request.messages[-1].content)
    for _ in range(pieces):
        await asyncio.sleep(1 / PIECES_PER_SECOND)
        yield _piece(requested)
    yield _done(pieces)


def _piece(requested: int) -> ContentDelta:
    return ContentDelta(f"{requested}-{time.time_ns()} ")


def _done(pieces: int) -> ModelDone:
    usage = {"prompt_tokens": 1, "completion_tokens": pieces, "total_tokens": 1 + pieces}
    return ModelDone(finish_reason="stop", usage={**usage}, response_cost=None, usage_kind="exact")


SCRIPTS: dict[str, Script] = {AT_ONCE: _at_once, PACED: _paced}
