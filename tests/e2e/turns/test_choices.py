"""Turns that may end by a choice of their enqueue's, from the request over NATS to the `task` event (protocol §7.4)."""

import json
from typing import Any, cast

import pytest

from tests.support.tenants import Ended, Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of, heard_by_model, shown
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, ToolContent, content_of
from turnstile.schema.ids import AgentTurnId, BoxId
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES

pytestmark = pytest.mark.shared_stack

SEND: JsonObject = {
    "name": "send_b",
    "description": "Send a mail to b.",
    "parameters": {
        "type": "object",
        "properties": {"subject": {"type": "string", "minLength": 1}, "copies": {"type": "integer", "default": 1}},
        "required": ["subject"],
        "additionalProperties": False,
    },
}
THINK: JsonObject = {"name": "think", "description": "Think on."}
CHOICES: JsonObject = {"choices": [SEND, THINK]}
GOOD: tuple[str, Any] = ("send_b", {"subject": "hello"})
EMPTY: tuple[str, Any] = ("send_b", {})
BARE: tuple[str, Any] = ("think", {})
SENT: JsonObject = {"choice": "send_b", "arguments": {"subject": "hello"}}


async def played(hand: Hand, *steps: JsonObject, **runtime: Any) -> Ended:
    """A turn with choices whose model says these lines, then what it was asked."""
    return await hand.ended(await hand.start(*steps, runtime_config={**CHOICES, **runtime}))


async def alone(tenant: Tenant, *steps: JsonObject, runtime: JsonObject | None = None, **profile: Any) -> Ended:
    """The same of an agent without tools."""
    async with hand_of(tenant, allowed_tools=[], **profile) as hand:
        return await played(hand, *steps, **(runtime or {}))


def outcome(ended: Ended) -> tuple[str, str | None, int]:
    """Status, code, and the number of steps."""
    return ended.view.status, ended.view.error_code, len(ended.steps)


def offered(ended: Ended) -> list[str]:
    """The tools that the model was offered in its last step."""
    return [tool["name"] for tool in shown(ended.deliverable())["tools"]]


async def nothing_was_sent(tenant: Tenant) -> None:
    """No tool was called."""
    assert await tenant.count("state.turn_waiting_tools") == 0
    assert await tenant.count("state.execution_edges", "primitive = 'tool_call'") == 0


@pytest.mark.parametrize("must_end_with", [[], ["submit_result"]])
async def test_a_turn_ends_by_a_choice(tenant: Tenant, must_end_with: list[str]) -> None:
    ended = await alone(tenant, calling(GOOD, text="I write."), must_end_with=must_end_with)
    assert outcome(ended) == ("success", None, 1)
    assert ended.deliverable() == SENT
    assert ended.types() == ["agent.thought", "tool.result", "task.deliverable"]
    assert ended.results() == [("success", None, "")]
    [result] = [card for card in ended.cards if card.type == CardType.TOOL_RESULT]
    [event] = await tenant.events("agent.*.task")
    assert event.payload["tool_result_card_id"] == ended.view.tool_result_card_id == result.card_id
    assert event.payload["deliverable_card_id"] == ended.view.deliverable_card_id
    await nothing_was_sent(tenant)


async def test_a_turn_with_choices_ends_by_text_or_by_submit_result(tenant: Tenant) -> None:
    async with hand_of(tenant, allowed_tools=[]) as hand:
        text = await played(hand, {"text": "No mail today."})
        submitted = await played(hand, calling(("submit_result", {"fields": [{"name": "a", "value": 1}]})))
    assert (outcome(text), text.deliverable()) == (("success", None, 1), "No mail today.")
    assert (outcome(submitted), submitted.deliverable()) == (
        ("success", None, 1),
        {"fields": [{"name": "a", "value": 1}]},
    )


async def test_an_invalid_choice_is_told_and_corrected(tenant: Tenant) -> None:
    ended = await alone(tenant, calling(("send_b", {"subject": 7})), calling(("send_b", '{"subject"')), calling(GOOD))
    assert (outcome(ended), ended.deliverable()) == (("success", None, 3), SENT)
    wrong, malformed, accepted = ended.results()
    assert wrong == (
        "failed",
        "invalid_choice",
        "The arguments of send_b do not fit its parameters at subject: 7 is not of type 'string'",
    )
    assert malformed == ("failed", "invalid_choice", "The arguments of send_b are not a JSON object.")
    assert accepted == ("success", None, "")


async def test_the_model_hears_what_was_wrong(tenant: Tenant) -> None:
    ended = await alone(tenant, calling(EMPTY))
    [heard] = heard_by_model(ended)
    assert heard["status"] == "failed"
    assert "'subject' is a required property" in heard["error"]["message"]
    assert offered(ended) == ["send_b", "think", "submit_result"]


@pytest.mark.parametrize(
    "beside",
    [GOOD, BARE, "search", ("nosuch", {}), ("submit_result", {"fields": []})],
    ids=lambda each: each[0],
)
async def test_a_choice_beside_another_call_does_nothing(tenant: Tenant, beside: Any) -> None:
    async with hand_of(tenant) as hand:
        ended = await played(hand, calling(GOOD, beside), calling(GOOD))
        assert hand.commands == []
    assert (outcome(ended), ended.deliverable()) == (("success", None, 2), SENT)
    *refused, accepted = ended.results()
    assert [each[0] for each in refused] == ["failed"] * 2
    assert all("must be the only call of its step" in each[2] for each in refused)
    assert accepted[0] == "success"
    await nothing_was_sent(tenant)


async def test_a_choice_after_a_tool_has_answered(tenant: Tenant) -> None:
    """What was pinned serves the steps after the sleep too."""
    async with hand_of(tenant, definition(), definition("think")) as hand:
        turn = await hand.suspended(calling("search"), calling(("think", {"q": "x"})), runtime_config=CHOICES)
        await hand.report(call_of(turn))
        ended = await hand.ended(turn)
    assert (outcome(ended), ended.deliverable()) == (("success", None, 2), {"choice": "think", "arguments": {"q": "x"}})
    [first, _] = ended.steps
    pinned = first.metadata["turn_config"]
    assert isinstance(pinned, dict)
    assert pinned["choices"] == {"send_b": SEND["parameters"], "think": {"type": "object", "properties": {}}}
    assert isinstance(pinned["tools"], dict)
    assert list(pinned["tools"]) == ["search"]  # the project's own `think` is left out
    [specs] = [content_of(card) for card in ended.cards if card.type == CardType.TOOLS]
    assert isinstance(specs, ToolContent)
    assert [spec["function"]["name"] for spec in cast("list[dict[str, Any]]", specs.tools)] == [
        *("search", "send_b", "think", "submit_result")
    ]


async def test_the_last_step_offers_the_choices_and_submit_result(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        only = await played(hand, max_steps=1)
        refused = await played(hand, calling(EMPTY), calling("search"), max_steps=2)
        chosen = await played(hand, calling(EMPTY), calling(GOOD), max_steps=2)
        assert hand.commands == []
    assert offered(only) == ["send_b", "think", "submit_result"]
    assert outcome(refused) == ("partial", "max_steps", 2)
    assert "Available: think, send_b, submit_result." in refused.results()[1][2]  # as jsonb orders keys
    assert (outcome(chosen), chosen.deliverable()) == (("success", None, 2), SENT)


@pytest.mark.parametrize(
    ("text", "must_end_with", "expected"),
    [
        ("", [], ("partial", "max_steps", 1)),
        ("My last words.", [], ("success", None, 1)),
        ("My last words.", ["submit_result"], ("partial", "max_steps", 1)),
    ],
)
@pytest.mark.parametrize("calls", [[EMPTY], [GOOD, BARE]], ids=["invalid", "two"])
async def test_what_is_no_choice_on_the_last_step(
    tenant: Tenant, calls: list[Any], text: str, must_end_with: list[str], expected: tuple[str, str | None, int]
) -> None:
    ended = await alone(tenant, calling(*calls, text=text), runtime={"max_steps": 1}, must_end_with=must_end_with)
    assert outcome(ended) == expected
    delivered = ended.deliverable()
    if text:
        assert delivered == text
    else:
        assert isinstance(delivered, dict)
        assert delivered["terminal_status"] == "partial"
    assert ended.view.tool_result_card_id is None


async def test_a_reminder_names_the_choices(tenant: Tenant) -> None:
    ended = await alone(tenant, {"text": "Done."}, calling(GOOD), must_end_with=["submit_result"])
    assert (outcome(ended), ended.deliverable()) == (("success", None, 2), SENT)
    [reminder] = [card.content for card in ended.cards if card.type == CardType.MUST_END_WITH_REQUIRED]
    assert "submit_result, send_b, think" in str(reminder)


async def test_a_choice_need_not_name_the_wanted_fields(tenant: Tenant) -> None:
    agent = await tenant.agent("sends")
    ended = await tenant.turn(agent, result_fields=[{"name": "answer"}], runtime_config=CHOICES)
    assert outcome(ended) == ("success", None, 1)
    assert shown(json.dumps(ended.deliverable()))["choice"] == "send_b"


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("You are {agent_id}.\n", "You are alice.\n\nYou may write to {agent_id}."),
        ("", "You may write to {agent_id}."),
    ],
)
async def test_instructions_follow_the_system_prompt(tenant: Tenant, template: str, prompt: str) -> None:
    told: JsonObject = {"instructions": "You may write to {agent_id}."}
    ended = await alone(tenant, calling("nosuch"), runtime=told, system_prompt_template=template)
    assert len(ended.steps) == 2
    assert shown(ended.deliverable())["messages"][0] == ["system", prompt]
    [pinned] = [card.content for card in ended.cards if card.type == CardType.RENDERED_PROMPT]
    assert pinned == {"__type__": "TextContent", "text": prompt}


async def test_turns_on_one_output_box_remember_their_choices(tenant: Tenant) -> None:
    agent = await tenant.agent("sends")
    box: BoxId | None = None
    for number in range(1, 4):
        fields: dict[str, Any] = {} if box is None else {"output_box_id": box}
        ended = await tenant.turn(agent, f"number {number}", runtime_config=CHOICES, **fields)
        assert ended.deliverable() == {"choice": "send_b", "arguments": {"subject": f"number {number}"}}
        box = ended.view.output_box_id
    last = await tenant.turn(
        agent, "what was it", output_box_id=box, runtime_config={**CHOICES, "model": "scripted/mirror"}
    )
    accepted = '{"status":"success","result":{"accepted":true}}'
    assert shown(last.deliverable())["messages"] == [
        ["user", "(What you said and did in earlier turns follows.)"],
        *[["assistant", "I send it."], ["tool", accepted]] * 3,
        ["user", "what was it"],
    ]
    without = await tenant.turn(agent, "and now", output_box_id=box)
    assert without.deliverable() == "I could not send it."
    assert [result[:2] for result in without.results()] == [("failed", "unknown_tool")]


BAD: dict[str, tuple[str, str, Any]] = {
    "name of submit_result": ("bad_request", "choices.1.name", {**THINK, "name": "submit_result"}),
    "name of a digit": ("bad_request", "choices.1.name", {**THINK, "name": "9"}),
    "name too long": ("bad_request", "choices.1.name", {**THINK, "name": "n" * 65}),
    "name twice": ("bad_request", "runtime_config.choices:", SEND),
    "no description": ("bad_request", "choices.1.description", {"name": "think"}),
    "unknown field": ("bad_request", "choices.1.urgent", {**THINK, "urgent": True}),
    "no object": ("bad_request", "choices.1.parameters", {**THINK, "parameters": {"type": "string"}}),
    "no schema": (
        "bad_request",
        "choices.1.parameters",
        {**THINK, "parameters": {"type": "object", "properties": {"q": {"type": "s3cret"}}}},
    ),
    "NUL": ("bad_request", "NUL", {**THINK, "description": "s3cret\0"}),
    "NUL in the schema": ("bad_request", "NUL", {**THINK, "parameters": {"type": "object", "title": "\0"}}),
    "too much text": (
        "bad_request",
        "more than 65536 bytes",
        {**THINK, "parameters": {"type": "object", "title": "ä" * 32_768}},
    ),
    "too many parts": (
        "bad_request",
        "more than 8000 parts",
        {**THINK, "parameters": {"type": "object", "allOf": [True] * 10_000}},
    ),
    "too many patterns": (
        "bad_request",
        "more patterns",
        {**THINK, "parameters": {"type": "object", "allOf": [{"pattern": rf"\w{{{400 + n}}}"} for n in range(45)]}},
    ),
    "what cannot be enforced": (
        "bad_request",
        "pattern at /properties/q/pattern",
        {**THINK, "parameters": {"type": "object", "properties": {"q": {"pattern": "(?=s3cret)"}}}},
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_choice_is_refused_naming_the_field(tenant: Tenant, case: str) -> None:
    code, told, choice = BAD[case]
    await tenant.agent("plain")
    reply = await tenant.ask({"agent_id": "alice", "instruction": "x", "runtime_config": {"choices": [SEND, choice]}})
    assert (reply.status, reply.error_code) == ("rejected", code)
    assert told in (reply.error or "")
    assert "s3cret" not in (reply.error or "")
    assert await tenant.count("state.agent_inbox") == 0


@pytest.mark.parametrize(
    ("runtime", "code"),
    [
        ({"choices": [{**THINK, "name": f"c{number}"} for number in range(257)]}, "bad_request"),
        ({"choices": {}}, "bad_request"),
        ({"instructions": ""}, "bad_request"),
        ({"instructions": "a\0"}, "bad_request"),
        ({"instructions": "x" * (TEXT_LIMIT_BYTES + 1)}, "bad_request"),
        ({"instructions": "ä" * (TEXT_LIMIT_BYTES // 2)}, "text_too_large"),
    ],
    ids=["257 choices", "no list", "empty", "NUL", "too long", "too many bytes"],
)
async def test_bad_settings_are_refused(tenant: Tenant, runtime: JsonObject, code: str) -> None:
    await tenant.agent("plain")
    reply = await tenant.ask({"agent_id": "alice", "instruction": "x", "runtime_config": runtime})
    assert (reply.status, reply.error_code) == ("rejected", code)
    assert code == "text_too_large" or next(iter(runtime)) in (reply.error or "") or "NUL" in (reply.error or "")


async def test_instructions_and_choices_are_obeyed_from_a_card(tenant: Tenant) -> None:
    """The inbox row, which SQL reads, has no such text. A rerun obeys it; another turn that reads its box does not."""
    agent = await tenant.agent("mirror", system_prompt_template="You are it.", allowed_tools=[])
    settings: JsonObject = {**CHOICES, "instructions": "Be brief."}
    asked: JsonObject = {"agent_id": agent, "instruction": "x", "correlation_id": "c", "runtime_config": settings}
    first = await tenant.ended(turn_of(await tenant.ask(asked)))
    assert (await tenant.ask(asked)).duplicate
    reply = await tenant.client.request("rerun", {"agent_turn_id": first.view.agent_turn_id})
    again = await tenant.ended(AgentTurnId(str(reply["agent_turn_id"])))
    for ended in (first, again):
        assert shown(ended.deliverable())["messages"] == [["system", "You are it.\n\nBe brief."], ["user", "x"]]
        assert {"send_b", "think"} <= set(offered(ended))
    stored = await tenant.rows("SELECT payload FROM state.agent_inbox WHERE project_id = $1", tenant.project)
    assert len(stored) == 2
    for row in stored:
        assert json.loads(row["payload"])["runtime_config"] == {"card_id": f"{first.view.agent_turn_id}-config"}
        assert "brief" not in row["payload"]
        assert "send_b" not in row["payload"]
    other = await tenant.turn(agent, "y", context_box_id=first.view.context_box_id)
    assert shown(other.deliverable())["messages"] == [["system", "You are it."], ["user", "x\n\ny"]]
    assert "send_b" not in offered(other)


@pytest.mark.parametrize("gone", ["expires_at = now()", "deleted_at = now()"])
async def test_a_turn_fails_whose_settings_are_gone(tenant: Tenant, gone: str) -> None:
    """Its choices and instructions are not left out: it would do something else than was asked."""
    async with hand_of(tenant) as hand:
        first = await hand.suspended(calling("search"))
        queued = turn_of(await tenant.enqueue(hand.agent, "x", runtime_config=CHOICES))
        await tenant.rows(
            f"UPDATE cards SET {gone} WHERE metadata ->> 'type' = 'task.runtime_config'"  # noqa: S608 -- words of tests
        )
        await hand.report(call_of(first), "found")
        ended = await hand.ended(queued)
    assert (ended.view.status, ended.view.error_code) == ("failed", "model_request_invalid")


async def test_a_repeat_with_other_choices_is_a_conflict(tenant: Tenant) -> None:
    agent = await tenant.agent("sends")
    asked: JsonObject = {"agent_id": agent, "instruction": "x", "correlation_id": "c", "runtime_config": CHOICES}
    first = await tenant.ask(asked)
    ended = await tenant.ended(turn_of(first))
    assert ended.deliverable() == {"choice": "send_b", "arguments": {"subject": "x"}}
    assert (await tenant.ask(asked)).duplicate
    others: list[JsonObject] = [
        *({"choices": [SEND]}, {"choices": [THINK, SEND]}, {**CHOICES, "instructions": "More."}, {}),
    ]
    for other in others:
        assert (await tenant.ask({**asked, "runtime_config": other})).error_code == "correlation_conflict"


async def test_a_schema_without_end_does_not_hang_the_worker(tenant: Tenant) -> None:
    costly: Any = {"type": "object", "properties": {"q": {"items": {"anyOf": [{"type": "null"}] * 1_000}}}}
    call = calling(("send_b", {"q": [1] * 1_000}))
    ended = await alone(tenant, call, runtime={"choices": [{**SEND, "parameters": costly}], "max_steps": 2})
    [(status, code, message)] = ended.results()
    assert (status, code, ended.view.status) == ("failed", "invalid_choice", "success")
    assert "too long to check" in message
    assert json.loads(str(ended.deliverable()))["step"] == 2
