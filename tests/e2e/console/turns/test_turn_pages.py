"""The pages Now, Turn and Tree: what they show of turns, and what may be done on them."""

import csv
import io
import json
import re
from urllib.parse import quote

import httpx
import pytest

from tests.e2e.people.asking import PAY, asked
from tests.e2e.turns.test_stops import streaming
from tests.support.console.visiting import send, visiting, words_of
from tests.support.delegation import chief_says, fork, says, staff, steps, task
from tests.support.gateway import token_of
from tests.support.tenants import ALICE, Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from turnstile.gateway.console.turns import turn_page
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, ProjectId

SLOW = says("All of this takes long. " * 5, chunks=100, delay_seconds=30)
FAILS = steps({"error": {"code": "model_error", "message": "no"}})
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202egnp"


async def shown(web: httpx.AsyncClient, address: str, status: int = 200) -> str:
    """What a page says."""
    answer = await web.get(address)
    assert answer.status_code == status, answer.text
    return words_of(answer.text)


def of(turn: AgentTurnId) -> str:
    """A turn's page."""
    return f"/console/turns/{turn}"


async def test_now_says_what_each_live_turn_waits_for(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    assert "Nothing runs now" in await shown(operator, "/console")
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}) as hand:
        turn = await hand.start(calling(("pay", {"amount": 5})))
        await asked(hand, turn)
        behind = turn_of(await tenant.enqueue(ALICE, says("later")))
        page = (await operator.get("/console")).text
        words = words_of(page)
        assert "all live 2" in words
        assert "waiting for people 1" in words
        assert "a person, about pay" in words
        assert "its agent, which is busy with another turn" in words
        assert page.index(turn) < page.index(behind), "who waits for people comes first"
        assert turn not in (await operator.get("/console?state=queued")).text
        assert turn in (await operator.get(f"/console?state=people&agent={ALICE}")).text
        assert "No live turn matches" in await shown(operator, "/console?agent=nobody")
        for each in (behind, turn):
            stopped = await send(operator, of(each), f"{of(each)}/stop", {"reason": "enough"})
            assert (stopped.status_code, stopped.headers["location"]) == (303, f"{of(each)}?told=stopped")
            await tenant.ended(each)
    words = await shown(operator, "/console")
    assert "canceled stopped" in words


async def test_a_turn_has_its_cards_calls_attempts_and_costs(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        lost: JsonObject = {"error": {"code": "model_overloaded", "message": "slow down"}}
        asked_of: JsonObject = calling(("search", {"q": "tea"}), text="Let me **look**.")
        first: JsonObject = {**asked_of, "usage": {"total_tokens": 120}}
        turn = await hand.start(
            {"attempts": [lost, first]}, {"text": "# Found\n\nIt is [here](https://example.org/a)."}
        )
        await hand.heard()
        live = await shown(operator, of(turn))
        assert "Waits for tool search" in live
        await hand.report(call_of(turn), {"leaves": "green"})
        await hand.ended(turn)
    page = (await operator.get(of(turn))).text
    words = words_of(page)
    for expected in (
        "success",
        "Step 1",
        "Step 2",
        "2 model attempts, 1 failed",
        "model overloaded",
        "search success",
        "Run again from here",
        "queued",
        "attempt 2 at scripted/player",
    ):
        assert expected in words, expected
    assert "<strong>look</strong>" in page
    assert '<a href="https://example.org/a"' in page
    assert "&#34;q&#34;: &#34;tea&#34;" in page
    assert "&#34;leaves&#34;: &#34;green&#34;" in page
    assert '<svg class="timeline"' in page
    assert "style=" not in page
    assert f'id="{turn}-s1"' in page


async def test_a_running_turn_is_steered_and_ended_ones_run_again(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), {"text": "done"})
        fields = {"text": "use less sugar", "priority": "asap"}
        said = await send(operator, of(turn), f"{of(turn)}/steer", fields)
        assert said.headers["location"] == f"{of(turn)}?told=steered"
        words = await shown(operator, said.headers["location"])
        assert "The turn reads your message in its next step." in words.replace("&#39;", "'")
        assert "use less sugar" in words
        await hand.report(call_of(turn))
        await hand.ended(turn)
        assert "use less sugar" in await shown(operator, of(turn))
        late = await send(operator, f"{of(turn)}?again=2", f"{of(turn)}/rerun", {"from_step": "2", "model": ""})
        assert late.status_code == 303, late.text
        again = AgentTurnId(late.headers["location"].removeprefix("/console/turns/").partition("?")[0])
        assert again != turn
        words = await shown(operator, late.headers["location"])
        assert "This turn is a rerun of the other one." in words
        assert "Runs again" in words
        assert again in (await operator.get(of(turn))).text
        assert (await send(operator, of(again), f"{of(again)}/stop")).status_code == 303
        await tenant.ended(again)


async def test_a_form_that_is_sent_twice_is_one_request(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    ended = await tenant.run("player", says("so it is"))
    turn = ended.view.agent_turn_id
    first = await send(operator, of(turn), f"{of(turn)}/rerun", {"key": "k-1", "from_step": "", "model": ""})
    second = await send(operator, of(turn), f"{of(turn)}/rerun", {"key": "k-1", "from_step": "", "model": ""})
    assert first.status_code == second.status_code == 303
    assert first.headers["location"] == second.headers["location"]
    await tenant.ended(AgentTurnId(first.headers["location"].removeprefix("/console/turns/").partition("?")[0]))


async def test_what_is_refused_is_told_with_the_way_back(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    ended = await tenant.run("player", says("so it is"))
    turn = ended.view.agent_turn_id
    page = of(turn)
    csrf = await send(operator, page, f"{page}/rerun", {"from_step": "77", "model": ""})
    assert csrf.status_code >= 400, csrf.text
    assert f'href="{page}"' in csrf.text
    for field, value in (("from_step", "zero"), ("model", "x" * 300)):
        wrong = await send(operator, page, f"{page}/rerun", {"from_step": "", "model": "", field: value})
        assert (wrong.status_code, field in wrong.text) == (400, True), wrong.text


@pytest.mark.parametrize("role", list(GatewayRole))
async def test_roles_see_all_and_may_do_what_is_theirs(url: str, tenant: Tenant, role: GatewayRole) -> None:
    await tenant.agent("player")
    turn = turn_of(await tenant.enqueue(ALICE, SLOW))
    acts = role in (GatewayRole.CLIENT, GatewayRole.OPERATOR)
    async with visiting(url, await token_of(tenant.stack, tenant.project, role)) as web:
        for address in ("/console", "/console/turns", of(turn), f"{of(turn)}/tree"):
            assert (await web.get(address)).status_code == 200
        page = (await web.get(of(turn))).text
        assert (f'action="{of(turn)}/stop"' in page) == acts
        csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
        posted = await web.post(f"{of(turn)}/stop", data={"csrf": csrf, "reason": ""})
        # a client may stop only what it asked for itself, and others nothing
        assert posted.status_code == (303 if role is GatewayRole.OPERATOR else 403), posted.text
        if role is GatewayRole.CLIENT:
            assert "not yours" in words_of(posted.text)
    if role is not GatewayRole.OPERATOR:
        await tenant.client.request("stop", {"agent_turn_id": turn, "reason": "over"})
    await tenant.ended(turn)


async def test_other_projects_and_channels_are_not_there(url: str, tenant: Tenant) -> None:
    ended = await tenant.run("player", says("secret words"))
    turn = ended.view.agent_turn_id
    card = ended.view.deliverable_card_id
    tokens = [
        await token_of(tenant.stack, ProjectId(f"{tenant.project}x")),
        await token_of(tenant.stack, tenant.project, GatewayRole.OPERATOR, "elsewhere"),
    ]
    for token in tokens:
        async with visiting(url, token) as web:
            for address in (of(turn), f"{of(turn)}/tree", f"{of(turn)}/cards/{card}", f"{of(turn)}/events"):
                answer = await web.get(address)
                assert answer.status_code == 404, (address, answer.text)
                assert "secret words" not in answer.text
            own = await web.get("/console/session")
            csrf = own.text.partition('name="csrf" value="')[2].partition('"')[0]
            for action, fields in (("stop", {}), ("steer", {"text": "x", "key": "k"}), ("rerun", {"key": "k"})):
                posted = await web.post(f"{of(turn)}/{action}", data={"csrf": csrf, **fields})
                assert posted.status_code == 404, (action, posted.text)
            for address in ("/console", "/console/turns", f"/console/turns?q={turn}"):
                found = await web.get(address)
                assert (found.status_code, of(turn) in found.text) == (200, False), address
    async with visiting(url, tokens[1]) as web:
        assert (await web.get("/console?channel=public")).status_code == 403
    async with visiting(url, await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER, "public")) as web:
        assert "secret words" in (await web.get(of(turn))).text


async def test_hostile_names_and_cards_are_text(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        line = calling(("search", {"q": HOSTILE, HOSTILE: [HOSTILE]}), text=f"{HOSTILE} [x](javascript:alert(3))")
        turn = await hand.suspended(line, {"text": f"{HOSTILE} done"}, correlation_id=f"order {HOSTILE}"[:200])
        for address in ("/console", of(turn)):
            check(await operator.get(address))
        await hand.report(call_of(turn), {HOSTILE: HOSTILE})
        ended = await hand.ended(turn)
    for address in (
        "/console",
        "/console/turns",
        of(turn),
        f"{of(turn)}/tree",
        f"/console/turns?q={quote(HOSTILE[:40])}",
    ):
        check(await operator.get(address))
    card = await operator.get(f"{of(turn)}/cards/{ended.view.deliverable_card_id}")
    assert (card.status_code, card.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert card.headers["x-content-type-options"] == "nosniff"


def check(answer: httpx.Response) -> None:
    """Nothing of what a stranger wrote is markup, and nothing turns the order of letters round."""
    assert answer.status_code == 200, answer.text
    page = answer.text
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "javascript:alert" not in page.replace("[x](javascript:alert(3))", "")
    assert "\u202e" not in page
    assert "unsafe" not in answer.headers["content-security-policy"]


async def test_a_tree_is_rolled_up_and_its_failed_branch_is_marked(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    await staff(tenant)
    line = fork([task(instruction=says("fine"), label="first"), task(instruction=FAILS, label="second")])
    ended = await chief_says(tenant, line, {"text": "all told"})
    turn = ended.view.agent_turn_id
    words = await shown(operator, f"{of(turn)}/tree")
    assert "1 failed below" in words
    assert "1 of 3 turns failed." in words
    assert "Turns 3" in words.replace("  ", " ")
    page = (await operator.get(of(turn))).text
    assert f'href="{of(turn)}/tree"' in page
    assert "2 of 2 turns are over" in words_of(page)
    branch = await shown(operator, f"{of(turn)}/tree?of={turn}&state=failed")
    assert "second" in branch
    assert "first" not in branch
    assert (await operator.get(f"{of(turn)}/tree?of=nobody")).status_code == 404


async def test_turns_are_found_and_listed_page_by_page(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turns = [(await tenant.turn(ALICE, says("x"), correlation_id=f"order-{n}")).view.agent_turn_id for n in range(2)]
    for text in (turns[0], "order-0"):
        found = await operator.get("/console/turns", params={"q": text})
        assert (found.status_code, found.headers["location"]) == (303, of(turns[0]))
    both = await operator.get("/console/turns", params={"q": turns[0][:3]})
    assert all(turn in both.text for turn in turns)
    assert "No turn has this id or name" in await shown(operator, "/console/turns?q=nothing")
    listed = (await operator.get("/console/turns?status=success")).text
    assert listed.index(turns[1]) < listed.index(turns[0])
    assert "No turn matches" in await shown(operator, "/console/turns?status=failed")
    assert (await operator.get("/console/turns?cursor=wrong")).status_code == 400


async def test_a_turns_stream_comes_for_a_session(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    ended = await tenant.run("player", says("streamed words"))
    streamed = (await operator.get(f"{of(ended.view.agent_turn_id)}/events")).text
    assert "event: outcome" in streamed
    assert json.dumps("streamed words")[1:-1] in streamed


async def test_steps_before_the_last_have_pages_of_their_own(
    operator: httpx.AsyncClient, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_page, "WINDOW", 5)
    monkeypatch.setattr(turn_page, "MOST_STEPS", 8)
    await tenant.agent("player")
    lines = [calling(("unknown", {"n": n}), text=f"said {n}") for n in range(1, 16)]
    turn = (await tenant.turn(ALICE, steps(*lines, {"text": "the end"}))).view.agent_turn_id
    last = (await operator.get(of(turn))).text
    assert [f'id="{turn}-s{n}"' in last for n in (11, 12, 16)] == [False, True, True]
    assert "steps 6 to 13" in last, "the timeline folds what is in the midst"
    early = (await operator.get(f"{of(turn)}?to=6")).text
    assert [f'id="{turn}-s{n}"' in early for n in (1, 2, 6, 7)] == [False, True, True, False]
    assert "Steps before 2" in early
    assert "Steps after 6" in early


async def test_what_is_too_long_for_the_page_is_behind_a_link(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", text="word " * 10_000), {"text": "line " * 2_000})
        await hand.report(call_of(turn), ["leaf " * 10_000])
        ended = await hand.ended(turn)
    page = (await operator.get(of(turn))).text
    assert len(page) < 200_000
    assert "The first 20,000 of 50,000 characters." in page
    links = set(re.findall(rf'href="({of(turn)}/cards/[^"]+)"', page))
    assert f"{of(turn)}/cards/{ended.view.deliverable_card_id}" in links
    texts = [(await operator.get(link)).text for link in links]
    assert any("leaf " * 10_000 in text for text in texts)
    assert any(text == "line " * 2_000 for text in texts)
    assert any(text == "word " * 10_000 for text in texts)


async def test_an_attempt_that_a_stop_cut_short_is_no_failure(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await streaming(hand)
        await send(operator, of(turn), f"{of(turn)}/stop", {"reason": "enough"})
        await hand.ended(turn)
    page = (await operator.get(of(turn))).text
    assert "failed" not in words_of(page).replace("failed attempt", "", 1), "but for the legend"
    assert "cut short" in page
    costs = (await operator.get("/console/costs.csv?by=agent&days=7")).text
    assert [line["failed_attempts"] for line in csv.DictReader(io.StringIO(costs))] == ["0"]
