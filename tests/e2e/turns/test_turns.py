"""Every shape of a turn without tools, from the request over NATS to the `task` event (protocol §7)."""

import asyncio
import json
import logging
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.tenants import ALICE, CHANNEL, Ended, StoredEvent, Tenant, turn_of
from turnstile.activities.turn import steps as step_activities
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, new_box_id, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueReply

FIELDS: list[JsonObject] = [{"name": "answer"}, {"name": "unit", "description": "an SI unit"}]


def shown(text: object) -> Any:
    """What a mirroring model was asked."""
    assert isinstance(text, str)
    return json.loads(text)


def outcome(ended: Ended) -> tuple[str, str | None]:
    """Status and code, and that the turn has one deliverable in the box that the outcome names."""
    assert ended.deliverable()
    return ended.view.status, ended.view.error_code


async def make_box(tenant: Tenant, *cards: tuple[str, str, JsonObject]) -> BoxId:
    """A box of (type, role, content) cards, as a stranger writes it."""
    box = new_box_id()
    async with tenant.pool.connection() as conn, conn.transaction():
        await conn.fetch("INSERT INTO boxes (box_id, tenant_id) VALUES ($1::text::uuid, $2)", box, tenant.project)
        for position, (kind, role, content) in enumerate(cards, 1):
            card = uuid7()
            await conn.fetch(
                "INSERT INTO cards (card_id, tenant_id, content, metadata) VALUES ($1, $2, $3::jsonb, $4::jsonb)",
                *(card, tenant.project, json.dumps(content), json.dumps({"type": kind, "role": role})),
            )
            await conn.fetch("INSERT INTO box_cards VALUES ($1::text::uuid, $2, $3)", box, position, card)
    return box


async def test_a_plain_turn(tenant: Tenant) -> None:
    ended = await tenant.run("plain")
    assert outcome(ended) == ("success", None)
    assert ended.deliverable() == "It is done."
    [asked] = await tenant.rows(
        "SELECT metadata ->> 'type' AS type, content ->> '__type__' AS form FROM cards JOIN box_cards USING (card_id)"
        " WHERE box_id = $1::text::uuid",
        ended.view.context_box_id,
    )
    assert asked == {"type": "task.instruction", "form": "TextContent"}
    forms = [card.content["__type__"] for card in ended.cards if isinstance(card.content, dict)]
    assert list(zip([card.type for card in ended.cards], forms, strict=True)) == [
        ("sys.rendered_prompt", "TextContent"),
        ("sys.tools", "ToolContent"),
        ("agent.thought", "TextContent"),
        ("task.deliverable", "TextContent"),
    ]
    assert [step.status for step in ended.steps] == ["completed"]
    assert ended.view.inbox_status == "consumed"


async def test_exactly_one_task_event_with_all_headers(tenant: Tenant) -> None:
    agent = await tenant.agent("plain")
    trace = headers.new_traceparent()
    given = {headers.TRACEPARENT: trace, headers.DEPTH: "3", headers.AGENT_ID: agent}
    reply = await tenant.ask({"agent_id": agent, "instruction": "hello"}, headers=given)
    ended = await tenant.ended(turn_of(reply))
    [event] = await tenant.events("agent.*.task")
    assert event.subject == f"cg.v1r4.{tenant.project}.{CHANNEL}.evt.agent.{agent}.task"
    assert event.payload == {
        "agent_turn_id": reply.agent_turn_id,
        "status": "success",
        "output_box_id": reply.output_box_id,
        "deliverable_card_id": ended.view.deliverable_card_id,
        "tool_result_card_id": None,
        "error": None,
        "error_code": None,
        "stats": ended.view.stats,
    }
    told = dict(event.headers)
    assert headers.trace_id(told.pop(headers.TRACEPARENT)) == headers.trace_id(trace) == reply.trace_id
    assert told.pop(headers.TIMESTAMP).isdigit()
    assert told == {
        headers.DEPTH: "3",
        headers.PROJECT_ID: tenant.project,
        headers.CHANNEL_ID: CHANNEL,
        headers.AGENT_ID: agent,
        headers.TURN_ID: reply.agent_turn_id,
        headers.TURN_EPOCH: "1",
        headers.CONVERSATION_ID: reply.output_box_id,
        headers.VERSION: "v1r4",
        headers.MSG_TYPE: "task",
        headers.SENDER: "turnstile.worker",
        headers.MSG_ID: f"task-{reply.agent_turn_id}",
    }


async def test_events_of_a_turn_come_in_order(tenant: Tenant) -> None:
    ended = await tenant.run("reminded", must_end_with=["submit_result"])
    events = [event for event in await tenant.events() if event.suffix != "inbox_progress"]
    turn, [first, second] = ended.view.agent_turn_id, ended.steps
    assert all(event.payload["agent_turn_id"] == turn for event in events)
    told = [(event.suffix, event.payload.get("status") or event.payload.get("phase")) for event in events]
    assert told.pop(0) == ("state", "dispatched")
    assert told == [
        ("state", "running"),
        ("step", "started"),
        ("step", "planning"),
        ("step", "completed"),
        ("step", "started"),
        ("step", "planning"),
        ("state", "idle"),
        ("step", "completed"),
        ("task", "success"),
    ]
    steps = [event for event in events if event.suffix == "step"]
    assert [event.headers[headers.STEP_ID] for event in steps] == [first.step_id] * 3 + [second.step_id] * 3
    made = [card for event in steps for card in card_ids(event)]
    assert sorted(made) == sorted(card.card_id for card in ended.cards)


def card_ids(event: StoredEvent) -> list[str]:
    """The `new_card_ids` of a step event."""
    ids = event.payload["new_card_ids"]
    assert isinstance(ids, list)
    return [str(each) for each in ids]


async def test_an_answer_is_streamed_in_chunks(tenant: Tenant) -> None:
    agent = await tenant.agent("streamed")
    chunks: list[JsonObject] = []
    async with tenant.client.watching(agent, include_chunks=True) as events, asyncio.timeout(25):
        turn = turn_of(await tenant.enqueue(agent))
        missing = {"task", "end"}
        async for event in events:
            if event.suffix == "chunk":
                chunks.append(event.payload)
                missing -= {str(event.payload["chunk_type"])}
            missing -= {event.suffix}
            if not missing:
                break
    assert [chunk["index"] for chunk in chunks] == list(range(len(chunks)))
    assert {(chunk["agent_turn_id"], chunk["step_id"], chunk["attempt"]) for chunk in chunks} == {
        (turn, f"{turn}-s1", 1)
    }
    kinds = [chunk["chunk_type"] for chunk in chunks]
    assert (kinds[:2], kinds[-1]) == (["start", "reasoning"], "end")
    texts = [str(chunk["content"]) for chunk in chunks if chunk["chunk_type"] == "content"]
    assert len(texts) > 2
    assert "".join(texts) == "one two three four five six "
    assert (chunks[-1]["usage"], chunks[-1]["response_cost"]) == (
        {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13},
        0.25,
    )
    ended = await tenant.ended(turn)
    metadata = ended.steps[0].metadata
    assert metadata["llm_response_cost"] == 0.25
    assert metadata["llm_usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}


async def test_a_turn_that_must_end_with_a_tool_is_reminded(tenant: Tenant) -> None:
    ended = await tenant.run("reminded", must_end_with=["submit_result"])
    assert outcome(ended) == ("success", None)
    assert ended.types() == [
        "agent.thought",
        "sys.must_end_with_required",
        "agent.thought",
        "tool.result",
        "task.deliverable",
    ]
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 42}]}


async def test_submit_result_with_the_wanted_fields(tenant: Tenant) -> None:
    agent = await tenant.agent("submits")
    ended = await tenant.turn(agent, result_fields=FIELDS)
    assert outcome(ended) == ("success", None)
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 42}, {"name": "unit", "value": {"si": "kg"}}]}
    assert ended.results() == [("success", None, "")]
    [event] = await tenant.events("agent.*.task")
    [result] = [card.card_id for card in ended.cards if card.type == "tool.result"]
    assert ended.view.tool_result_card_id == event.payload["tool_result_card_id"] == result


async def test_a_missing_and_a_repeated_field_are_refused_and_corrected(tenant: Tenant) -> None:
    agent = await tenant.agent("corrected")
    ended = await tenant.turn(agent, result_fields=FIELDS)
    assert outcome(ended) == ("success", None)
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 2}, {"name": "unit", "value": "kg"}]}
    missing, repeated, accepted = ended.results()
    assert (missing[:2], "missing are unit" in missing[2]) == (("failed", "invalid_submission"), True)
    assert (repeated[:2], "repeated are unit" in repeated[2]) == (("failed", "invalid_submission"), True)
    assert accepted[:2] == ("success", None)
    assert len(ended.steps) == 3


ANSWER: list[JsonObject] = [{"name": "answer", "description": "a number"}]


@pytest.mark.parametrize("profile", [{}, {"must_end_with": ["submit_result"]}])
async def test_a_text_without_the_wanted_fields_is_reminded_of_them(tenant: Tenant, profile: dict[str, Any]) -> None:
    agent = await tenant.agent("reminded", **profile)
    ended = await tenant.turn(agent, result_fields=ANSWER)
    assert outcome(ended) == ("success", None)
    assert ended.types()[:2] == ["agent.thought", "sys.must_end_with_required"]
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 42}]}
    [reminder] = [card.content for card in ended.cards if card.type == "sys.must_end_with_required"]
    assert isinstance(reminder, dict)
    assert str(reminder["text"]).endswith("submit_result must have each of these fields once: answer.")


@pytest.mark.parametrize(
    ("model", "profile", "delivered"),
    [
        ("talker", {}, "Talk."),
        ("talker", {"must_end_with": ["submit_result"]}, "Talk."),
        ("incomplete", {}, "I only know the number."),
    ],
)
async def test_the_step_limit_without_the_wanted_fields_is_partial(
    tenant: Tenant, model: str, profile: dict[str, Any], delivered: str
) -> None:
    agent = await tenant.agent(model, max_steps=2, **profile)
    ended = await tenant.turn(agent, result_fields=FIELDS)
    assert outcome(ended) == ("partial", "result_fields_missing")
    assert (ended.deliverable(), len(ended.steps)) == (delivered, 2)
    [card] = [card for card in ended.cards if card.type == "task.deliverable"]
    assert card.metadata.partial


async def test_the_step_limit_without_text_or_the_wanted_fields_is_a_fallback(tenant: Tenant) -> None:
    ended = await tenant.turn(await tenant.agent("caller", max_steps=1), result_fields=FIELDS)
    assert outcome(ended) == ("partial", "result_fields_missing")
    fallback = ended.deliverable()
    assert isinstance(fallback, dict)
    assert fallback["terminal_status"] == "partial"


async def test_malformed_arguments_are_refused_and_corrected(tenant: Tenant) -> None:
    ended = await tenant.run("malformed")
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 3}]}
    refused, accepted = ended.results()
    assert (refused[:2], "not a JSON object" in refused[2]) == (("failed", "invalid_submission"), True)
    assert accepted[0] == "success"


async def test_submit_result_beside_another_call_fails_both(tenant: Tenant) -> None:
    ended = await tenant.run("accompanied")
    assert ended.deliverable() == {"fields": [{"name": "answer", "value": 5}]}
    *refused, accepted = ended.results()
    assert [each[:2] for each in refused] == [("failed", "invalid_submission")] * 2
    assert all("must be the only call" in each[2] for each in refused)
    assert accepted[0] == "success"


async def test_unknown_tools_are_answered_and_the_turn_goes_on(tenant: Tenant) -> None:
    ended = await tenant.run("guesses")
    assert outcome(ended) == ("success", None)
    assert ended.deliverable() == "I know it anyway."
    assert [result[:2] for result in ended.results()] == [("failed", "unknown_tool")] * 2
    assert await tenant.count("state.turn_waiting_tools") == 0
    assert await tenant.count("state.execution_edges", "primitive = 'tool_call'") == 0


@pytest.mark.parametrize(
    ("model", "profile", "expected", "steps", "delivered"),
    [
        ("concludes", {"max_steps": 3}, ("success", None), 3, "The conclusion."),
        ("chatty_caller", {"max_steps": 2}, ("success", None), 2, "One more look."),
        ("talker", {"max_steps": 2, "must_end_with": ["submit_result"]}, ("partial", "max_steps"), 2, "Talk."),
    ],
)
async def test_the_step_limit_delivers_the_last_text(
    tenant: Tenant, model: str, profile: dict[str, Any], expected: tuple[str, str | None], steps: int, delivered: str
) -> None:
    ended = await tenant.run(model, **profile)
    assert outcome(ended) == expected
    assert ended.deliverable() == delivered
    assert len(ended.steps) == steps


async def test_the_step_limit_without_a_text_is_a_fallback(tenant: Tenant) -> None:
    ended = await tenant.run("caller", max_steps=2)
    assert outcome(ended) == ("partial", "max_steps")
    fallback = ended.deliverable()
    assert isinstance(fallback, dict)
    assert (fallback["terminal_status"], fallback["last_thought"]) == ("partial", "")
    [card] = [card for card in ended.cards if card.type == "task.deliverable"]
    assert card.metadata.partial


async def test_the_last_step_offers_submit_result_only(tenant: Tenant) -> None:
    await tenant.rows(
        "INSERT INTO resource.tools (project_id, tool_name, description, parameters, target_subject)"
        " VALUES ($1, 'look', 'Looks.', '{}', 'cg.v1r4.{project_id}.{channel_id}.cmd.tool.look.run')",
        tenant.project,
    )
    ended = await tenant.run("mirror_at_last", max_steps=2, allowed_tools=["look"])
    thoughts = [card for card in ended.cards if card.type == "agent.thought"]
    content = thoughts[0].content
    assert isinstance(content, dict)
    first, last = shown(content["text"]), shown(ended.deliverable())
    assert [tool["name"] for tool in first["tools"]] == ["look", "submit_result"]
    assert [tool["name"] for tool in last["tools"]] == ["submit_result"]


async def test_retryable_model_errors_are_tried_again(tenant: Tenant) -> None:
    ended = await tenant.run("flaky")
    assert outcome(ended) == ("success", None)
    assert ended.deliverable() == "A whole answer."
    [step] = ended.steps
    attempts = step.metadata["attempts"]
    assert isinstance(attempts, list)
    recorded = [(attempt["attempt"], attempt.get("error_code")) for attempt in attempts if isinstance(attempt, dict)]
    assert recorded == [(1, "model_connection"), (2, "rate_limited"), (3, None)]
    assert step.metadata["llm_usage"] == {"total_tokens": 5}


@pytest.mark.parametrize(
    ("model", "code", "attempts"), [("exhausting", "model_overloaded", 4), ("refusing", "model_auth", 1)]
)
async def test_a_model_that_fails_for_good_fails_the_turn(tenant: Tenant, model: str, code: str, attempts: int) -> None:
    ended = await tenant.run(model)
    assert outcome(ended) == ("failed", code)
    [step] = ended.steps
    recorded = step.metadata["attempts"]
    assert isinstance(recorded, list)
    assert (step.status, step.error, len(recorded)) == ("failed", code, attempts)
    [event] = await tenant.events("agent.*.task")
    assert (event.payload["status"], event.payload["error_code"]) == ("failed", code)
    fallback = ended.deliverable()
    assert isinstance(fallback, dict)
    assert fallback["terminal_status"] == TurnStatus.FAILED


async def test_a_failure_after_a_good_step_keeps_what_there_is(tenant: Tenant) -> None:
    ended = await tenant.run("breaks_late")
    assert outcome(ended) == ("failed", "context_too_long")
    fallback = ended.deliverable()
    assert isinstance(fallback, dict)
    assert fallback["last_thought"] == "So far so good."
    [result] = [card for card in ended.cards if card.type == "tool.result"]
    assert fallback["tool_results"] == [{"tool_call_id": result.tool_call_id, "card_id": result.card_id}]


async def test_an_unknown_model_fails_the_turn(tenant: Tenant) -> None:
    ended = await tenant.run("nosuch")
    assert outcome(ended) == ("failed", "model_unknown")


async def test_an_error_that_nobody_foresaw_is_tried_again_by_the_engine(tenant: Tenant) -> None:
    ended = await tenant.run("buggy")
    assert outcome(ended) == ("success", None)
    assert ended.deliverable() == "Recovered."


@pytest.mark.parametrize("place", ["begin_step", "decide", "commit_step"])
async def test_a_step_that_fails_twice_in_our_own_code_fails_its_turn(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    tried: list[str] = []

    def buggy(*_: object, **__: object) -> None:
        tried.append(place)
        raise RecursionError("a bug")

    monkeypatch.setattr(step_activities, place, buggy)
    ended = await tenant.run("caller")
    assert outcome(ended) == ("failed", "internal_error")
    assert tried == [place] * 2
    usage = [step.metadata["llm_usage"] for step in ended.steps]
    assert len(usage) == (0 if place == "begin_step" else 1)
    assert all(usage)


@pytest.mark.parametrize(("model", "steps"), [("silent", 1), ("dries_up", 2)])
async def test_neither_text_nor_calls_fail_the_turn_after_one_more_try(tenant: Tenant, model: str, steps: int) -> None:
    ended = await tenant.run(model, max_steps=2)
    assert outcome(ended) == ("failed", "empty_answer")
    attempts = ended.steps[-1].metadata["attempts"]
    assert isinstance(attempts, list)
    assert (len(ended.steps), len(attempts)) == (steps, 2)


async def test_an_unreadable_instruction_fails_the_turn(tenant: Tenant) -> None:
    agent = await tenant.agent("plain")
    box = await make_box(tenant, ("task.instruction", "user", {"__type__": "TextContent", "txt": "misspelt"}))
    ended = await tenant.turn(agent, None, context_box_id=box)
    assert outcome(ended) == ("failed", "model_request_invalid")


async def test_unreadable_result_fields_are_not_checked(tenant: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    agent = await tenant.agent("submits")
    box = await make_box(
        tenant,
        ("task.instruction", "user", {"__type__": "TextContent", "text": "weigh it"}),
        ("task.result_fields", "system", {"__type__": "FieldsSchemaContent", "fields": "all of them"}),
    )
    with caplog.at_level(logging.WARNING, "turnstile.activities.turn.current_step"):
        ended = await tenant.turn(agent, None, context_box_id=box)
    assert outcome(ended) == ("success", None)
    assert any("does not parse: not checked" in record.getMessage() for record in caplog.records)
    plain = await tenant.turn(await tenant.agent("plain", AgentId("bob")), None, context_box_id=box)
    assert (outcome(plain), plain.deliverable()) == (("success", None), "It is done.")


async def test_a_context_box_and_an_instruction_are_both_read(tenant: Tenant) -> None:
    agent = await tenant.agent("mirror", system_prompt_template="You are {agent_id} of {project_id}.")
    box = await make_box(tenant, ("task.instruction", "user", {"__type__": "TextContent", "text": "first this"}))
    ended = await tenant.turn(agent, "then that", context_box_id=box)
    assert shown(ended.deliverable())["messages"] == [
        ["system", f"You are {agent} of {tenant.project}."],
        ["user", "first this\n\nthen that"],
    ]
    assert ended.view.context_box_id != box


async def test_runtime_config_overrides_the_profile(tenant: Tenant) -> None:
    agent = await tenant.agent("talker", llm={"temperature": 0.1, "top_p": 0.5}, max_steps=5)
    runtime = {
        "model": "scripted/mirror_at_last",
        "temperature": 0.9,
        "max_tokens": 77,
        "timeout_seconds": 9,
        "max_steps": 1,
    }
    ended = await tenant.turn(agent, runtime_config=runtime)
    asked = shown(ended.deliverable())
    assert outcome(ended) == ("success", None)
    assert asked["config"] == {
        "model": "scripted/mirror_at_last",
        "temperature": 0.9,
        "top_p": 0.5,
        "max_tokens": 77,
        "timeout_seconds": 9.0,
        "params": {},
    }
    assert asked["timeout_seconds"] == 9.0


async def test_an_output_box_that_is_reused_is_the_memory(tenant: Tenant) -> None:
    agent = await tenant.agent("mirror")
    first = await tenant.turn(agent, "remember this")
    second = await tenant.turn(agent, "what was it", output_box_id=first.view.output_box_id)
    assert second.view.output_box_id == first.view.output_box_id
    assert shown(second.deliverable())["messages"] == [
        ["user", "(What you said and did in earlier turns follows.)"],
        ["assistant", first.deliverable()],
        ["user", "what was it"],
    ]
    fresh = await tenant.turn(agent, "and now")
    assert shown(fresh.deliverable())["messages"] == [["user", "and now"]]


async def test_a_profile_edited_in_the_middle_changes_nothing_in_hand(tenant: Tenant, tmp_path: Path) -> None:
    agent = await tenant.agent("gated", system_prompt_template="the old prompt", llm={"temperature": 0.1}, max_steps=4)
    running = turn_of(await tenant.enqueue(agent, str(tmp_path)))
    waiting = turn_of(await tenant.enqueue(agent, str(tmp_path)))
    await until(lambda: exists(tmp_path / "asked-1-1"), 25, "the first step asks")
    new_prompt = {"system_prompt_template": "the new prompt"}
    await tenant.profile(f"{agent}-profile", "mirror", llm={"temperature": 0.2}, **new_prompt)
    tmp_path.joinpath("1").touch()
    tmp_path.joinpath("2").touch()
    later = turn_of(await tenant.enqueue(agent))
    old, queued, new = [shown((await tenant.ended(turn)).deliverable()) for turn in (running, waiting, later)]
    for asked in (old, queued):
        assert asked["messages"][0] == ["system", "the old prompt"]
        assert asked["config"]["temperature"] == 0.1
    assert new["messages"][0] == ["system", "the new prompt"]
    assert new["config"]["temperature"] == 0.2


async def exists(path: Path) -> bool:
    """Whether a script has come there."""
    return path.exists()  # noqa: ASYNC240 -- a script that waits for us wrote it


async def test_describe_answers_for_turns_and_cards(tenant: Tenant) -> None:
    ended = await tenant.run("plain")
    turn = await tenant.client.request("describe", {"agent_turn_id": ended.view.agent_turn_id})
    card = await tenant.client.request("describe", {"card_id": ended.view.deliverable_card_id})
    assert (turn["status"], card["status"]) == ("accepted", "accepted")
    assert isinstance(turn["turn"], dict)
    assert (turn["turn"]["status"], turn["turn"]["steps"]) == ("success", 1)
    assert isinstance(card["card"], dict)
    assert card["card"]["content"] == {"__type__": "TextContent", "text": "It is done."}


async def test_a_durable_enqueue_is_answered_by_its_ack(tenant: Tenant) -> None:
    agent = await tenant.agent("plain")
    async with aclosing(tenant.client.watch()) as events:
        first = asyncio.ensure_future(anext(event async for event in events if event.suffix == "enqueue_ack"))
        assert await tenant.client.command("enqueue", {"agent_id": agent, "instruction": "hello"}, "request-1")
        assert not await tenant.client.command("enqueue", {"agent_id": agent, "instruction": "hello"}, "request-1")
        ack = await asyncio.wait_for(first, 25)
    assert ack.payload["request_id"] == "request-1"
    reply = EnqueueReply.model_validate(ack.payload)
    ended = await tenant.ended(turn_of(reply))
    assert outcome(ended) == ("success", None)
    assert await tenant.count("state.agent_inbox") == 1


async def test_turns_of_one_agent_queue(tenant: Tenant) -> None:
    agent = await tenant.agent("plain", ALICE)
    turns: list[AgentTurnId] = [turn_of(await tenant.enqueue(agent, f"number {number}")) for number in range(5)]
    ended = [await tenant.ended(turn) for turn in turns]
    assert [each.view.turn_epoch for each in ended] == [1, 2, 3, 4, 5]
    assert await tenant.task_events() == dict.fromkeys(turns, 1)


@pytest.mark.parametrize(
    ("model", "line", "why"),
    [("player", {"text": "It is", "finish_reason": "length"}, "length"), ("verbose", {}, "answer_too_large")],
)
async def test_an_answer_that_is_cut_off_delivers_and_says_so(
    tenant: Tenant, model: str, line: JsonObject, why: str
) -> None:
    """What is delivered can be fetched, whatever the model wrote: the reply is smaller than NATS's default limit."""
    ended = await tenant.run(model, json.dumps({"steps": [line]}))
    assert outcome(ended) == ("success", None)
    [step] = ended.steps
    assert (step.metadata["truncated"], step.metadata["finish_reason"]) == (why, why)
    assert ended.view.stats is not None
    assert ended.view.stats["truncated"] == why
    [task] = await tenant.events("agent.*.task")
    assert task.payload["stats"] == ended.view.stats
    reply = await tenant.client.request("describe", {"card_id": ended.view.deliverable_card_id})
    assert reply["status"] == "accepted", reply
    assert len(json.dumps(reply)) < 1_000_000
    card = reply["card"]
    assert isinstance(card, dict)
    assert isinstance(card["metadata"], dict)
    assert card["metadata"]["partial"] is True
    text = ended.deliverable()
    assert isinstance(text, str)
    assert text == "It is" if model == "player" else 524_280 < len(json.dumps(text)) <= 524_290
