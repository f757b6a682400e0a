"""Tools that answer late or never: deadlines, timeouts, commands sent again (protocol §7.6, §8)."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.ledger.calls import TOOL, result_card, write_card, written_report
from tests.support.processes.stack import QUICK
from tests.support.tenants import Ended, Tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of, heard_by_model
from tests.turnstile.support import Ran, turnstile
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import ToolCallId
from turnstile.schema.wire import headers

log = logging.getLogger(__name__)
PATIENCE, REPEAT = 0.6, 0.35
SHORT = {
    **QUICK,
    "tools": {"suspend_timeout_seconds": PATIENCE},
    "bridge": {**QUICK["bridge"], "command_retry_seconds": REPEAT, "poll_interval_seconds": 0.1},
}
# A stack whose turns wait for tools for less than a second.
pytestmark = pytest.mark.stack(SHORT)
PATIENT = definition("patient", options={"suspend_timeout_seconds": 60})
TIMEOUT = ("timeout", "tool_timeout", "the tool did not answer in time")


async def test_a_tool_that_never_answers_times_out_and_the_model_hears_it(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        head = await hand.head()
        assert head["resume_deadline"] - head["updated_at"] == pytest.approx(
            timedelta(seconds=PATIENCE), abs=timedelta(seconds=0.1)
        )
        ended = await hand.ended(turn)
    assert ended.results() == [TIMEOUT] * 2
    heard = {"status": "timeout", "error": {"code": TIMEOUT[1], "message": TIMEOUT[2]}}
    assert heard_by_model(ended) == [heard] * 2
    calls = [call_of(turn), call_of(turn, 1)]
    assert await hand.waits(turn) == dict.fromkeys(calls, "expired")
    for call in calls:
        assert await hand.settled(call, "timeout") == ("consumed", None)
        assert await hand.inbox(call, "tool_result") == []
    assert await tenant.count("state.execution_edges", "primitive = 'report' AND edge_phase = 'response'") == 2
    assert (ended.view.status, len(ended.steps)) == ("success", 2)
    cards = {card.card_id for card in ended.cards if card.type == "tool.result"}
    assert cards == {f"{call}-timeout" for call in calls}


async def test_what_was_answered_before_the_deadline_is_kept_and_the_rest_times_out(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        await hand.report(call_of(turn, 1), "in time")
        ended = await hand.ended(turn)
    assert [result[:2] for result in ended.results()] == [("success", None), TIMEOUT[:2]]
    late, in_time = heard_by_model(ended)
    assert (late["status"], in_time["result"]) == ("timeout", "in time")


async def test_a_result_after_the_deadline_changes_nothing_and_its_row_says_so(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(), PATIENT) as hand:
        turn = await hand.suspended(calling("search"), calling("patient"))
        await until(lambda: expired(hand, call_of(turn)), 25, "the call is expired")
        assert not (await hand.report(call_of(turn), "too late")).duplicate
        assert await hand.settled(call_of(turn)) == ("consumed", "already_settled")
        await hand.called(call_of(turn, step=2))
        await hand.report(call_of(turn, step=2), "good")
        ended = await hand.ended(turn)
    assert [result[:2] for result in ended.results()] == [TIMEOUT[:2], ("success", None)]
    assert "too late" not in str(ended.deliverable())


async def expired(hand: Hand, call: ToolCallId) -> bool:
    """Whether the call's timeout was applied."""
    return (
        await hand.tenant.count("state.turn_waiting_tools", f"tool_call_id = '{call}' AND wait_status = 'expired'") == 1
    )


@pytest.mark.parametrize("racers", [12, pytest.param(48, marks=pytest.mark.long)])
async def test_a_result_that_races_its_timeout_exactly_one_is_applied(tenant: Tenant, racers: int) -> None:
    """Reports from shortly before to shortly after the deadline, each of a turn of its own."""
    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", racers, allowed_tools=["search"])

        async def race(number: int) -> Ended:
            own = Hand(tenant, agents[number])
            turn = await own.start(calling("search"))
            head = await own.until_head(status="suspended")
            left = (head["resume_deadline"] - datetime.now(UTC)) / timedelta(seconds=1)
            await asyncio.sleep(max(0.0, left + (number / racers - 0.5) * 0.1))  # the moment is the subject
            await hand.report(call_of(turn), "raced")
            ended = await own.ended(turn)
            await own.settled(call_of(turn))
            return ended

        raced = await asyncio.gather(*(race(number) for number in range(len(agents))))
    statuses = [ended.results()[0][0] for ended in raced]
    assert all(len(ended.results()) == 1 and ended.view.status == "success" for ended in raced)
    assert set(statuses) <= {"success", "timeout"}
    log.info("%d of %d reports won their race", statuses.count("success"), len(statuses))
    waits = await tenant.rows(
        "SELECT w.agent_turn_id, w.wait_status FROM state.turn_waiting_tools w WHERE project_id = $1", tenant.project
    )
    by_turn = {row["agent_turn_id"]: row["wait_status"] for row in waits}
    for ended, status in zip(raced, statuses, strict=True):
        assert by_turn[ended.view.agent_turn_id] == {"success": "applied", "timeout": "expired"}[status]


@pytest.mark.parametrize("option", ["suspend_timeout_seconds", "timeout_seconds"])
async def test_each_call_has_the_patience_of_its_tool_and_the_turn_the_earliest_deadline(
    tenant: Tenant, option: str
) -> None:
    tools = [definition(), definition("slow", options={option: 60}), definition("slower", options={option: 90})]
    async with hand_of(tenant, *tools) as hand:
        turn = await hand.suspended(calling("slower", "search", "slow"))
        found = await tenant.rows(
            "SELECT w.tool_name, w.deadline - h.updated_at AS wait, h.resume_deadline - w.deadline AS earlier"
            " FROM state.turn_waiting_tools w JOIN state.agent_state_head h ON h.active_agent_turn_id = w.agent_turn_id"
            " WHERE w.agent_turn_id = $1",
            turn,
        )
        for index in range(3):
            await hand.report(call_of(turn, index))
        await hand.ended(turn)
    waits = {row["tool_name"]: row["wait"] / timedelta(seconds=1) for row in found}
    assert waits == pytest.approx({"slower": 90, TOOL: PATIENCE, "slow": 60}, abs=0.1)
    assert max(row["earlier"] for row in found) == timedelta()


async def test_of_two_calls_the_one_with_less_patience_times_out_alone(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(), PATIENT) as hand:
        turn = await hand.suspended(calling("search", "patient"))
        await until(lambda: expired(hand, call_of(turn)), 25, "the call is expired")
        head = await hand.head()
        assert (head["status"], head["waiting_tool_count"]) == ("suspended", 1)
        assert head["resume_deadline"] - datetime.now(UTC) > timedelta(seconds=30)
        await hand.report(call_of(turn, 1), "in its own time")
        ended = await hand.ended(turn)
    assert [result[:2] for result in ended.results()] == [TIMEOUT[:2], ("success", None)]
    assert [told["status"] for told in heard_by_model(ended)] == ["timeout", "success"]


async def test_a_terminating_tool_that_never_answers_ends_the_turn_as_timeout(tenant: Tenant) -> None:
    async with hand_of(tenant, definition("close", after_execution="terminate")) as hand:
        ended = await hand.ended(await hand.suspended(calling("close")))
    assert (ended.view.status, ended.view.error_code) == ("timeout", "tool_timeout")
    assert ended.deliverable() == {"error": {"code": TIMEOUT[1], "message": TIMEOUT[2]}}


async def test_a_call_without_a_card_is_dropped_at_the_deadline_and_the_turn_goes_on(tenant: Tenant) -> None:
    """Such a row is a stranger's: ours come with their cards. Nobody could answer it."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        async with tenant.pool.connection() as conn, conn.transaction():
            await conn.fetch(
                "INSERT INTO state.turn_waiting_tools (project_id, agent_id, agent_turn_id, turn_epoch, step_id,"
                " tool_call_id, tool_name) VALUES ($1, $2, $3, 1, $3::text || '-s1', $4, 'ghost')",
                *(tenant.project, hand.agent, turn, f"ghost-{turn}"),
            )
            await conn.fetch(
                "INSERT INTO state.execution_edges (edge_id, project_id, primitive, edge_phase, source_agent_id,"
                " source_agent_turn_id, source_step_id, target_agent_id, target_agent_turn_id, correlation_id,"
                " channel_id, recursion_depth, trace_id)"
                " SELECT 'ghost-' || $3::text, $1, 'tool_call', 'request', $2, $3,"
                " $3::text || '-s1', $2, $3, $4, 'public', 0, trace_id"
                " FROM state.agent_state_head WHERE project_id = $1",
                *(tenant.project, hand.agent, turn, f"ghost-{turn}"),
            )
            await conn.fetch(
                "UPDATE state.agent_state_head SET waiting_tool_count = 2 WHERE project_id = $1", tenant.project
            )
        await hand.report(call_of(turn), "the real one")
        ended = await hand.ended(turn)
    assert await hand.waits(turn) == {call_of(turn): "applied", f"ghost-{turn}": "dropped"}
    assert heard_by_model(ended) == [{"status": "success", "result": "the real one"}]


async def test_a_silent_tool_hears_its_command_again_under_a_message_id_of_its_own(tenant: Tenant) -> None:
    async with hand_of(tenant, PATIENT) as hand:
        turn = await hand.suspended(calling("patient", "patient"))
        silent, answered = call_of(turn), call_of(turn, 1)
        await hand.report(answered)
        commands = await hand.called(silent, 3)
        await hand.report(silent, "at last")
        await hand.ended(turn)
    ids = [command.headers[headers.MSG_ID] for command in commands]
    numbers = [int(message.removeprefix(f"tool-{silent}-")) for message in ids[1:]]
    assert ids[0] == f"tool-{silent}"
    assert numbers == sorted(set(numbers))  # each repeat is stored: none has the id of another
    assert min(numbers) >= 1
    assert len({command.data for command in commands}) == 1
    same = {headers.TOOL_CALL_ID, headers.TURN_ID, headers.TURN_EPOCH, headers.STEP_ID, headers.DEPTH}
    assert all(
        {name: c.headers[name] for name in same} == {name: commands[0].headers[name] for name in same} for c in commands
    )
    assert [command.call for command in hand.commands].count(answered) == 1


async def test_a_report_by_sql_that_breaks_the_protocol_is_an_error_and_its_call_times_out(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL, TOOL, TOOL))
        ref = await hand.ref(turn)
        calls = [call_of(turn, index) for index in range(3)]
        wrong = ({"author_id": "alice"}, {"tool_call_id": calls[0]}, {"author_id": None})
        for call, changes in zip(calls, wrong, strict=True):
            card = await write_card(tenant.pool, result_card(ref, call, **changes), tenant.project)
            await written_report(tenant.pool, ref, call, card)
        settled = [await hand.settled(call) for call in calls]
        ended = await hand.ended(turn)
        refused = await hand.rejections()
    assert settled == [("error", "protocol_violation")] * 3
    assert sorted((code, ids["tool_call_id"]) for code, ids in refused) == [("not_its_card", c) for c in sorted(calls)]
    assert ended.results() == [TIMEOUT] * 3


async def _told(tenant: Tenant, *command: str, **variables: str) -> Ran:
    config = str(tenant.stack.config)
    return await turnstile(*command, "--config", config, "--project", tenant.project, cwd=Path.cwd(), **variables)


async def test_a_transcript_tells_calls_timeouts_retries_and_what_is_cut_off(tenant: Tenant) -> None:
    """In 80 columns, with nothing of a stranger's that could steer a terminal, and the same as JSON."""
    fails: JsonObject = {"error": {"code": "rate_limited", "retry_after_seconds": 0.01}}
    last: JsonObject = {"text": "It is \x1b[31mred\u202e.", "finish_reason": "length", "response_cost": 0.25}
    async with hand_of(tenant) as hand:
        called = calling("search", "nosuchtool", text="I look it up.")
        turn = await hand.suspended(called, {"attempts": [fails, last]})
        await hand.ended(turn)
    shown = await _told(tenant, "turn", "show", turn[:18], COLUMNS="80")
    assert shown.code == 0, shown.err
    assert max(map(len, shown.out.splitlines()[:-1])) <= 80
    assert "\x1b" not in shown.out
    assert "\u202e" not in shown.out
    parts = (
        "1 call timed out (search); 1 attempt at the model failed; the last answer is cut off",
        " asked ",
        "step 1 completed",
        "I look it up.",
        '→ search {"q": "search it"}',
        "← timeout after",
        "tool_timeout: the tool did not answer in time",
        "→ nosuchtool",
        "← failed: unknown_tool",
        "step 2 completed",
        "! attempt 1 at the model: rate_limited",
        "! the answer is cut off (length)",
        "ended: success",
        "deliverable (card",
        "It is [31mred.",
    )
    flat = " ".join(shown.out.split())
    for part in parts:
        _, found, flat = flat.partition(part)
        assert found, (part, shown.out)
    told = (await _told(tenant, "turn", "show", turn, "--json")).json()["transcript"]
    assert [call["status"] for call in told["steps"][0]["calls"]] == ["timeout", "failed"]
    assert told["steps"][0]["calls"][0]["arguments"] == {"q": "search it"}
    assert (told["calls_timed_out"], told["failed_attempts"], told["response_cost"]) == (1, 1, 0.25)
    assert (told["steps"][1]["truncated"], told["steps"][1]["failed_attempts"]) == ("length", ["rate_limited"])
    listed = await _told(tenant, "turn", "list", COLUMNS="100")
    assert turn[:18] in listed.out
    assert "cut off: length, 1 call timed out" in " ".join(listed.out.replace("│", " ").split())
    assert '{"steps":' in listed.out
    assert max(map(len, listed.out.splitlines())) <= 100


async def test_the_beginning_of_an_id_names_a_turn_unless_it_fits_several(tenant: Tenant) -> None:
    agent = await tenant.agent("plain")
    turns = [(await tenant.turn(agent)).view.agent_turn_id for _ in range(2)]
    [first, second] = turns
    same = next(size for size in range(36) if first[: size + 1] != second[: size + 1])
    for command in (("turn", "show"), ("turn", "stop"), ("watch",)):
        refused = (await _told(tenant, *command, first[:same], "--json")).json()["error"]
        assert refused["code"] == "ambiguous_turn"
        assert all(turn in refused["message"] for turn in turns)
        ran = await _told(tenant, *command, first[: same + 1])
        assert (ran.code, first in ran.out or "success" in ran.out) == (0, True), ran
