"""Conversations in the console: begun, continued, steered and stopped by forms alone; streamed by the session."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.e2e.people.asking import PAY, asked
from tests.support.conditions import until
from tests.support.console.forms import Shown, look, press
from tests.support.console.visiting import visiting
from tests.support.gateway import Folded, composed, events_of, token_of
from tests.support.tenants import Tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.gateway.console import routes
from turnstile.gateway.http import bearers
from turnstile.ledger.access import chats
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentTurnId

LIST = "/console/conversations"
NEW = f"{LIST}/new"
SLOW = {"text": "one two three", "chunks": 3, "delay_seconds": 0.4}
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(2)) **bold** \u202e"


@pytest.fixture
async def hand(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent that calls tools, whose payments wait for people."""
    how: dict[str, Any] = {"interrupt_on": {"pay": True}, "allowed_tools": ["search", "pay"]}
    async with hand_of(tenant, definition(), PAY, **how) as made:
        await tenant.profile(f"{made.agent}-profile", "talks", **how)  # goes by what was said last
        yield made


def script(*steps: object) -> str:
    """What to say so that the model answers with these lines."""
    return json.dumps({"steps": steps})


async def begun(web: httpx.AsyncClient, hand: Hand, text: str, name: str = "trip") -> str:
    """Begin a conversation by the page's form; returns its address."""
    shown = await look(web, NEW)
    fields = {"to": f"agent:{hand.agent}", "conversation": name, "text": text}
    made = await press(web, shown, "to", fields=fields)
    assert made.status_code == 303, made.text
    return made.headers["location"].partition("#")[0]


async def say(web: httpx.AsyncClient, page: str, text: str, how: str = "send") -> httpx.Response:
    """Say something by the page's form."""
    return await press(web, await look(web, page), "text", "key", fields={"text": text, "how": how})


async def turns(hand: Hand) -> list[AgentTurnId]:
    """The turns of the project, oldest first."""
    rows = await hand.tenant.rows(
        "SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1 AND message_type = 'turn'"
        " ORDER BY created_at",
        hand.tenant.project,
    )
    return [row["agent_turn_id"] for row in rows]


async def over(hand: Hand) -> None:
    """Wait until the last turn is over."""
    await hand.ended((await turns(hand))[-1])


async def test_a_conversation_is_begun_and_continued_tomorrow(hand: Hand, operator: httpx.AsyncClient) -> None:
    assert "There are no conversations yet." in (await look(operator, LIST)).words
    page = await begun(operator, hand, script({"text": f"Good **morning** {HOSTILE}"}))
    assert page == f"{LIST}/{hand.agent}/trip?channel_id=public"
    await over(hand)
    shown = await look(operator, page)
    assert "<b>You</b>" in shown.text
    assert "Good <strong>morning</strong> &lt;script&gt;" in shown.text
    assert "<script>alert" not in shown.text
    assert 'href="javascript' not in shown.text
    assert "[U+202E]" in shown.text
    assert shown.words.count("Good") == 2, "the script and the answer: the thought is not said twice"
    [turn] = await turns(hand)
    assert f'href="/console/turns/{turn}"' in shown.text
    await hand.tenant.rows(
        "UPDATE state.conversations SET updated_at = updated_at - $2::interval, created_at = created_at - $2::interval"
        " WHERE project_id = $1 RETURNING 1",
        *(hand.tenant.project, timedelta(days=1)),
    )
    listed = await look(operator, LIST)
    assert page.replace("&", "&amp;") in listed.text
    said = await say(operator, page, script({"text": "And good evening"}))
    assert (said.status_code, said.headers["location"]) == (303, f"{page}#end")
    await over(hand)
    shown = await look(operator, page)
    assert shown.words.index("morning") < shown.words.index("And good evening")
    for order in ("used", "begun"):
        assert "2 turns" in (await look(operator, f"{LIST}?order={order}")).words


async def test_a_form_that_is_sent_twice_asks_once(hand: Hand, operator: httpx.AsyncClient) -> None:
    page = await begun(operator, hand, script({"text": "first"}))
    await over(hand)
    shown = await look(operator, page)
    for _ in range(2):
        sent = await press(operator, shown, "text", "key", fields={"text": script({"text": "second"}), "how": "send"})
        assert sent.status_code == 303
    assert len(await turns(hand)) == 2
    other = Shown(await press(operator, shown, "text", "key", fields={"text": "something else", "how": "send"}))
    assert (other.status, "correlation conflict" in other.words) == (409, True)
    assert other.form("text", "key")[1]["text"] == "something else", "what was typed is kept"
    again = await press(operator, other, "text", "key", fields={"how": "send", "text": script({"text": "third"})})
    assert again.status_code == 303
    await over(hand)
    assert len(await turns(hand)) == 3


async def test_calls_are_folded_beside_their_results(hand: Hand, operator: httpx.AsyncClient) -> None:
    steps = [calling(("search", {"q": "a<b"}), text="I look it up."), {"text": "Found."}]
    page = await begun(operator, hand, script(*steps))
    [turn] = await turns(hand)
    await hand.heard()
    shown = await look(operator, page)
    assert "waits for 1 call" in shown.words
    assert "I look it up." in shown.words
    assert "a&lt;b" in shown.text
    await hand.report(call_of(turn), {"rows": [1, 2]})
    await over(hand)
    shown = await look(operator, page)
    assert f'<details id="call-{call_of(turn)}">' in shown.text
    assert '"rows": [ 1, 2 ]' in shown.words.replace("&#34;", '"')
    assert "Found." in shown.words


async def test_while_a_turn_runs_it_is_steered_or_the_next_is_queued(hand: Hand, operator: httpx.AsyncClient) -> None:
    page = await begun(operator, hand, script(calling("search"), {"text": "done"}))
    first = (await turns(hand))[0]
    await hand.heard()
    shown = await look(operator, page)
    assert [value for name, value in shown.buttons if name == "how"] == ["steer", "queue"]
    steered = await say(operator, page, "use <Python>", "steer")
    assert steered.headers["location"] == f"{page}&told=steered#end"
    shown = await look(operator, f"{page}&told=steered")
    assert "The turn reads your message" in shown.words
    assert "use &lt;Python&gt;" in shown.text
    assert "waits for the next step" in shown.words
    queued = await say(operator, page, script({"text": "the second"}), "queue")
    assert queued.headers["location"] == f"{page}&told=queued#end"
    shown = await look(operator, page)
    assert "is next" in shown.words
    late = shown
    await hand.report(call_of(first))
    await over(hand)
    shown = await look(operator, page)
    assert "said while it ran" in shown.words
    assert shown.words.index("done") < shown.words.index("the second")
    refused = Shown(await press(operator, late, "text", "key", fields={"text": "too late", "how": "steer"}))
    assert (refused.status, "ended before it read this" in refused.words) == (409, True)
    assert refused.form("text", "key")[1]["text"] == "too late"
    assert [value for name, value in refused.buttons if name == "how"] == ["send"]


async def test_a_turn_is_stopped_and_a_queued_one_taken_back(hand: Hand, operator: httpx.AsyncClient) -> None:
    page = await begun(operator, hand, script(calling("search")))
    await hand.heard()
    await say(operator, page, script({"text": "next"}), "queue")
    first, second = await turns(hand)
    shown = await look(operator, page)
    for turn in (second, first):
        action, fields = next(
            (action, dict(own)) for action, own in shown.forms if own.get("turn") == turn and "key" not in own
        )
        stopped = await operator.post(action, data=fields)
        assert stopped.headers["location"] == f"{page}&told=stopped#end"
        await hand.ended(turn)
    shown = await look(operator, page)
    assert shown.words.count("canceled") >= 2


async def test_a_chat_leads_to_what_it_asks_people_and_back(hand: Hand, operator: httpx.AsyncClient, url: str) -> None:
    page = await begun(operator, hand, script(calling(("pay", {"amount": 7})), {"text": "paid"}))
    [turn] = await turns(hand)
    [question] = await asked(hand, turn)
    shown = await look(operator, page)
    where = f"/console/approvals/{question.id}?then=chat"
    assert where in shown.text
    assert "waits for a person" in shown.words
    token = await token_of(hand.tenant.stack, hand.tenant.project, GatewayRole.APPROVER)
    async with visiting(url, token) as ada:
        form = await look(ada, where)
        assert page.replace("&", "&amp;") in form.text
        decided = await press(ada, form, "digest", fields={"decision": "reject", "note": "no"})
        assert decided.headers["location"] == f"{page}&told=rejected#end"
        reader = await look(ada, page)
        assert "can only read" in reader.words
        assert not any("key" in fields for _, fields in reader.forms)
    await over(hand)


async def test_a_profile_is_talked_to_and_a_name_that_is_none_is_told(
    tenant: Tenant, operator: httpx.AsyncClient
) -> None:
    assert "The project has no agents yet." in (await look(operator, NEW)).words
    await tenant.profile("guide", "player", instances=True)
    shown = await look(operator, f"{NEW}?profile=guide")
    assert shown.form("to")[1]["to"] == "profile:guide"
    made = await press(operator, shown, "to", fields={"text": script({"text": "hello"})})
    assert made.status_code == 303
    page = made.headers["location"].partition("#")[0]
    assert "hello" in (await look(operator, page)).text
    for wrong, status, words in (
        ({"to": "", "text": "x"}, 400, "choose an agent or a profile"),
        ({"to": "agent:nobody", "text": "x"}, 404, "unknown agent"),
        ({"to": "profile:guide", "text": " "}, 400, "write what the agent should do"),
        ({"to": "profile:guide", "text": "x", "conversation": "a\x7fb"}, 400, "conversation"),
    ):
        told = Shown(await press(operator, await look(operator, NEW), "to", fields=wrong))
        assert (told.status, words in told.words) == (status, True), told.words
        assert told.form("to")[1]["text"] == wrong["text"]
    assert (await operator.get(f"{LIST}/nobody/nothing")).status_code == 404
    turn = (await tenant.rows("SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1", tenant.project))[0]
    await tenant.ended(turn["agent_turn_id"])


async def test_the_memory_of_an_agent_is_a_conversation_without_a_name(
    tenant: Tenant, operator: httpx.AsyncClient
) -> None:
    async with hand_of(tenant, memory={"keep": "conversation"}) as hand:
        await hand.ended(await hand.start({"text": "I remember"}))
        page = f"{LIST}/{hand.agent}/~?channel_id=public"
        assert page.replace("&", "&amp;") in (await look(operator, LIST)).text
        assert (await say(operator, page, script({"text": "still"}))).status_code == 303
        await over(hand)
        assert "2 turns" in (await look(operator, page)).words
        async with operator.stream("GET", page.replace("?", "/events?") + "&turns=1") as stream:
            folded = Folded()
            async for sent in events_of(stream):
                folded.take(sent)
                if sent.event == "outcome":
                    break
        assert folded.outcome is not None


async def test_the_text_of_a_turn_is_streamed_to_the_session(hand: Hand, operator: httpx.AsyncClient) -> None:
    page = await begun(operator, hand, script(SLOW))
    shown = await look(operator, page)
    address = shown.text.partition('data-stream="')[2].partition('"')[0].replace("&amp;", "&")
    folded = Folded()
    async with operator.stream("GET", address) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for sent in events_of(stream):
            folded.take(sent)
            if sent.event == "outcome":
                break
    assert (folded.lost, folded.doubled) == (0, 0)
    assert [card["type"] for card in folded.cards.values()][-1] == "task.deliverable"
    async with httpx.AsyncClient(base_url=str(operator.base_url)) as stranger:
        assert (await stranger.get(address)).status_code in (303, 401)


async def test_a_long_conversation_is_read_in_parts(
    hand: Hand, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstile.gateway.console.people.chat_page._TURNS", 2)
    monkeypatch.setattr(chats, "CONTENT_LIMIT", 2_000)
    page = await begun(operator, hand, script({"text": "answer 0"}))
    for n in range(1, 5):
        text = f"answer {n}" if n < 4 else "x" * 3_000
        await say(operator, page, script({"text": text}), "queue")
    await over(hand)
    shown = await look(operator, page)
    assert "answer 3" in shown.words
    assert "answer 2" not in shown.text
    assert "x" * 100 not in shown.text.replace(script({"text": "x" * 3_000}).replace('"', "&#34;"), "")
    assert "are not shown here" in shown.words
    earlier = shown.text.partition('<p class="pager"><a href="')[2].partition('"')[0].replace("&amp;", "&")
    part = await look(operator, earlier)
    assert ("answer 1" in part.words, "answer 2" in part.words, "answer 3" in part.words) == (True, True, False)
    assert "The latest turns" in part.words
    assert not any("key" in fields for _, fields in part.forms), "nothing is said in the middle"


async def test_tokens_of_a_channel_see_and_ask_in_their_own(hand: Hand, operator: httpx.AsyncClient, url: str) -> None:
    page = await begun(operator, hand, script({"text": "secret plans"}))
    await over(hand)
    token = await token_of(hand.tenant.stack, hand.tenant.project, GatewayRole.CLIENT, "u_ada")
    async with visiting(url, token) as ada:
        assert "trip" not in (await look(ada, LIST)).text
        assert (await ada.get(page)).status_code == 403
        assert (await ada.get(page.partition("?")[0])).status_code == 404
        own = await begun(ada, hand, script({"text": "my plans"}))
        assert own == f"{LIST}/{hand.agent}/trip?channel_id=u_ada"
        await over(hand)
        shown = await look(ada, own)
        assert ("my plans" in shown.words, "secret plans" in shown.words) == (True, False)
        assert "secret plans" in (await look(operator, page.partition("?")[0])).words, "the default channel's"


async def test_pages_of_people_take_a_constant_number_of_statements(
    hand: Hand, operator: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 60.0)
    monkeypatch.setattr(routes, "KNOWN_SECONDS", 60.0)
    page = await begun(operator, hand, script(calling("search"), {"text": "one"}))
    await hand.heard()
    await hand.report(hand.commands[0].call)
    await over(hand)
    stack, project = hand.tenant.stack, hand.tenant.project
    counted: list[list[int]] = []
    async with composed(stack) as gateway, visiting("https://here", await token_of(stack, project), gateway) as web:
        for _ in range(2):
            counts: list[int] = []
            turn = await hand.start(calling(("pay", {"amount": 1}), ("pay", {"amount": 2})), conversation_id="trip")
            [question, _] = await asked(hand, turn, 2)
            for address in (
                page,
                LIST,
                f"{LIST}?order=begun",
                "/console/approvals",
                f"/console/approvals/{question.id}",
            ):
                await look(web, address)  # token, count and labels are known now
                before = gateway.pool.round_trips
                await look(web, address)
                counts.append(gateway.pool.round_trips - before)
            counted.append(counts)
            await hand.tenant.client.request("stop", {"agent_turn_id": turn})
            await hand.ended(turn)
            await say(operator, page, script(calling("search", "search"), {"text": "two"}))
            await hand.heard(len(hand.commands) + 2)
            for command in hand.commands[-2:]:
                await hand.report(command.call)
            await over(hand)
    assert counted == [[4, 2, 2, 2, 3]] * 2


async def test_an_operator_deletes_what_the_page_has_shown(hand: Hand, operator: httpx.AsyncClient) -> None:
    """Bound to the last turn that was seen; who does not operate has no such form."""
    page = await begun(operator, hand, script({"text": "hello"}))
    seen = await look(operator, page)
    await over(hand)
    await say(operator, page, script({"text": "again"}))
    late = await press(operator, seen, "last_turn_id")
    assert (late.status_code, "conversation changed" in Shown(late).words) == (409, True)
    await over(hand)
    gone = await press(operator, await look(operator, page), "last_turn_id")
    assert (gone.status_code, gone.headers["location"].partition("?")[0]) == (303, LIST)

    async def gone_for_good() -> bool:
        return (await operator.get(page)).status_code == 404

    await until(gone_for_good, 60, "the conversation is deleted")
    assert await hand.tenant.count("state.agent_inbox") == 0
