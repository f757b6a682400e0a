"""Long turns live: results are shown shorter, then steps are summed up, before a request no longer fits (§7.3)."""

from dataclasses import dataclass

import pytest
from pydantic import JsonValue

from tests.support.ledger.agents import PROJECT, rows
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.talks import Cast, CountedCache, Said, Talk, told
from turnstile.activities.models import ScriptLine
from turnstile.activities.models.script import ScriptCall
from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.activities.turn.compaction import Windows
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_tool
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import InboxId, ToolCallId
from turnstile.schema.profiles import Memory
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.turns import StepResult, TurnRef

LOOK = ToolDefinition(
    tool_name="look",
    description="Look.",
    target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.look.run",
)
RESULT = "finding " * 2_560
"""20 kB, 2,560 words."""


@dataclass
class Worker(Cast):
    """Calls `look` so many times, then says so; refuses what is over its window, which it may say."""

    calls: int = 40
    says_window: bool = False
    refused: int = 0
    long_result: JsonValue = RESULT

    def talker(self, request: ModelRequest) -> ScriptLine:
        words = sum(len(message.content.split()) for message in request.messages)
        if self.window is not None and words > self.window:
            self.refused += 1
            window = self.window if self.says_window else None
            raise ModelError("context_window_exceeded", "too long", retryable=False, window=window)
        if not request.tools:
            self.summaries.append(request)
            return ScriptLine(text="So far all went well.", usage={"prompt_tokens": 7, "completion_tokens": 5})
        self.asked.append(request)
        if request.step > self.calls:
            return ScriptLine(text=f"looked {self.calls} times")
        return ScriptLine(tool_calls=(ScriptCall(name="look"),))

    def result_of(self, call: ToolCallId) -> JsonValue:
        return self.long_result


@dataclass
class Forgetful(Talk):
    """Each step is of another process, which has seen no refusal."""

    async def step(self, turn: TurnRef, number: int = 0, reports: tuple[InboxId, ...] = ()) -> StepResult:
        self.windows = Windows()
        return await super().step(turn, number, reports)


async def worked(pool: Pool, cast: Worker, memory: Memory | None = None, talks: type[Talk] = Talk) -> Said:
    """A turn of this worker, and what must hold of any."""
    await put_tool(pool, PROJECT, LOOK)
    talk = talks(pool, cast, CountedCache(64_000_000), limits=StepLimits(max_steps=1000))
    await talk.begun(memory, allowed_tools=["look"], max_steps=cast.calls + 1)
    said = await talk.say(1)
    assert (said.status, said.error_code, said.text) == ("success", None, f"looked {cast.calls} times")
    assert [request.step for request in cast.asked] == list(range(1, cast.calls + 2))
    for request in cast.asked:
        calls = [call.id for message in request.messages for call in message.tool_calls]
        assert calls == [message.tool_call_id for message in request.messages if message.role == "tool"]
        assert "m-1" in next(message.content for message in request.messages if message.role == "user")
        offered = {str(tool["function"]) for tool in request.tools}
        assert any("read_result" in each for each in offered) == (
            request.step <= cast.calls and any(message.shortened for message in request.messages)
        )
    async with pool.connection() as conn:
        await assert_invariants(conn)
    return said


def newest(request: ModelRequest) -> str:
    """The result that the request ends with, before what it says of the limit of steps."""
    *_, result, last = request.messages
    if last.role == "tool":
        return last.content
    assert (result.role, "of " in last.content) == ("tool", True)
    return result.content


def check_summed_up(cast: Worker, said: Said) -> None:
    """Steps were summed up, each time by a step of its own whose usage is committed, and the newest were kept."""
    cuts = [step for step in said.steps if "compaction" in step]
    assert len(cuts) == len(cast.summaries) >= 1
    assert {(cut["compaction"]["when_full"], cut["compaction"]["turns_cut"]) for cut in cuts} == {("summarize", 0)}
    assert all(cut["llm_usage"]["completion_tokens"] == 5 for cut in cuts)
    assert cast.window is not None
    assert all(cut["compaction"]["tokens_after"] <= cast.window for cut in cuts)
    assert sum(cut["compaction"]["steps_cut"] for cut in cuts) > cast.calls // 3
    assert "summed up here" in " ".join(message.content for message in cast.asked[-1].messages)
    assert all(newest(request).count("finding") > 100 for request in cast.asked[1:])


@pytest.mark.parametrize(
    ("says_window", "talks"), [(False, Talk), (True, Talk), (False, Forgetful)], ids=["unsaid", "said", "forgotten"]
)
async def test_a_turn_longer_than_its_models_window_ends_well(
    pool: Pool, *, says_window: bool, talks: type[Talk]
) -> None:
    cast = Worker(window=1_500, says_window=says_window)
    said = await worked(pool, cast, talks=talks)
    check_summed_up(cast, said)
    types = await rows(
        pool,
        "SELECT metadata ->> 'type' AS type FROM box_cards JOIN cards USING (card_id)"
        " WHERE box_id = $1::text::uuid ORDER BY position LIMIT 20",
        said.compactions[-1]["output_box_id"],
    )
    cuts = ["memory.cut"] * len(said.compactions)
    assert [row["type"] for row in types][: len(cuts) + 5] == [
        *cuts,
        *("task.instruction", "sys.rendered_prompt", "sys.tools", "memory.turn_summary", "agent.thought"),
    ]
    assert cast.refused <= (3 if talks is Talk else 2 * cast.calls)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_three_hundred_steps_with_results_of_20_kb(pool: Pool) -> None:
    cast = Worker(window=32_000, calls=300)
    await worked(pool, cast)
    assert 0 < cast.refused <= 3


async def test_the_oldest_results_are_shown_shorter_before_anything_is_left_out(pool: Pool) -> None:
    cast = Worker(window=2_400, calls=14)
    said = await worked(pool, cast)
    assert said.compactions == []
    last = [message.content for message in cast.asked[-1].messages if message.role == "tool"]
    assert len(last) == 14
    assert len(last[0]) < 700 < 4_000 < len(last[-1])
    refused = [step["attempts"] for step in said.steps if len(step["attempts"]) > 1]
    assert [[(each["attempt"], each.get("error_code")) for each in attempts] for attempts in refused] == [
        [(1, "context_window_exceeded"), (2, None)]
    ]


async def test_a_result_that_alone_is_over_the_window_is_shown_short(pool: Pool) -> None:
    cast = Worker(window=300, calls=3)
    said = await worked(pool, cast)
    assert said.compactions == []
    assert all(0 < newest(request).count("finding") < 60 for request in cast.asked[1:])


@pytest.mark.parametrize(("summary_model", "code"), [(None, None), ("scripted/broken", "auth_failed")])
async def test_a_policy_is_kept_within_a_turn(pool: Pool, summary_model: str | None, code: str | None) -> None:
    when_full = "drop" if summary_model is None else "summarize"
    memory = Memory(max_context_tokens=1_500, when_full=when_full, summary_model=summary_model)
    cast = Worker(window=1_500)
    said = await worked(pool, cast, memory)
    assert cast.refused == 0
    assert {(cut["reason"], cut["when_full"], cut.get("error_code")) for cut in said.compactions} == {
        ("full", "drop", code)
    }
    assert "steps were left out here. They called look" in " ".join(each.content for each in cast.asked[-1].messages)


@pytest.mark.parametrize(
    ("memory", "says_window"),
    [
        (Memory(keep="conversation", when_full="summarize"), False),
        (Memory(keep="conversation"), True),
        (Memory(keep="conversation", max_context_tokens=3_000), False),
    ],
    ids=["unsaid", "said", "limited"],
)
async def test_an_oversized_message_costs_nobodys_memory(pool: Pool, memory: Memory, *, says_window: bool) -> None:
    cast = Worker(window=3_000, calls=0, says_window=says_window)
    talk = await Talk(pool, cast).begun(memory)
    for number in range(1, 5):
        await talk.say(number)
    pasted = await talk.say(5, words=10_000)
    assert pasted.status == "failed"
    assert pasted.error_code == ("context_window_exceeded" if memory.max_context_tokens is None else "memory_too_small")
    after = await talk.say(6)
    assert (after.status, pasted.compactions, after.compactions) == ("success", [], [])
    assert told(cast.asked[-1]) == [1, 2, 3, 4, 6]
    assert "terminal_status" not in str(cast.asked[-1].messages)
