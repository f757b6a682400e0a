"""Any bytes as a model's answer: an answer with words or calls, or one error, soon, and nothing that holds the loop.

Streams of the three forms are mutated: their events, their order, their bytes, where they are cut, what they say that
they are, and how they end. A case is its number. All of them are read, judged and decided on as a step does it, without
sockets (a reply is given to the transport of the client); some of them over HTTP; and of each kind of outcome, and
some more, whole turns, which end as the case was judged.
"""

import asyncio
import gc
import importlib
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.activities.models.asking import LIMITS, StepRequest, question
from tests.activities.models.http_stub import Ending, HttpReply, HttpRequest
from tests.activities.models.provider_stub import sse
from tests.activities.models.test_answers import BODY, EVENTS, MODELS, PATHS, TABLE, RawStub, model_of_stub
from tests.rules.test_choices import TURN
from tests.support.cpu import Held, held
from tests.support.fuzz import BYTES, Dice, Report, Tally
from tests.support.processes.stack import QUICK, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.activities.models import LitellmModel
from turnstile.ledger.roster import add_agent
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Deliver, Suspend, decide
from turnstile.rules.decide import StepRequest as DecidedStep
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.cards import CardType, TextContent, content_of
from turnstile.schema.ids import AgentId
from turnstile.schema.json_reading import storable
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import TurnStatus
from turnstile.schema.tools import ToolRow

__all__ = ["held"]

CASE_SECONDS = 15.0
_AT_ONCE = 16
_CASE = re.compile(rb"case (\d+) \.")
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


class Replies(httpx.AsyncByteStream):
    """The pieces of a reply, each after a turn of the loop, and its ending."""

    def __init__(self, reply: HttpReply) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._reply.pieces:
            await asyncio.sleep(0)
            if piece:
                yield piece
        if self._reply.ending == "cut":
            raise httpx.ReadError("cut")


@contextmanager
def without_sockets(stub: RawStub) -> Generator[None]:
    """Let each request have the stub's reply; what comes is mended and overheard as ever."""
    transport: Any = importlib.import_module("litellm.llms.custom_httpx.aiohttp_transport").LiteLLMAiohttpTransport
    way = transport.handle_async_request

    async def handle(_: object, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        reply = await stub.reply(HttpRequest(request.method, request.url.path, {}, {}, b""))
        headers = [(name.encode(), text.encode()) for name, text in reply.headers.items()]
        return httpx.Response(reply.status, headers=headers, stream=Replies(reply), request=request)

    transport.handle_async_request = handle
    try:
        yield
    finally:
        transport.handle_async_request = way


CONFIG = TurnConfig(
    profile_name="x",
    llm_config=LlmConfig(model="m"),
    max_steps=9,
    must_end_with=[],
    tools={"f": ToolRow(tool_name="f", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.f.run")},
)


def decided(answer: ModelAnswer) -> str:
    """What a step comes to that has this answer; fails where that is a success without an answer."""
    match decide(DecidedStep(TURN, 1, CONFIG, (), "", Patience()), answer):
        case Deliver(cards, status, deliverable):
            [content] = [content_of(card) for card in cards if card.card_id == deliverable]
            assert isinstance(content, TextContent)
            assert content.text.strip()
            assert status is TurnStatus.SUCCESS
            return "answer" if answer.truncated is None else "answer that is cut off"
        case Continue(cards):
            assert any(card.type == CardType.TOOL_RESULT for card in cards)
            return "refused call"
        case Suspend():
            return "call"


def case_of(number: int) -> tuple[str, HttpReply]:
    """The case of this number: whose model is asked, and what it sends."""
    dice = Dice.of(number)
    prefix, _, case = dice.pick.choice(TABLE)
    return prefix, mutated(dice, case.reply)


async def judged(
    numbers: Sequence[int], stub: RawStub, model: LitellmModel, held: Held
) -> AsyncGenerator[tuple[int, str, str]]:
    """Each case as a step reads, judges and decides on it: its number, its prefix and its outcome."""
    limits = replace(LIMITS, model_attempts=1)
    for prefix, _, case in TABLE[::7]:  # clients are made, and modules imported, at the first request
        stub.replies = [case.reply]
        await question(model, MODELS[prefix], limits=limits)
    gc.collect()
    gc.freeze()

    async def ask(reply: HttpReply, prefix: str) -> StepRequest:
        stub.replies = [reply]
        async with asyncio.timeout(CASE_SECONDS):
            return await question(model, MODELS[prefix], limits=limits)

    for done, number in enumerate(numbers):
        prefix, reply = case_of(number)
        result = await held.cheap(partial(ask, reply, prefix), (number, prefix))
        if not done % 1_000:
            gc.collect()
            logging.getLogger(__name__).info("%d cases", done)
        if result.error is not None:
            yield number, prefix, result.error.code
            continue
        answer = result.said()
        assert answer.text.strip() or answer.calls, number
        assert not answer.refusal, number
        for text in (answer.text, answer.finish_reason, *(call.name + call.arguments_text for call in answer.calls)):
            assert text == storable(text), number
        yield number, prefix, decided(answer)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("over", "cases"),
    [
        ("http", 15),
        ("memory", 45),
        pytest.param("http", 2_500, marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
        pytest.param("memory", 100_000, marks=[pytest.mark.long, pytest.mark.timeout(14_400)]),
    ],
)
async def test_any_stream_is_an_answer_or_an_error_soon(
    stub: RawStub, model: LitellmModel, held: Held, over: str, cases: int, fuzz_report: Report
) -> None:
    tally = Tally()
    with without_sockets(stub) if over == "memory" else nullcontext():
        async for _, prefix, came in judged((*FOUND, *range(cases)), stub, model, held):
            tally.count(prefix, came)
    for line in tally.lines():
        fuzz_report(f"model answers over {over} of {line}")
    assert cases < 45 or all({"answer", "call", "model_stream_broken"} & tally.codes(prefix) for prefix in MODELS)


class CaseStub(RawStub):
    """Answers by the number of the case that a request names, and counts the requests of each."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Counter[int]()

    async def reply(self, request: HttpRequest) -> HttpReply:
        found = _CASE.search(request.body)
        assert found is not None
        self.asked[int(found[1])] += 1
        return case_of(int(found[1]))[1]


@pytest.fixture(scope="module")
async def case_stub() -> AsyncIterator[CaseStub]:
    """One stub for the module."""
    async with CaseStub() as running:
        yield running


@pytest.fixture(scope="module")
async def stack(stacks: Stacks, case_stub: CaseStub, key_file: Path, reader: str) -> AsyncIterator[Stack]:
    """A stack whose models are the stub's, of each reader."""
    own: dict[str, Any] = {"timeout_seconds": CASE_SECONDS, "model_attempts": 1, "reader": reader}
    own |= {f"api_key_files.{prefix}": str(key_file) for prefix in PATHS}
    own |= {f"api_bases.{prefix}": f"{case_stub.url}{path}" for prefix, path in PATHS.items()}
    patient = {
        **QUICK["worker"],
        "activity_heartbeat_timeout_seconds": 60.0,
    }  # else a busy machine has steps begun anew
    async with stacks.open({**QUICK, "worker": patient, "model": {**QUICK["model"], **own}}) as opened:
        yield opened


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("cases", "turns"), [(30, 4), pytest.param(2_000, 2_000, marks=[pytest.mark.long, pytest.mark.timeout(7_200)])]
)
async def test_a_turn_ends_as_its_answer_is_judged(
    stub: RawStub,
    model: LitellmModel,
    stack: Stack,
    case_stub: CaseStub,
    held: Held,
    cases: int,
    turns: int,
    fuzz_report: Report,
) -> None:
    """One of each kind of outcome, and the first ones; calls go on to a second step, which is the last."""
    came: dict[int, tuple[str, str]] = {}
    kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
    with without_sockets(stub):
        async for number, prefix, outcome in judged(range(cases), stub, model, held):
            came[number] = prefix, outcome
            kinds[prefix, outcome].append(number)
    chosen = list(dict.fromkeys([*(numbers[0] for numbers in kinds.values()), *range(turns)]))
    tally = Tally()
    async with running_here(stack):
        tenant = new_tenant(stack)
        for prefix, name in MODELS.items():
            await tenant.profile(prefix, "x", llm={"model": name}, max_steps=2)
            for n in range(_AT_ONCE):
                await add_agent(tenant.pool, tenant.project, AgentId(f"{prefix}-{n}"), prefix)
        for first in range(0, len(chosen), _AT_ONCE):
            some = chosen[first : first + _AT_ONCE]
            await asyncio.gather(*(_turn(tenant, case_stub, n, number, *came[number]) for n, number in enumerate(some)))
    for number in chosen:
        tally.count(*came[number])
    for line in tally.lines():
        fuzz_report(f"whole turns of {line}")


async def _turn(tenant: Tenant, stub: CaseStub, place: int, number: int, prefix: str, outcome: str) -> None:
    """A turn with the case's answer ends as that was judged, and has asked twice for a step at most."""
    asked = await tenant.enqueue(AgentId(f"{prefix}-{place}"), f"case {number} .")
    ended = await tenant.ended(turn_of(asked), timeout=4 * CASE_SECONDS)
    found = ended.view.status, ended.view.error_code
    match outcome:
        case "answer" | "answer that is cut off":
            assert found == ("success", None), number
            said = ended.deliverable()
            assert isinstance(said, str)
            assert said.strip(), number
        case "call" | "refused call":
            assert found in (("partial", "max_steps"), ("success", None)), number
        case code:
            assert found == ("failed", code), number
    assert stub.asked[number] <= 2 * len(ended.steps), number
