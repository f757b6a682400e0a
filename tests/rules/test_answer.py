"""Folding a stream into an answer: whole, cut in any way, late, broken, canceled."""

import asyncio
import json
from collections.abc import AsyncGenerator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.activities.scripted_model import Stream
from turnstile.rules.answer import ANSWER_LIMIT_BYTES, TOO_LARGE, AnswerDraft, AnsweredCall, Delta, ModelAnswer, collect
from turnstile.runtime.ports import ContentDelta, ModelDone, ModelEvent, ReasoningDelta, ToolCallDelta
from turnstile.schema.errors import ModelError

DONE = ModelDone("stop", {"prompt_tokens": 3}, 0.5, "exact")


async def test_an_answer_is_folded_and_its_deltas_handed_on() -> None:
    deltas: list[Delta] = [
        ReasoningDelta("hm"),
        ContentDelta("Hel"),
        ContentDelta("lo\ud83d"),
        ContentDelta("\ude00\x00"),
        ToolCallDelta(1, "call_1", "b", "{}"),
        ToolCallDelta(0, "call_0", "a"),
        ToolCallDelta(0, None, None, '{"x"'),
        ToolCallDelta(0, None, None, ": 1}"),
        ToolCallDelta(2, "call_2", " ", "{}"),
    ]
    stream, seen = Stream([*deltas, DONE, ContentDelta("too late")]), list[Delta]()
    answer = await collect(stream(), AnswerDraft(), timeout_seconds=5, on_delta=seen.append)
    assert answer == ModelAnswer(
        text="Hello😀",
        reasoning="hm",
        calls=(AnsweredCall("call_0", "a", '{"x": 1}'), AnsweredCall("call_1", "b", "{}")),
        finish_reason="stop",
        usage={"prompt_tokens": 3},
        response_cost=0.5,
        usage_kind="exact",
        first_token_seconds=answer.first_token_seconds,
        lost_calls=1,
    )
    assert answer.first_token_seconds is not None
    assert answer.first_token_seconds < 5
    assert seen == deltas
    assert stream.closed


async def test_an_empty_answer() -> None:
    answer = await collect(Stream([DONE])(), AnswerDraft(), timeout_seconds=5)
    assert (answer.text, answer.calls, answer.first_token_seconds) == ("", (), None)


@pytest.mark.parametrize(
    ("timeout", "idle", "said"), [(0.02, None, "did not finish within 0.02"), (5, 0.02, "sent nothing within 0.02")]
)
async def test_a_late_answer(timeout: float, idle: float | None, said: str) -> None:
    stream, draft = Stream([ContentDelta("Hel")], hangs=True), AnswerDraft()
    with pytest.raises(ModelError, match=said) as raised:
        await collect(stream(), draft, timeout_seconds=timeout, idle_seconds=idle)
    assert (raised.value.code, raised.value.retryable) == ("model_timeout", True)
    assert draft.text == "Hel"
    assert stream.closed


async def test_silence_is_counted_from_event_to_event() -> None:
    async def drip() -> AsyncGenerator[ModelEvent, None]:
        for _ in range(30):
            await asyncio.sleep(0.02)
            yield ContentDelta("x")
        yield DONE

    answer = await collect(drip(), AnswerDraft(), timeout_seconds=25, idle_seconds=0.5)
    assert answer.text == "x" * 30


async def test_a_timeout_of_the_stream_itself_is_not_ours() -> None:
    async def fails() -> AsyncGenerator[ModelEvent, None]:
        yield ContentDelta("x")
        raise TimeoutError("socket")

    with pytest.raises(TimeoutError, match="socket"):
        await collect(fails(), AnswerDraft(), timeout_seconds=5)


@pytest.mark.parametrize("piece", ["x", "\n", "é", "😀", "\ud83d", '"\\'])
@pytest.mark.parametrize("pieces", [1, 7])
async def test_an_answer_takes_as_much_as_fits(piece: str, pieces: int) -> None:
    """Measured as it is stored; what is beyond is not read, and nobody hears of it."""
    whole = piece * (ANSWER_LIMIT_BYTES // pieces)
    stream, heard = Stream([ContentDelta(whole)] * (pieces + 1), hangs=True), list[Delta]()
    answer = await collect(stream(), AnswerDraft(), timeout_seconds=5, on_delta=heard.append)
    size = len(json.dumps("".join(each.text for each in heard if isinstance(each, ContentDelta)), ensure_ascii=False))
    assert len(json.dumps(answer.text, ensure_ascii=False).encode()) - 2 <= ANSWER_LIMIT_BYTES
    assert size > ANSWER_LIMIT_BYTES // 5
    assert (answer.finish_reason, answer.truncated, answer.usage_kind) == (TOO_LARGE, TOO_LARGE, "unknown")
    assert stream.closed


async def test_the_arguments_of_calls_count_too() -> None:
    half = "x" * (ANSWER_LIMIT_BYTES // 2)
    events = [ContentDelta(half), ToolCallDelta(0, "c", "search", half), ToolCallDelta(1, "d", "search", "{}")]
    answer = await collect(Stream([*events, DONE])(), AnswerDraft(), timeout_seconds=5)
    [call] = answer.calls
    assert len(half) + len("search") + len(call.arguments_text) == ANSWER_LIMIT_BYTES
    assert answer.truncated == TOO_LARGE


async def test_a_stream_that_breaks_off() -> None:
    with pytest.raises(ModelError) as raised:
        await collect(Stream([ContentDelta("Hel")])(), AnswerDraft(), timeout_seconds=5)
    assert (raised.value.code, raised.value.retryable) == ("model_stream_broken", True)


async def test_a_cancelled_answer_leaves_what_had_come() -> None:
    stream, draft = Stream([ContentDelta("Hel"), ToolCallDelta(0, "c", "a", "{")], hangs=True), AnswerDraft()
    task = asyncio.create_task(collect(stream(), draft, timeout_seconds=5))
    await stream.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (draft.text, draft.calls, draft.done) == ("Hel", (AnsweredCall("c", "a", "{"),), None)
    assert stream.closed


async def test_a_listener_that_fails_closes_the_stream() -> None:
    def fail(_: Delta) -> None:
        raise RuntimeError("listener")

    stream = Stream([ContentDelta("x"), DONE])
    with pytest.raises(RuntimeError, match="listener"):
        await collect(stream(), AnswerDraft(), timeout_seconds=5, on_delta=fail)
    assert stream.closed


_NAMES = st.sampled_from(["", "search", "submit_result"])
_PIECES = st.lists(st.text(max_size=3), min_size=1, max_size=4)


@given(_PIECES, _PIECES, st.lists(st.tuples(_NAMES, _PIECES), max_size=3), st.randoms(use_true_random=False))
def test_an_answer_does_not_depend_on_how_it_is_cut_and_mixed(
    text: list[str], reasoning: list[str], calls: list[tuple[str, list[str]]], order: Random
) -> None:
    """Each of the interleaved strands keeps its own order, whatever comes between."""
    strands: list[list[ModelEvent]] = [[ContentDelta(x) for x in text], [ReasoningDelta(x) for x in reasoning]]
    for index, (name, arguments) in enumerate(calls):
        strands.append(
            [ToolCallDelta(index, f"c{index}", name), *(ToolCallDelta(index, None, None, x) for x in arguments)]
        )
    draft = AnswerDraft()
    while strands := [strand for strand in strands if strand]:
        draft.add(order.choice(strands).pop(0))
    draft.add(DONE)
    answer = draft.answer()
    assert answer.text == "".join(text).replace("\x00", "")
    assert answer.reasoning == "".join(reasoning).replace("\x00", "")
    assert answer.calls == tuple(
        AnsweredCall(f"c{index}", name, "".join(arguments).replace("\x00", ""))
        for index, (name, arguments) in enumerate(calls)
        if name
    )
