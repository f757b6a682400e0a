"""Nothing of another project or channel is on a page, or is changed by one (protocol §14.3, §14.5).

Every page of the console, with an id of the other in every place of its address, and in every parameter: each is
answered as with an id that nobody has.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from tests.e2e.gateway.test_tenants import SECRET, TIMES, WORD, Ids, Sides, nobodys
from tests.e2e.gateway.test_tenants import gateway as gateway  # noqa: PLC0414 -- a fixture
from tests.e2e.gateway.test_tenants import sides as sides  # noqa: PLC0414 -- a fixture
from tests.e2e.projects.test_tenants import rows_of
from tests.support.console.visiting import forms_of, visiting
from tests.support.tools import call_of
from turnstile.gateway.console.page import Page
from turnstile.schema.ids import AgentTurnId, uuid7

FORMS: Mapping[str, Mapping[str, str]] = {
    "agent_status": {"action": "pause"},
    "report_call": {"status": "success", "kind": "text", "result": "forged", "message": ""},
    "raise_budget": {"tokens": "5", "usd": "", "turns": "", "key": "k", "action": "raise"},
    "limit_project": {"tokens": "", "usd": "", "turns": "", "key": "k", "action": "nothing"},
    "stop_turn": {"reason": "forged"},
    "steer_turn": {"text": "forged", "priority": "asap", "key": "k"},
    "rerun_turn": {"from_step": "", "model": "", "key": "k"},
    "decide": {"decision": "approve", "digest": "", "note": "forged"},
    "begin_chat": {"text": "", "to": "", "conversation": "", "channel": "", "key": "k"},
    "say": {"text": "forged", "how": "nothing", "turn": "", "key": "k"},
    "stop_chat": {"turn": ""},
    "delete_chat": {"last_turn_id": "nobodys"},
    "schedule_change": {"action": "pause", "key": "k"},
}
"""What each form says: it would be accepted, but for the ids, or for what could change what is one's own."""
STREAMS = {"changes", "conversation_events"}
_MOMENT = re.compile(r"<time[^>]*>[^<]*</time>")
_FIGURE = re.compile(r"\d[\d.,]*\s?(ms|min|s|h|d)\b(\s\d+ (s|min|h)\b)?")
_DRAWN = re.compile(r"\b[0-9a-f]{64}\b|\bchat-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")


def places(its: Ids) -> dict[str, str]:
    """The id for each name of a place in an address, or of a parameter."""
    return {
        **dict.fromkeys(("turn_id", "turn", "agent_turn_id", "q", "of", "budget_id", "again", "schedule_id"), its.turn),
        **dict.fromkeys(("agent_id", "agent"), its.agent),
        **dict.fromkeys(("name", "profile"), its.profile),
        **dict.fromkeys(("channel", "channel_id"), its.channel),
        **dict.fromkeys(("interrupt_id", "then"), its.interrupt),
        "conversation_id": its.conversation,
        "tool_call_id": call_of(AgentTurnId(its.waiting)),
        "tool": its.tool,
        "card_id": f"{its.turn}-deliverable",
        "cursor": its.cursor,
        "period": "day",
    }


def asked_of(page: Page, own: Ids, its: Ids) -> Iterator[tuple[str, dict[str, str]]]:
    """Addresses and queries of a page, each with something foreign."""
    mine, theirs = places(own), places(its)
    names = re.findall(r"\{(\w+)", page.path)
    path = re.sub(r"\{(\w+)[^}]*\}", lambda found: theirs[found[1]], page.path)
    yield path, {}
    path = re.sub(r"\{(\w+)[^}]*\}", lambda found: mine[found[1]], page.path)
    for name in page.query.model_fields:
        if name in theirs:
            yield path, {name: theirs[name]}
    if len(names) > 1:
        for one in names:
            yield (
                re.sub(
                    r"\{(\w+)[^}]*\}", lambda found, one=one: (theirs if found[1] == one else mine)[found[1]], page.path
                ),
                {},
            )


async def answer_of(web: httpx.AsyncClient, page: Page, path: str, query: dict[str, str], csrf: str, used: Ids) -> Any:
    """What is answered, without the ids that were asked with and what is drawn anew each time."""
    if page.method == "GET":
        answer = await web.get(path, params=query)
    else:
        answer = await web.post(path, params=query, data={**FORMS[page.name], "csrf": csrf})
    text = answer.text
    assert SECRET not in text, (path, query)
    ids = {*vars(used).values(), *places(used).values()} - {"day"}
    for each in sorted(ids, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(each)}(?!\w)", "ID", text)
    for pattern, word in ((_MOMENT, "T"), (_DRAWN, "DRAWN"), (TIMES, "T"), (WORD, "ID"), (_FIGURE, "N")):
        text = pattern.sub(word, text)
    assert answer.status_code < 500, (path, query, text)
    return answer.status_code, re.sub(r"\w{8}…\w{6}", "ID", text)


async def test_what_is_anothers_is_shown_like_what_is_not_there(sides: Sides) -> None:
    same_project = sides.asks.agent == sides.its.agent
    agent, profile = (sides.its.agent, sides.its.profile) if same_project else (f"a-{uuid7()}", f"p-{uuid7()}")
    before = await rows_of(sides.other)
    async with visiting("https://here", sides.token, sides.gateway) as web:
        [form, *_] = forms_of((await web.get("/console/session")).text)
        for page in sides.gateway.pages:
            if page.name in STREAMS:
                continue
            nobody = nobodys(agent, profile, sides.its)
            foreign, drawn = asked_of(page, sides.asks, sides.its), asked_of(page, sides.asks, nobody)
            for (path, query), (unknown, nothing) in zip(foreign, drawn, strict=True):
                if same_project and page.method == "POST" and page.name in ("agent_status", "limit_project"):
                    continue  # of the project, which both are in
                told = await answer_of(web, page, path, query, form.hidden["csrf"], sides.its)
                expected = await answer_of(web, page, unknown, nothing, form.hidden["csrf"], nobody)
                assert told[0] == expected[0], (page.name, path, query)
                differing = [*difflib.unified_diff(expected[1].splitlines(), told[1].splitlines(), n=0, lineterm="")]
                assert not differing, (page.name, path, query, differing[:8])
    if not same_project:
        assert await rows_of(sides.other) == before


async def test_its_own_side_sees_each_of_them(sides: Sides) -> None:
    """Else it would prove nothing."""
    async with visiting("https://here", sides.its_token, sides.gateway) as web:
        known = places(sides.its)
        for page in sides.gateway.pages:
            if page.method == "GET" and page.name not in STREAMS and "{" in page.path:
                path = re.sub(r"\{(\w+)[^}]*\}", lambda found: known[found[1]], page.path)
                assert (await web.get(path)).status_code == 200, path
        assert SECRET in (await web.get(f"/console/turns/{sides.its.turn}")).text


async def test_every_form_is_tried(sides: Sides) -> None:
    assert {page.name for page in sides.gateway.pages if page.method == "POST"} == FORMS.keys()
    for page in sides.gateway.pages:
        if page.method == "POST":
            assert FORMS[page.name].keys() <= page.form.model_fields.keys(), page.name
