"""What of a model's calls becomes a command, with which arguments, and what the model is told (protocol §7.3, §7.4)."""

import json
import logging
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.tenants import Ended, Tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of, heard_by_model, shown
from turnstile.ledger.roster import put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card

NUMBERS: JsonObject = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1},
        "unit": {"type": "string"},
        "note": {"type": ["string", "null"]},
        "owner": {"type": "string"},
        "api_key": {"type": "string"},
    },
    "required": ["count", "unit", "owner", "api_key"],
}
OPTIONS: JsonObject = {
    "args": {
        "defaults": {"unit": "kg", "note": "of {agent_id}"},
        "fixed": {"owner": "{project_id}/{channel_id}/{tool_call_id}/{step_id}/{turn_epoch}"},
    },
    "envs": {"api_key": "WEIGHING_KEY"},
}
WEIGH = definition("weigh", parameters=NUMBERS, options=OPTIONS)


def arguments(ended: Ended, call: str) -> Any:
    """The arguments on the `tool.call` card of a call."""
    [card] = [card for card in ended.cards if card.type == "tool.call" and card.tool_call_id == call]
    assert isinstance(card.content, dict)
    return card.content["arguments"]


def cards_of(ended: Ended, kind: str) -> list[Card]:
    """Its cards of a type."""
    return [card for card in ended.cards if card.type == kind]


async def nothing_was_sent(hand: Hand) -> None:
    """No call of this project waits or waited, and none was heard."""
    assert await hand.tenant.count("state.turn_waiting_tools") == 0
    assert await hand.tenant.count("state.execution_edges", "primitive = 'tool_call'") == 0
    assert hand.commands == []


async def test_known_and_unknown_tools_in_one_step_send_the_known(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("nosuch", "search", "neither"))
        unknown, known, other = (call_of(turn, index) for index in range(3))
        assert (await hand.head())["waiting_tool_count"] == 1
        await hand.report(known, "found it")
        ended = await hand.ended(turn)
    assert [command.call for command in hand.commands] == [known]
    assert await hand.waits(turn) == {known: "applied"}
    assert [card.tool_call_id for card in cards_of(ended, "tool.result")] == [unknown, other, known]
    first, second, third = heard_by_model(ended)
    assert (first["error"]["code"], third["error"]["code"]) == ("unknown_tool", "unknown_tool")
    assert "Available: search, submit_result" in first["error"]["message"]
    assert second == {"status": "success", "result": "found it"}


async def test_a_tool_that_is_not_allowed_is_unknown_and_not_sent(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(), definition("secret"), allowed_tools=["search"]) as hand:
        ended = await hand.ended(await hand.start(calling("secret")))
    assert [result[1] for result in ended.results()] == ["unknown_tool"]
    assert [tool["name"] for tool in shown(ended.deliverable())["tools"]] == ["search", "submit_result"]
    await nothing_was_sent(hand)


async def test_an_allowed_tool_that_is_not_there_is_left_out_with_a_warning(
    tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "turnstile.rules.turn_config"):
        async with hand_of(tenant, allowed_tools=["search", "missing"]) as hand:
            ended = await hand.ended(await hand.start())
    assert [tool["name"] for tool in shown(ended.deliverable())["tools"]] == ["search", "submit_result"]
    assert any("allowed tool missing" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": 0}, "count: 0 is less than the minimum of 1"),
        ({"count": "three"}, "count: 'three' is not of type 'integer'"),
        ({}, "'count' is a required property"),
        ('{"count": 3', "not a JSON object"),
        ("[3]", "not a JSON object"),
    ],
)
async def test_arguments_that_break_the_schema_fail_the_call_and_another_step_follows(
    tenant: Tenant, given: Any, told: str
) -> None:
    async with hand_of(tenant, WEIGH) as hand:
        turn = await hand.start(calling(("weigh", given)), calling(("weigh", {"count": 3})))
        await hand.heard()
        await hand.report(call_of(turn, step=2), "3 kg")
        ended = await hand.ended(turn)
    refused, good = heard_by_model(ended)
    assert (refused["status"], refused["error"]["code"]) == ("failed", "invalid_arguments")
    assert told in refused["error"]["message"]
    assert good == {"status": "success", "result": "3 kg"}
    assert [command.call for command in hand.commands] == [call_of(turn, step=2)]
    assert len(ended.steps) == 3


async def test_defaults_fill_in_and_fixed_and_envs_are_forced_with_their_templates(tenant: Tenant) -> None:
    lies = {"count": 1, "unit": "g", "owner": "me", "api_key": "mine", "extra": "{agent_id}"}
    async with hand_of(tenant, WEIGH) as hand:
        turn = await hand.suspended(
            calling(("weigh", {"count": 2}), ("weigh", {"count": 3, "note": None}), ("weigh", lies))
        )
        calls = [call_of(turn, index) for index in range(3)]
        for call in calls:
            await hand.report(call)
        ended = await hand.ended(turn)
    owners = [f"{tenant.project}/public/{call}/{turn}-s1/1" for call in calls]
    forced = [{"owner": owner, "api_key": {"$env": "WEIGHING_KEY"}} for owner in owners]
    assert arguments(ended, calls[0]) == {"count": 2, "unit": "kg", "note": f"of {hand.agent}", **forced[0]}
    assert arguments(ended, calls[1]) == {"count": 3, "unit": "kg", "note": None, **forced[1]}
    assert (
        arguments(ended, calls[2])
        == {"count": 1, "unit": "g", "note": f"of {hand.agent}", "extra": "{agent_id}"} | forced[2]
    )


async def test_the_model_never_sees_what_is_forced(tenant: Tenant) -> None:
    async with hand_of(tenant, WEIGH) as hand:
        ended = await hand.ended(await hand.start())
    [weigh, _] = shown(ended.deliverable())["tools"]
    assert set(weigh["parameters"]["properties"]) == {"count", "unit", "note"}
    assert weigh["parameters"]["required"] == ["count"]  # what has a default is not asked for
    [pinned] = cards_of(ended, "sys.tools")
    assert "owner" not in str(pinned.content)
    assert "WEIGHING_KEY" not in str(pinned.content)


async def test_a_secret_is_on_no_card_and_no_content_is_in_a_history_or_log(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel knows the name of the variable; the value is there to be leaked, and is not."""
    secret = "the-key-of-the-scales"
    monkeypatch.setenv("WEIGHING_KEY", secret)
    with caplog.at_level(logging.DEBUG):
        async with hand_of(tenant, WEIGH) as hand:
            turn = await hand.suspended(calling(("weigh", {"count": 2, "note": "words of a call"})))
            await hand.report(call_of(turn), "words of a result")
            ended = await hand.ended(turn)
            history = await tenant.stack.history(turn)
    assert arguments(ended, call_of(turn))["api_key"] == {"$env": "WEIGHING_KEY"}
    assert all(secret not in str(command) for command in hand.commands)
    assert secret not in str(await tenant.rows("SELECT content::text FROM cards"))
    recorded = b"".join(event.SerializeToString() for event in history.events)
    assert call_of(turn).encode() in recorded  # ids, and nothing else
    assert [words for words in (secret, "WEIGHING_KEY", "words of") if words.encode() in recorded] == []
    assert caplog.records
    assert [words for words in (secret, "words of") if words in caplog.text] == []


async def test_submit_result_beside_a_tool_fails_both_and_sends_nothing(tenant: Tenant) -> None:
    submit = ("submit_result", {"fields": [{"name": "answer", "value": 1}]})
    async with hand_of(tenant) as hand:
        ended = await hand.ended(await hand.start(calling("search", submit), calling(submit)))
    assert [result[:2] for result in ended.results()] == [("failed", "invalid_submission")] * 2 + [("success", None)]
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 1}]}
    await nothing_was_sent(hand)


async def test_earlier_calls_do_not_satisfy_must_end_with(tenant: Tenant) -> None:
    async with hand_of(tenant, must_end_with=["search"], max_steps=3) as hand:
        turn = await hand.suspended(calling("search"), {"text": "That is all."}, {"text": "Really."})
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
    assert (ended.view.status, ended.view.error_code) == ("partial", "max_steps")
    assert len(cards_of(ended, "sys.must_end_with_required")) == 1


async def test_the_last_step_offers_no_tools_and_a_call_there_is_not_sent(tenant: Tenant) -> None:
    async with hand_of(tenant, max_steps=2) as hand:
        turn = await hand.suspended(calling("search"), calling("search", text="Once more."))
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
    assert (ended.view.status, ended.deliverable()) == ("success", "Once more.")
    assert [result[:2] for result in ended.results()] == [("success", None), ("failed", "unknown_tool")]
    assert len(hand.commands) == 1


async def test_a_tool_and_a_profile_edited_in_mid_turn_change_nothing(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(), system_prompt_template="the old prompt") as hand:
        turn = await hand.suspended(calling("search"), calling("search"))
        edited = definition(
            description="edited",
            target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.edited.run",
            after_execution="terminate",
            parameters={"type": "object", "properties": {}, "maxProperties": 0},
        )
        await put_tool(tenant.pool, tenant.project, edited)
        await tenant.profile(f"{hand.agent}-profile", "plain", system_prompt_template="the new prompt")
        await hand.report(call_of(turn))
        _, second = await hand.heard(2)
        await hand.report(call_of(turn, step=2))
        ended = await hand.ended(turn)
        later = await tenant.turn(hand.agent)
    assert second.subject.endswith(".cmd.tool.search.run")
    asked = shown(ended.deliverable())
    assert asked["messages"][0] == ["system", "the old prompt"]
    assert asked["tools"][0]["description"] == "The tool search."
    assert later.deliverable() == "It is done."


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": {"type": "object", "properties": {"q": {"type": "nonsense"}}}},
        {"parameters": {"type": "array"}},
        {"target_subject": "cg.v1r4.{project_id}.{channel_id}.cmd.tool.search"},
        {"target_subject": "cg.v1r4.{project_id}.{channel_id}.evt.tool.search.run"},
        {"after_execution": "explode"},
        {"tool_name": "submit_result"},
        {"options": {"args": {"defaults": {"nosuch": 1}}}},
    ],
    ids=[
        "no schema",
        "no object",
        "too few tokens",
        "no command",
        "unknown ending",
        "reserved name",
        "default of an unknown argument",
    ],
)
def test_a_tool_that_cannot_be_called_is_not_put(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        definition(**fields)


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("parameters", '{"type": "object", "properties": {"q": {"type": "nonsense"}}}', "no JSON schema"),
        (
            "parameters",
            '{"type": "object", "properties": {"q": {"$ref": "http://example.com/q"}}}',
            "$ref at /properties/q/$ref",
        ),
        (
            "parameters",
            '{"type": "object", "properties": {"q": {"pattern": "(?=a)"}}}',
            "pattern at /properties/q/pattern, which cannot be enforced",
        ),
        ("target_subject", "cg.v1r4.another.public.cmd.tool.search.run", "cannot be reached"),
        ("target_subject", "cg.v1r4.{project_id}.public.evt.agent.alice.task", "cannot be reached"),
    ],
    ids=["no schema", "schema elsewhere", "look-around", "another project", "no command"],
)
async def test_a_row_that_cannot_be_called_is_told_to_the_model(
    tenant: Tenant, column: str, value: str, told: str
) -> None:
    """`tool put` refuses these; a row that somebody wrote by SQL costs its call, not the turn."""
    async with hand_of(tenant) as hand:
        cast = "::jsonb" if column == "parameters" else ""
        await tenant.rows(
            f"UPDATE resource.tools SET {column} = $1{cast} WHERE project_id = $2",  # noqa: S608 -- words above
            *(value, tenant.project),
        )
        ended = await hand.ended(await hand.start(calling("search")))
    [(status, _, message)] = ended.results()
    assert (status, ended.view.status) == ("failed", "success")
    assert told in message
    await nothing_was_sent(hand)


@pytest.mark.parametrize("levels", [65, 198, 254, 255, 480, 900, 2_000])
async def test_arguments_that_are_nested_too_deeply_are_told_and_the_turn_goes_on(tenant: Tenant, levels: int) -> None:
    deep, deepest = (f'{{"q": {"[" * (each - 1)}{"]" * (each - 1)}}}' for each in (levels, 64))
    async with hand_of(tenant, definition(parameters={"type": "object"})) as hand:
        turn = await hand.start(calling(("search", deep)), calling(("search", deepest)))
        call = call_of(turn, step=2)
        await hand.called(call)
        described = await tenant.client.request("describe", {"tool_call_id": call})
        await hand.report(call)
        ended = await hand.ended(turn)
    refused, good = heard_by_model(ended)
    assert "nested deeper than 64 levels" in refused["error"]["message"]
    assert good == {"status": "success", "result": "found"}
    assert (ended.view.status, len(ended.steps)) == ("success", 3)
    assert json.dumps(arguments(ended, call)) == deepest
    assert described["status"] == "accepted"
