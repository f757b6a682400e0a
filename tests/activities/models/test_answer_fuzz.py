"""Any bytes as a model's answer: an answer with words or calls, or one error, soon, and nothing that holds the loop.

Streams of the three forms are mutated: their events, their order, their bytes, where they are cut, what they say that
they are, and how they end. A case is its number.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.activities.models.asking import LIMITS, StepRequest, question
from tests.activities.models.http_stub import Ending, HttpReply
from tests.activities.models.provider_stub import sse
from tests.activities.models.test_answers import BODY, EVENTS, MODELS, TABLE, RawStub, model_of_stub
from tests.support.cpu import Held, held
from tests.support.fuzz import BYTES, Dice, Report, Tally
from turnstile.activities.models import LitellmModel
from turnstile.schema.json_reading import storable

__all__ = ["held"]

CASE_SECONDS = 15.0
FOUND = (20_243,)
"""Cases that broke it once: an event of 30 kB of no form, which litellm quoted and searched for secrets."""
_ENDINGS: list[Ending] = ["end", "end", "end", "end", "cut", "close"]
_KINDS = [EVENTS, EVENTS, EVENTS, BODY, {"content-type": "text/html"}, {"content-type": "\xff"}]


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[RawStub]:
    """One stub for the module, whose replies each case sets."""
    async with RawStub() as running:
        yield running


@pytest.fixture(scope="module")
async def model(stub: RawStub, key_file: Path, reader: str) -> AsyncIterator[LitellmModel]:
    """A model that reaches it in each form, of each reader."""
    model = model_of_stub(stub, key_file, reader)
    yield model
    await model.close()


def mutated(dice: Dice, reply: HttpReply) -> HttpReply:
    """The reply with something else in it, about it, or behind it."""
    pieces = list(reply.pieces)
    for _ in range(dice.pick.randrange(3)):
        if not pieces:
            break
        at = dice.pick.randrange(len(pieces))
        match dice.pick.randrange(6):
            case 0:
                del pieces[at]
            case 1:
                pieces.insert(at, dice.pick.choice(pieces))
            case 2:
                dice.pick.shuffle(pieces)
            case _:
                pieces[at] = _bent(dice, pieces[at])
    data = b"".join(pieces)
    if dice.chance(0.15) and data:
        at = dice.pick.randrange(len(data))
        data = data[:at] + dice.pick.choice([*BYTES, b"\n\n", b"data:", b"[" * 5_000]) + data[at:]
    if dice.chance(0.1):
        data = data[: dice.pick.randrange(len(data) + 1)]
    size = dice.pick.choice([1_000_000, 1_000, 64])
    kind = dice.pick.choice(_KINDS) if dice.chance(0.2) else reply.headers
    cut = [data[n : n + size] for n in range(0, len(data), size)]
    return HttpReply(200 if dice.chance(0.97) else 500, dict(kind), cut, dice.pick.choice(_ENDINGS))


def _bent(dice: Dice, piece: bytes) -> bytes:
    start = piece.find(b"data: ") + 6
    try:
        event: Any = json.loads(piece[start:])
    except (ValueError, RecursionError):
        return dice.encoded(dice.odd())
    bent = dice.bent(event)
    return piece[:start] + dice.encoded(bent) + b"\n\n" if start > 5 else sse(json.dumps(bent, ensure_ascii=True))


@pytest.mark.fuzz
@pytest.mark.parametrize("cases", [60, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
async def test_any_stream_is_an_answer_or_an_error_soon(
    stub: RawStub, model: LitellmModel, held: Held, cases: int, fuzz_report: Report
) -> None:
    tally, limits = Tally(), replace(LIMITS, model_attempts=1)
    for prefix, _, case in TABLE[::7]:  # clients are made, and modules imported, at the first request
        stub.replies = [case.reply]
        await question(model, MODELS[prefix], limits=limits)

    async def ask(reply: HttpReply, prefix: str) -> StepRequest:
        stub.replies = [reply]
        async with asyncio.timeout(CASE_SECONDS):
            return await question(model, MODELS[prefix], limits=limits)

    for number in (*FOUND, *range(cases)):
        dice = Dice.of(number)
        prefix, _, case = dice.pick.choice(TABLE)
        result = await held.cheap(partial(ask, mutated(dice, case.reply), prefix), (number, prefix))
        if not number % 1_000:
            gc.collect()
        if result.error is not None:
            tally.count(prefix, result.error.code)
            continue
        answer = result.said()
        assert answer.text.strip() or answer.calls, number
        assert not answer.refusal, number
        for text in (answer.text, answer.finish_reason, *(call.name + call.arguments_text for call in answer.calls)):
            assert text == storable(text), number
        tally.count(prefix, "answer")
    for line in tally.lines():
        fuzz_report(f"model answers of {line}")
    assert all("answer" in tally.codes(prefix) for prefix in MODELS)
