"""Approvals in the console: what is asked is shown exactly, decided once, and what has changed meanwhile is told."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.e2e.people.asking import PAY, asked
from tests.support.console.forms import Shown, look, press
from tests.support.console.visiting import visiting
from tests.support.gateway import token_of
from tests.support.tenants import Tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of, heard_by_model
from turnstile.ledger.roster import put_tool
from turnstile.ledger.turns.cards import get_card
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import ToolCallContent, content_of
from turnstile.schema.ids import AgentTurnId, CardId

LIST = "/console/approvals"
MAIL = definition(
    "mail",
    parameters={
        "type": "object",
        "properties": {
            "to": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "text": {"type": "string"},
            "copies": {"type": "integer", "minimum": 1, "maximum": 9},
            "urgent": {"type": "boolean"},
            "how": {"enum": ["plain", "html"]},
            "more": {"type": "object"},
        },
        "required": ["to", "text"],
    },
)
LETTER = {"to": ["ada", "bob"], "text": "Dear all,\nhello", "copies": 2, "how": "plain", "more": {"a": [1, None]}}
HOSTILE = "</textarea><script>alert(1)</script>\u202e&quot;"


@pytest.fixture
async def hand(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments and letters wait for people, and which may ask them."""
    allowed = ["pay", "mail", "ask_human"]
    async with hand_of(
        tenant,
        PAY,
        MAIL,
        interrupt_on={"pay": {"description": "Shall this be paid?"}, "mail": True},
        allowed_tools=allowed,
    ) as made:
        yield made


@pytest.fixture
async def ada(url: str, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who decides."""
    async with visiting(url, await token_of(tenant.stack, tenant.project, GatewayRole.APPROVER)) as made:
        yield made


async def waiting(hand: Hand, *calls: tuple[str, object]) -> tuple[AgentTurnId, list[str]]:
    """A turn that makes these calls, and its questions."""
    turn = await hand.start(calling(*calls))
    return turn, [f"{LIST}/{each.id}" for each in await asked(hand, turn, len(calls))]


async def sent_arguments(hand: Hand) -> JsonObject:
    """The arguments of the one call that its tool has received."""
    [command] = await hand.heard()
    card_id = CardId(str(command.payload["tool_call_card_id"]))
    card = await hand.tenant.pool.run(lambda conn: get_card(conn, hand.tenant.project, card_id))
    content = None if card is None else content_of(card)
    assert isinstance(content, ToolCallContent)
    return content.arguments


async def test_what_is_asked_is_shown_exactly_and_approved_by_one_button(hand: Hand, ada: httpx.AsyncClient) -> None:
    turn, [page] = await waiting(hand, ("pay", {"amount": 5}))
    listed = await look(ada, LIST)
    assert "Shall this be paid?" in listed.words
    assert page in listed.text
    assert "&#34;amount&#34;: 5" in listed.text
    shown = await look(ada, page)
    [question] = await asked(hand, turn)
    assert f'<code class="digest">{question.view.action_digest}</code>' in shown.text
    assert "&#34;amount&#34;: 5,\n  &#34;account&#34;" in shown.text
    assert f"of {hand.tenant.project}" in shown.text, "what is forced is shown, too"
    assert "Set by the tool, whatever you type: account." in shown.words
    assert "1 of 1 open" in shown.words
    done = await press(ada, shown, "digest", fields={"decision": "approve", "note": "fine"})
    assert (done.status_code, done.headers["location"]) == (303, f"{page}?told=approved")
    assert "Approved: the call is sent to its tool." in (await look(ada, done.headers["location"])).words
    await hand.heard()
    await hand.report(call_of(turn), "paid")
    assert heard_by_model(await hand.ended(turn)) == [{"status": "success", "result": "paid"}]
    decided = await look(ada, f"{LIST}?status=resolved")
    assert "approved by you" in decided.words
    assert "“fine”" in decided.words
    after = await look(ada, page)
    assert "You approved it" in after.words
    assert "decision" not in {name for _, fields in after.forms for name in fields}


async def test_after_a_decision_the_page_shows_it_and_leads_to_the_next_open_question(
    hand: Hand, ada: httpx.AsyncClient
) -> None:
    _, pages = await waiting(hand, ("pay", {"amount": 1}), ("pay", {"amount": 2}), ("pay", {"amount": 3}))
    order = [part for part in (await look(ada, LIST)).text.split('"') if part in pages]
    newest, middle, oldest = dict.fromkeys(order)
    first = await look(ada, middle)
    assert "2 of 3 open" in first.words
    done = await press(ada, first, "digest", fields={"decision": "reject", "note": "no"})
    assert done.headers["location"] == f"{middle}?told=rejected", "never to a question that nobody has looked at"
    decided = await look(ada, middle)
    assert ("You rejected it" in decided.words, f'href="{oldest}"' in decided.text) == (True, True)
    await press(ada, await look(ada, oldest), "digest", fields={"decision": "reject"})
    assert f'href="{newest}"' in (await look(ada, oldest)).text, "from the last to the first"
    await press(ada, await look(ada, newest), "digest", fields={"decision": "reject"})
    assert "Nothing else is open" in (await look(ada, newest)).words
    assert "Nothing waits for a person now." in (await look(ada, LIST)).words


async def test_of_two_who_decide_at_once_one_counts_and_the_other_is_told_by_whom(
    hand: Hand, ada: httpx.AsyncClient, url: str
) -> None:
    token = await token_of(hand.tenant.stack, hand.tenant.project, GatewayRole.APPROVER)
    _, pages = await waiting(hand, *(("pay", {"amount": n}) for n in range(1, 5)))
    async with visiting(url, token) as bob:
        for page in pages:
            seen = [await look(ada, page), await look(bob, page)]
            answers = await asyncio.gather(
                press(ada, seen[0], "digest", fields={"decision": "approve"}),
                press(bob, seen[1], "digest", fields={"decision": "reject", "note": "too much"}),
            )
            assert sorted(answer.status_code for answer in answers) == [303, 409]
            late = next(n for n, each in enumerate(answers) if each.status_code == 409)
            told = Shown(answers[late])
            word = "approved" if late else "rejected"
            assert "Your decision does not count" in told.words
            assert f"{word} it" in told.words
            assert "token." in told.words
            if late:
                assert "too much" in told.words, "what was typed is kept"


async def test_a_form_that_is_sent_twice_decides_once_and_says_so_twice(hand: Hand, ada: httpx.AsyncClient) -> None:
    _, [first, second] = await waiting(hand, ("pay", {"amount": 1}), ("mail", LETTER))
    shown = await look(ada, first)
    for _ in range(2):
        done = await press(ada, shown, "digest", fields={"decision": "approve"})
        assert (done.status_code, done.headers["location"]) == (303, f"{first}?told=approved")
    shown = await look(ada, second)
    assert (await press(ada, shown, "made_of", fields={"decision": "edit", "arg-1": "short"})).status_code == 303
    again = Shown(await press(ada, shown, "made_of", fields={"decision": "edit", "arg-1": "other"}))
    assert (again.status, "You have decided this before" in again.words, "other" in again.words) == (409, True, True)


async def test_a_call_is_edited_field_by_field_within_its_schema(hand: Hand, ada: httpx.AsyncClient) -> None:
    turn, [page] = await waiting(hand, ("mail", LETTER))
    shown = await look(ada, page)
    _, fields = shown.form("made_of")
    names = ("to", "text", "how", "more", "copies", "urgent")
    to, _, _, more, copies, urgent = (f"arg-{n}" for n in range(6))
    values = ["ada\nbob", "Dear all,\nhello", "0", '{\n  "a": [\n    1,\n    null\n  ]\n}', "2", ""]
    assert [fields[f"arg-{n}"] for n in range(6)] == values, f"what is needed comes first: {names}"
    typed = {"decision": "edit", to: "ada\ncy", copies: "12", more: '{"a": }'}
    refused = await press(ada, shown, "made_of", fields=typed)
    told = Shown(refused)
    assert told.status == 422
    assert "Not valid JSON at line 1" in told.words
    again = told.form("made_of")[1]
    assert (again[to], again[copies], again[more]) == ("ada\ncy", "12", '{"a": }'), "what was typed is kept"
    refused = await press(ada, told, "made_of", fields={"decision": "edit", more: '{"b": 1.50}'})
    told = Shown(refused)
    assert "12 is greater than the maximum of 9" in told.words
    done = await press(ada, told, "made_of", fields={"decision": "edit", copies: "3", urgent: "0"})
    assert done.headers["location"].endswith("told=edited")
    sent = {**LETTER, "to": ["ada", "cy"], "copies": 3, "urgent": True, "more": {"b": 1.5}}
    assert await sent_arguments(hand) == sent
    await hand.report(call_of(turn), "sent")
    await hand.ended(turn)
    after = await look(ada, page)
    assert "The call as it was sent" in after.words
    assert "Before it was edited" in after.words


async def test_an_edit_that_changes_nothing_is_not_taken_for_one(hand: Hand, ada: httpx.AsyncClient) -> None:
    _, [page] = await waiting(hand, ("mail", {"to": [], "text": " \r\n a\tb "}))
    shown = await look(ada, page)
    action, fields = shown.form("made_of")
    twice = await ada.post(action, data={**fields, "decision": "edit", "arg-1": ["a", "b"]})
    assert (twice.status_code, "a field was sent twice" in twice.text) == (400, True)
    told = Shown(await press(ada, shown, "made_of", fields={"decision": "edit"}))
    assert (told.status, "Nothing was changed" in told.words) == (422, True)
    done = await press(ada, told, "made_of", fields={"decision": "edit", "arg-4": "1"})
    assert done.status_code == 303
    assert await sent_arguments(hand) == {"to": [], "text": " \r\n a\tb ", "copies": 1}, "to the letter"


async def test_what_has_changed_since_the_page_was_loaded_is_told_and_decides_nothing(
    hand: Hand, ada: httpx.AsyncClient
) -> None:
    turn, [page] = await waiting(hand, ("mail", LETTER))
    shown = await look(ada, page)
    told = Shown(await press(ada, shown, "digest", fields={"decision": "approve", "digest": "0" * 64}))
    assert (told.status, "The call has changed since you loaded this page." in told.words) == (409, True)
    changed = MAIL.model_copy(update={"parameters": {**MAIL.parameters, "title": "another"}})
    await put_tool(hand.tenant.pool, hand.tenant.project, changed)
    told = Shown(await press(ada, shown, "made_of", fields={"decision": "edit", "arg-1": "Dear both"}))
    assert (told.status, "parameters have changed since you loaded this page" in told.words) == (409, True)
    assert "Dear both" in told.words
    assert "The tool has changed since this was asked." in told.words
    done = await press(ada, told, "digest", fields={"decision": "approve"})
    assert done.headers["location"].endswith("told=tool_changed")
    [(status, code, _)] = (await hand.ended(turn)).results()
    assert (status, code) == ("failed", "tool_changed")


async def test_questions_are_answered_with_one_button_or_by_their_fields(hand: Hand, ada: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "why": {"type": "string"}}, "required": ["n"]}
    turn, [which, form, text] = await waiting(
        hand,
        ("ask_human", {"question": "Which?", "choices": ["a", HOSTILE]}),
        ("ask_human", {"question": "How many?", "response_schema": schema}),
        ("ask_human", {"question": "Why?"}),
    )
    shown = await look(ada, which)
    assert [value for name, value in shown.buttons if name == "answer"] == ["0", "1"]
    assert "<script>alert" not in shown.text
    assert (await press(ada, shown, "decision", fields={"answer": "1"})).status_code == 303
    shown = await look(ada, form)
    told = Shown(await press(ada, shown, "ans-0", fields={"ans-0": "many", "ans-1": "so"}))
    assert (told.status, "Type a whole number" in told.words, told.form("ans-0")[1]["ans-1"]) == (422, True, "so")
    assert (await press(ada, told, "ans-0", fields={"ans-0": "7", "ans-1": ""})).status_code == 303
    told = Shown(await press(ada, await look(ada, text), "answer", fields={"answer": " "}))
    assert (told.status, "This field is required." in told.words) == (422, True)
    assert (await press(ada, told, "answer", fields={"answer": "because"})).status_code == 303
    assert "because" in (await look(ada, text)).words
    results = heard_by_model(await hand.ended(turn))
    assert [result["result"] for result in results] == [{"value": HOSTILE}, {"value": {"n": 7}}, {"value": "because"}]


async def test_who_may_not_decide_is_told_why(hand: Hand, url: str, operator: httpx.AsyncClient) -> None:
    stack, project = hand.tenant.stack, hand.tenant.project
    _, [page] = await waiting(hand, ("pay", {"amount": 5}))
    for role in (GatewayRole.VIEWER, GatewayRole.CLIENT):
        async with visiting(url, await token_of(stack, project, role)) as web:
            shown = await look(web, page)
            assert "can only read this" in shown.words
            assert not any("digest" in fields for _, fields in shown.forms)
            csrf = shown.form("csrf")[1]["csrf"]
            refused = await web.post(page, data={"csrf": csrf, "decision": "approve", "digest": ""})
            assert refused.status_code == 403
    async with visiting(url, await token_of(stack, project, GatewayRole.APPROVER, "u_ada")) as web:
        assert (await web.get(page)).status_code == 404
        assert page not in (await look(web, LIST)).text
    begun = await operator.get("/console/conversations/new")
    script = '{"steps": [{"tool_calls": [{"name": "pay", "arguments": {"amount": 9}}]}]}'
    own = Shown(begun)
    made = await press(operator, own, "to", fields={"to": f"agent:{hand.agent}", "text": script})
    assert made.status_code == 303
    [turn] = [
        row["agent_turn_id"]
        for row in await hand.tenant.rows(
            "SELECT agent_turn_id FROM state.agent_inbox"
            " WHERE project_id = $1 AND message_type = 'turn' AND status = 'queued'",
            project,
        )
    ]
    await press(operator, await look(operator, page), "digest", fields={"decision": "reject"})
    [question] = await asked(hand, AgentTurnId(turn))
    mine = await look(operator, f"{LIST}/{question.id}")
    assert "You asked for this turn, so somebody else must decide." in mine.words
    await hand.tenant.client.request("stop", {"agent_turn_id": turn})
    await hand.ended(AgentTurnId(turn))
    assert "The turn ended first" in (await look(operator, f"{LIST}/{question.id}")).words


async def test_what_a_tool_asks_while_it_runs_is_shown_and_answered(
    tenant: Tenant, operator: httpx.AsyncClient
) -> None:
    async with hand_of(tenant) as runner:
        turn = await runner.suspended(calling("search"))
        call = call_of(turn)
        for key, question in (("1", "Which color?"), ("2", "Which size?")):
            asked_of: JsonObject = {"question": question, "choices": ["red", "blue"]}
            given: JsonObject = {"tool_call_id": call, "key": key, "tool": "ask_human", "arguments": asked_of}
            assert (await tenant.client.request("delegate", given))["status"] == "accepted"
        first, second = (f"{LIST}/int-{call}~{key}" for key in "12")
        assert "a person, about search" in (await look(operator, "/console")).words
        for page in ("/console/calls?waits_for=held", f"/console/calls/{call}", f"/console/turns/{turn}"):
            assert f'href="{second}"' in (await look(operator, page)).text, page
        assert "Answer the call by hand" in (await look(operator, f"/console/calls/{call}")).words
        shown = await look(operator, first)
        assert "asked by the tool search" in shown.words
        assert (await press(operator, shown, "decision", fields={"answer": "1"})).status_code == 303
        assert "blue" in (await look(operator, first)).words
        await runner.report(call)
        await runner.ended(turn)
        assert "The turn ended, or the call was answered, first" in (await look(operator, second)).words
        assert "waits for a person (respond)" in (await look(operator, f"/console/turns/{turn}")).text
