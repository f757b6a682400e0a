"""Attempts at a model: what is recorded, what a heartbeat tells, and what the next worker takes over."""

import asyncio
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from turnstile.activities.budgets.gate import step_budget
from turnstile.activities.heartbeat import BEAT_SECONDS, beating
from turnstile.activities.prompt.model_attempts import LOST, Attempts
from turnstile.runtime.ports import ContentDelta, ModelDone
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.step_metadata import ATTEMPT_CANCELED
from turnstile.temporal.converters import DATA_CONVERTER

MODEL, LONGEST = LlmConfig(model="m"), LlmConfig(model="m" * 256)


def _done(attempts: Attempts, number: int, tokens: int) -> None:
    draft = attempts.begin(number, MODEL)
    draft.add(ContentDelta("secret text"))
    draft.add(ModelDone("stop", {"prompt_tokens": tokens}, 0.25, "exact"))
    attempts.end(None)


def test_sums_and_records() -> None:
    attempts = Attempts()
    _done(attempts, 1, 3)
    attempts.begin(2, MODEL)
    attempts.end("rate_limited")
    _done(attempts, 3, 4)
    assert attempts.spent() == ({"prompt_tokens": 7}, 0.5)
    assert [(record["attempt"], record.get("error_code"), record["usage_kind"]) for record in attempts.records] == [
        (1, None, "exact"),
        (2, "rate_limited", "unknown"),
        (3, None, "exact"),
    ]
    assert "secret" not in str(attempts.records)


def test_the_next_worker_takes_over_what_was_told() -> None:
    attempts = Attempts()
    _done(attempts, 1, 3)
    draft = attempts.begin(2, MODEL)
    draft.add(ContentDelta("secret text"))
    told = attempts.heartbeat_details()
    assert [each.get("error_code") for each in told] == [None, LOST]
    assert "secret" not in str(told)
    resumed = Attempts.resumed([told])
    _done(resumed, 3, 4)
    assert [record["attempt"] for record in resumed.records] == [1, 2, 3]
    assert resumed.spent() == ({"prompt_tokens": 7}, 0.5)
    attempts.end(ATTEMPT_CANCELED)
    attempts.end("again")
    assert [heartbeat_detail.get("error_code") for heartbeat_detail in attempts.heartbeat_details()] == [
        None,
        ATTEMPT_CANCELED,
    ]


def test_an_attempt_that_was_not_sent_used_nothing() -> None:
    """What was written before stays in hand: a stop keeps it."""
    attempts = Attempts()
    attempts.begin(1, MODEL).add(ContentDelta("half of it"))
    attempts.end("model_stream_broken")
    attempts.give_up(2, MODEL)
    attempts.give_up(2, MODEL, heard=False)
    assert attempts.draft is not None
    assert attempts.draft.text == "half of it"
    uses = step_budget(Attempts.resumed([attempts.heartbeat_details()]).records, {}).uses
    assert [(use.attempt, use.tokens) for use in uses] == [(1, None), (2, 0), (-2, 0)]


@pytest.mark.parametrize("details", [[], ["text"], [{"a": 1}], [[1, 2]], [None]])
def test_details_of_another_version_are_left_out(details: list[object]) -> None:
    assert Attempts.resumed(details).records == []


def test_what_is_told_fits_a_payload() -> None:
    attempts = Attempts()
    for number in range(100):
        attempts.begin(number, LONGEST)
        attempts.end("model_stream_broken")
    told = attempts.heartbeat_details()
    assert told[-1]["attempt"] == 99
    DATA_CONVERTER.payload_converter.to_payloads([told])
    assert len(attempts.records) == 100


async def test_a_heartbeat_tells_the_attempts_and_once_more_at_a_failure() -> None:
    environment, beats = ActivityEnvironment(), list[Any]()
    environment.on_heartbeat = lambda *details: beats.append(details)

    async def fails() -> None:
        attempts = Attempts()
        async with beating(attempts.heartbeat_details):
            while not beats:  # noqa: ASYNC110 -- the environment sets no event
                await asyncio.sleep(BEAT_SECONDS / 10)
            attempts.begin(1, MODEL)
            attempts.end("rate_limited")
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        await environment.run(fails)
    *before, [[last]] = beats
    assert before[0] == ([],)
    assert last["error_code"] == "rate_limited"
