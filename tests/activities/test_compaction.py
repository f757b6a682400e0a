"""Memory policies: requests stay within their limit, and cuts are between turns (protocol §7.3)."""

import pytest

from tests.support.ledger.agents import PROJECT, rows, value
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.talks import Cast, CountedCache, Said, Talk, is_summed_up, told
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.runtime.faults import Fault, FaultStruckError
from turnstile.schema.profiles import Memory
from turnstile.schema.turns import StepContinues, TurnRef

LIMIT = 160
DROPS = Memory(max_context_tokens=LIMIT, keep_last_turns=3)
SUMS_UP = Memory(max_context_tokens=LIMIT, keep_last_turns=3, when_full="summarize", summary_model="scripted/summary")
POLICIES = [pytest.param(DROPS, id="drop"), pytest.param(SUMS_UP, id="summarize")]


async def many(pool: Pool, memory: Memory, turns: int) -> list[Said]:
    """So many turns of a conversation; what must hold of each is checked."""
    talk = await Talk(pool).begun(memory)
    said = [await talk.say(number) for number in range(1, turns + 1)]
    for number, each in enumerate(said, 1):
        assert (each.status, each.error_code) == ("success", None)
        assert max(each.prompts) <= LIMIT
        assert each.text is not None
        assert f" to {number} " in each.text
    cuts = [compaction for turn in said for compaction in turn.compactions]
    assert len(cuts) >= turns // 8
    assert {(cut["reason"], cut["when_full"], cut["counted"]) for cut in cuts} == {("full", memory.when_full, "exact")}
    assert all(cut["tokens_after"] <= LIMIT < cut["tokens_before"] for cut in cuts)
    for request in talk.cast.asked:
        calls = [call.id for message in request.messages for call in message.tool_calls]
        results = [message.tool_call_id for message in request.messages if message.role == "tool"]
        assert calls == results
        numbers = told(request)
        assert is_summed_up(request) == (numbers[0] > 1 and memory is SUMS_UP)
        if is_summed_up(request):
            assert "summed up here" in request.messages[0].content
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
    async with pool.connection() as conn:
        await assert_invariants(conn)
    return said


@pytest.mark.parametrize("memory", POLICIES)
async def test_a_long_conversation_keeps_its_requests_small(pool: Pool, memory: Memory) -> None:
    said = await many(pool, memory, 24)
    assert max(each.rows for each in said[16:]) <= max(each.rows for each in said[8:16])
    assert (said[-1].text or "").endswith("from the start" if memory is DROPS else "after a summary")


@pytest.mark.long
@pytest.mark.parametrize("memory", POLICIES)
async def test_rows_read_do_not_grow_with_the_conversation(pool: Pool, memory: Memory) -> None:
    said = await many(pool, memory, 300)
    early, late = [max(each.rows for each in part) for part in (said[9:20], said[280:])]
    assert late <= early


async def test_a_cut_is_a_step_whose_usage_is_committed(pool: Pool) -> None:
    talk = await Talk(pool).begun(SUMS_UP, max_steps=2)
    said = [await talk.say(number) for number in range(1, 16)]
    [cut, *_] = [each for each in said if each.compactions]
    assert len(cut.steps) == 3  # the cut counts for no limit of steps
    [(number, first)] = [(n, each) for n, each in enumerate(cut.steps, 1) if "compaction" in each]
    assert first["next"] == "continue"
    assert first["llm_usage"] == {"prompt_tokens": 7, "completion_tokens": 5}
    assert [each["model"] for each in first["attempts"]] == ["scripted/summary"]
    assert first["compaction"]["turns_kept"] <= 3
    types = await rows(
        pool,
        "SELECT metadata ->> 'type' AS type, metadata ->> 'step_id' AS step FROM box_cards JOIN cards USING (card_id)"
        " WHERE box_id = $1::text::uuid AND metadata ->> 'type' LIKE 'memory.%' ORDER BY position LIMIT 2",
        first["compaction"]["output_box_id"],
    )
    step = f"{cut.turn}-s{number}"
    assert types == [{"type": "memory.summary", "step": step}, {"type": "memory.cut", "step": step}]
    assert not [message for message in talk.events.sent if b"talk went" in message.payload]
    assert max(each.step for each in talk.cast.asked) == 2


async def test_a_summary_has_what_was_summed_up_before(pool: Pool) -> None:
    talk = await Talk(pool).begun(SUMS_UP)
    number = 0
    while len(talk.cast.summaries) < 2:
        number += 1
        await talk.say(number)
    first, second = talk.cast.summaries[:2]
    assert told(first)[0] == 1
    assert "talk went from 1 on" in second.messages[-1].content
    assert [message.role for message in second.messages] == ["system", "user"]
    assert second.config.max_tokens == 256
    assert told(second)[0] == told(first)[-1] + 1


@pytest.mark.parametrize(
    ("model", "code"), [("broken", "auth_failed"), ("silent", "empty_answer"), ("nobody", "model_unknown")]
)
async def test_without_a_summary_turns_are_left_out_and_it_is_told(pool: Pool, model: str, code: str) -> None:
    memory = SUMS_UP.model_copy(update={"summary_model": f"scripted/{model}"})
    talk = await Talk(pool).begun(memory)
    said = [await talk.say(number) for number in range(1, 16)]
    cuts = [compaction for turn in said for compaction in turn.compactions]
    assert {(cut["when_full"], cut["error_code"]) for cut in cuts} == {("drop", code)}
    assert {each.status for each in said} == {"success"}
    assert max(tokens for each in said for tokens in each.prompts) <= LIMIT
    assert not any(map(is_summed_up, talk.cast.asked))


async def test_an_earlier_summary_stays_where_a_later_one_fails(pool: Pool) -> None:
    talk = await Talk(pool).begun(SUMS_UP)
    number = 0
    while not talk.cast.summaries:
        number += 1
        await talk.say(number)
    await put_profile(pool, PROJECT, talk.profile(SUMS_UP.model_copy(update={"summary_model": "scripted/broken"})))
    said = await talk.say(number + 1)
    while len(talk.cast.summaries) == 1:
        number += 1
        said = await talk.say(number + 1)
    assert [compaction["error_code"] for compaction in said.compactions] == ["auth_failed"]
    assert "talk went from 1 on" in talk.cast.asked[-1].messages[0].content


async def test_a_summary_that_is_too_long_is_shortened(pool: Pool) -> None:
    talk = await Talk(pool).begun(SUMS_UP.model_copy(update={"summary_model": "scripted/lengthy"}))
    said = [await talk.say(number) for number in range(1, 16)]
    assert max(tokens for each in said for tokens in each.prompts) <= LIMIT
    assert any(map(is_summed_up, talk.cast.asked))


async def test_a_policy_that_cannot_hold_one_turn_ends_it_and_cuts_nothing(pool: Pool) -> None:
    talk = await Talk(pool).begun(DROPS)
    first = await talk.say(1)
    said = await talk.say(2, words=LIMIT + 1)
    assert (said.status, said.error_code, said.compactions) == ("failed", "memory_too_small", [])
    assert await count_cuts(pool) == 0
    after = await talk.say(3)
    assert after.status == "success"
    assert first.output_box_id == after.output_box_id


async def test_a_turn_that_grows_over_the_limit_ends_with_what_there_is(pool: Pool) -> None:
    talk = await Talk(pool).begun(Memory(max_context_tokens=6))
    said = await talk.say(1, words=5)
    assert (said.status, said.error_code, len(said.steps)) == ("failed", "memory_too_small", 2)


async def test_a_model_that_says_too_long_gets_less(pool: Pool) -> None:
    talk = await Talk(pool, Cast(window=40)).begun(Memory(keep="conversation"))
    said = [await talk.say(number) for number in range(1, 12)]
    assert {each.status for each in said} == {"success"}
    cuts = [compaction for turn in said for compaction in turn.compactions]
    assert [cuts[0]["reason"], *{c["reason"] for c in cuts[1:]}] == ["refused", "full"]
    [cut, *_] = [step for turn in said for step in turn.steps if "compaction" in step]
    assert [each["error_code"] for each in cut["attempts"]] == ["context_window_exceeded"]
    talk.cast.window = 5
    last = await talk.say(12, words=10)
    assert (last.status, last.error_code) == ("failed", "context_window_exceeded")
    assert [compaction["reason"] for compaction in last.compactions] == ["full", "refused"]


@pytest.mark.parametrize("memory", [None, Memory(keep="conversation")])
async def test_without_a_policy_or_a_memory_too_long_is_an_error(pool: Pool, memory: Memory | None) -> None:
    talk = await Talk(pool, Cast(window=8)).begun(memory)
    if memory is None:
        await talk.say(1)
    said = await talk.say(2, words=9)
    assert (said.status, said.error_code, said.compactions) == ("failed", "context_window_exceeded", [])


async def test_a_turn_queued_before_a_cut_reads_what_one_after_it_reads(pool: Pool) -> None:
    talk = await Talk(pool).begun(SUMS_UP)
    full = 1
    while not (await talk.say(full, "probe")).compactions:
        full += 1
    asked: list[object] = []
    for conversation in ("queued", "later"):
        for number in range(1, full):
            await talk.say(number, conversation)
        await talk.enqueue(full, conversation)
        if conversation == "queued":
            await talk.enqueue(full + 1, conversation)
        assert (await talk.play()).compactions
        if conversation == "later":
            await talk.enqueue(full + 1, conversation)
        seen = len(talk.cast.asked)
        await talk.play()
        asked.append(
            [[(message.role, message.content) for message in request.messages] for request in talk.cast.asked[seen:]]
        )
    assert asked[0] == asked[1]


async def test_a_cache_that_knows_more_reads_the_same(pool: Pool) -> None:
    cold, warm = Talk(pool), Talk(pool, cache=CountedCache(1_000_000))
    await cold.begun(SUMS_UP)
    number = 1
    said = await warm.say(number)
    while await count_cuts(pool) < 2:
        number += 1
        said = await warm.say(number)
    again = await cold.say(number + 1)
    assert said.rows < again.rows
    await warm.say(number + 2)
    assert told(warm.cast.asked[-1])[:-1] == told(cold.cast.asked[-1])


async def test_a_cut_that_is_repeated_is_made_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = await Talk(pool).begun(SUMS_UP)
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{Fault.MEMORY_CUT}=throw")
    begun: list[TurnRef] = []

    async def talks_on() -> None:
        while True:
            begun.append(turn := await talk.begin(len(begun) + 1))
            result = await talk.step(turn)
            while isinstance(result, StepContinues):
                result = await talk.step(turn, result.step + 1)

    with pytest.raises(FaultStruckError):
        await talks_on()
    monkeypatch.undo()
    assert await count_cuts(pool) == 1
    done = await value(pool, "SELECT step_count FROM state.agent_state_head")
    again = await talk.step(begun[-1], done)
    assert (again.next, again.step) == ("continue", done)
    assert await count_cuts(pool) == 1
    assert len(talk.cast.summaries) == 1


async def count_cuts(pool: Pool) -> int:
    """The cuts in all boxes."""
    return await value(pool, "SELECT count(*) FROM cards WHERE metadata ->> 'type' = 'memory.cut'")
