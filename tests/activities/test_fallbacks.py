"""Another model is asked where one fails, and the turn stays with it (protocol §7.9)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.activities.models.asking import LIMITS, question
from tests.support.ledger.agents import ALICE, PROJECT, ask, rows
from tests.support.ledger.talks import Cast, Talk
from turnstile.activities.models import ScriptedModel, ScriptLine
from turnstile.activities.models.script import Script, ScriptCall
from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import LlmConfig, Profile

PATIENT = replace(LIMITS, fallback_patience_seconds=10)


def failing(code: str, *, retryable: bool = True, after: float | None = None) -> Script:
    """A model that always fails so."""

    def script(_: ModelRequest) -> ScriptLine:
        raise ModelError(code, code, retryable=retryable, retry_after=after)

    return script


def answering(_: ModelRequest) -> ScriptLine:
    """A model that answers."""
    return ScriptLine(text="here", response_cost=0.5)


async def asked(limits: StepLimits = PATIENT, **scripts: Script) -> tuple[str, list[tuple[object, object]]]:
    """What comes of asking these models in this order: the answer or the code, and each attempt's model and code."""
    model = ScriptedModel(scripts)
    first, *others = (f"scripted/{name}" for name in scripts)
    found = await question(model, first, limits=limits, config={"fallbacks": [*others]})
    records = found.attempts.records
    assert [record["attempt"] for record in records] == list(range(1, len(records) + 1))
    said = found.failed().code if found.answer is None else f"{found.answer.model} says {found.answer.text}"
    return said, [(str(record["model"]).removeprefix("scripted/"), record.get("error_code")) for record in records]


@pytest.mark.parametrize(
    "code",
    ["model_overloaded", "rate_limited", "model_server_error", "model_connection", "model_timeout"],
)
async def test_a_model_is_given_up_once_its_attempts_are_used_up(code: str) -> None:
    said, attempts = await asked(a=failing(code), b=answering)
    assert said == "scripted/b says here"
    assert attempts == [*[("a", code)] * 3, ("b", None)]


@pytest.mark.parametrize(
    ("script", "limits"),
    [
        (failing("rate_limited", after=60), PATIENT),
        (failing("model_overloaded"), replace(PATIENT, fallback_patience_seconds=0)),
        (failing("context_window_exceeded", retryable=False), PATIENT),
    ],
    ids=["longer than the patience", "no patience", "too long"],
)
async def test_a_model_that_cannot_help_in_time_is_given_up_at_once(script: Script, limits: StepLimits) -> None:
    said, attempts = await asked(limits, a=script, b=answering)
    assert said == "scripted/b says here"
    assert [model for model, _ in attempts] == ["a", "b"]


async def test_the_error_of_the_first_model_stands_where_all_fail() -> None:
    keyless = failing("auth_failed", retryable=False)
    said, attempts = await asked(a=failing("model_overloaded"), b=keyless, c=failing("rate_limited"))
    assert said == "model_overloaded"
    assert [model for model, _ in attempts] == ["a", "a", "a", "b", "c", "c", "c"]


async def test_what_no_other_model_mends_ends_the_question() -> None:
    for code in ("auth_failed", "content_filtered", "model_bad_request", "quota_exhausted"):
        said, attempts = await asked(a=failing(code, retryable=False), b=answering)
        assert (said, attempts) == (code, [("a", code)])


@dataclass
class Two(Cast):
    """`talker` is overloaded from its second request on; `spare` is, while it is `down`."""

    down: bool = False
    log: list[str] = field(default_factory=list[str])

    def talker(self, request: ModelRequest) -> ScriptLine:
        self.log.append("talker")
        if self.log.count("talker") > 1:
            raise ModelError("model_overloaded", "busy", retryable=True, retry_after=60)
        return ScriptLine(tool_calls=(ScriptCall(name="nosuch"),))

    def spare(self, request: ModelRequest) -> ScriptLine:
        """Calls twice, then answers."""
        self.log.append("spare")
        if request.step < 4:
            return ScriptLine(tool_calls=(ScriptCall(name="nosuch"),), usage={"prompt_tokens": 3, "total_tokens": 3})
        return ScriptLine(text="done", usage={"prompt_tokens": 3, "total_tokens": 3})

    def scripts(self) -> dict[str, Callable[[ModelRequest], ScriptLine]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"talker": self.talker, "spare": self.spare}


async def test_the_next_steps_stay_with_the_model_that_answered(pool: Pool) -> None:
    cast = Two()
    talk = await Talk(pool, cast).begun(None)
    config = LlmConfig(model="scripted/talker", fallbacks=["scripted/spare"])
    await put_profile(pool, PROJECT, Profile(name="talker", llm_config=config))
    await ask(pool, ALICE, "m-1", budget={"max_tokens": 100_000})
    said = await talk.play()
    assert (said.status, said.text) == ("success", "done")
    assert cast.log == ["talker", "talker", "spare", "spare", "spare"]
    attempts = [[(each["attempt"], each["model"]) for each in step["attempts"]] for step in said.steps]
    talker, spare = "scripted/talker", "scripted/spare"
    assert attempts == [[(1, talker)], [(1, talker), (2, spare)], [(1, spare)], [(1, spare)]]
    assert said.steps[1]["llm_usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    booked = [(use["attempt"], use["tokens"]) for use in said.steps[1]["budget"]["uses"]]
    assert booked == [(1, 0), (2, 3)]  # each its own, and what was refused used nothing
    thoughts = await rows(
        pool,
        "SELECT metadata ->> 'model' AS model FROM cards WHERE metadata ->> 'type' = 'agent.thought'"
        " AND metadata ->> 'agent_turn_id' = $1 ORDER BY metadata ->> 'step_id'",
        said.turn,
    )
    assert [row["model"] for row in thoughts] == [None, spare, spare, spare]
    cast.log.clear()
    await talk.say(2)
    assert cast.log[0] == "talker"  # a new turn begins with the profile's own
