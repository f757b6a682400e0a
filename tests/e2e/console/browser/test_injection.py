"""What strangers write is shown and nothing else: no script of theirs runs, no request leaves, no page breaks.

A text that becomes markup leaves an element with `data-evil`, calls `ran`, or makes a request; one that becomes a
template shows 1337.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.async_api import Page, Request

from tests.e2e.console.conftest import Seats
from tests.support.console.letters import dead_letter
from tests.support.console.windows import Window
from tests.support.gateway import client
from tests.support.people import Person
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.ledger.access.tokens import add_token
from turnstile.ledger.roster import add_agent
from turnstile.schema.access import GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.people.approvals import ApprovalRule, Decision

RAN = "window.__ran.push"
TEXTS = (
    f"<script data-evil>{RAN}('script')</script>",
    f"<img data-evil src=x onerror=\"{RAN}('img')\">",
    f'"><svg data-evil onload="{RAN}(\'svg\')">',
    f"' data-evil onmouseover='{RAN}(1)' onfocus='{RAN}(2)' autofocus tabindex='1",
    f'" data-evil onmouseover="{RAN}(3)" onfocus="{RAN}(4)" autofocus tabindex="1',
    '</textarea></pre></title></script><iframe data-evil srcdoc="<script>parent.__ran.push(7)</script>"></iframe>',
    "<style data-evil>main { display: none }</style><base data-evil href='https://evil.example/'>",
    "<meta data-evil http-equiv='refresh' content='0; url=https://evil.example/'>",
    "<form data-evil action='https://evil.example/'><input data-evil name=csrf></form>",
    "{{ 191 * 7 }}{% for each in [1] %}{{ 191 * 7 }}{% endfor %}${191 * 7}#{191 * 7}",
    "\u202egnirts desrever\u202c \u200b\u2066bidi\u2069 \ufeff\u0007",
    f"<!--><img data-evil src=x onerror=\"{RAN}('comment')\">-->]]>",
    f"<math data-evil><mtext><table><mglyph><style><img data-evil src=x onerror=\"{RAN}('math')\">",
)
"""Texts for names, labels and values."""
MARKDOWN = (
    *(f"[a link]({name}:{RAN}(8))" for name in ("javascript", "JaVaScRiPt", "vbscript", "java&#10;script")),
    f"[data](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==) <javascript:{RAN}('auto')>",
    f'![an image](https://evil.example/pixel.png "x" onerror="{RAN}(\'image\')")',
    "![tracking](//evil.example/pixel.png) [//](//evil.example) [home](/console/leave)",
    f"[reference]: javascript:{RAN}('reference)')\n\n[reference]",
    f"| a | b |\n|---|---|\n| <img data-evil src=x onerror={RAN}('cell')> | [x](javascript:{RAN}('cell')) |",
    f"```html\n<script data-evil>{RAN}('fence')</script>\n```\n\n`<img data-evil src=x onerror={RAN}('code')>`",
    f'[quoted](https://example.org/"onmouseover="{RAN}(5) "title\\" data-evil onmouseover=\\"{RAN}(6)")',
    "# " + "long" * 400,
    "> " * 60 + "deep",
    "- " * 60 + "deep",
)
"""Texts for what is read as Markdown."""
NAME = "".join(TEXTS[:2])[:128]
"""A name of a profile."""
EVERYTHING = "\n\n".join((*TEXTS, *MARKDOWN))


def everywhere() -> JsonObject:
    """JSON with all of it, as names and as values."""
    return {text: [text, {text: None}] for text in (*TEXTS, *MARKDOWN)}


MALLORY = AgentId("mallory")
_POKE = r"""
() => {
  for (const each of document.querySelectorAll('details')) each.open = true;
  for (const each of document.querySelectorAll('body *')) {
    for (const name of ['mouseover', 'mouseenter', 'focus', 'pointerenter', 'load', 'error'])
      each.dispatchEvent(new Event(name));
  }
  const addresses = ['href', 'src', 'action', 'formaction', 'data'];
  return {
    elements: document.querySelectorAll('[data-evil]').length,
    frames: document.querySelectorAll('iframe, object, embed, base, meta[http-equiv]').length,
    handlers: [...document.querySelectorAll('body *')].flatMap((each) => each.getAttributeNames())
      .filter((name) => name.startsWith('on')),
    schemes: [...document.querySelectorAll('*')].flatMap((each) => addresses.map((name) => each.getAttribute(name)))
      .filter((value) => value && /^\s*[a-z][a-z0-9+.-]*:/i.test(value) && !/^(https?|mailto):/i.test(value)),
    images: document.querySelectorAll('main img:not([src^="/console/static/"])').length,
    templates: document.body.innerText.split('1337').length - 1,
    hidden: getComputedStyle(document.querySelector('main')).display === 'none',
    unseen: /[\u202a-\u202e\u2066-\u2069\u200b\ufeff]/.test(document.body.innerText),
  };
}
"""
_HARMLESS: dict[str, Any] = {
    "elements": 0,
    "frames": 0,
    "handlers": [],
    "schemes": [],
    "images": 0,
    "templates": 0,
    "hidden": False,
    "unseen": False,
}


@dataclass
class Looked:
    """A window on pages that strangers have filled."""

    window: Window
    left: list[str] = field(default_factory=list[str])
    """Requests to other places than the gateway."""

    def watch(self, page: Page) -> None:
        """Note where requests go."""
        own = urlsplit(self.window.url).netloc

        def on_request(request: Request) -> None:
            if urlsplit(request.url).netloc != own and not request.url.startswith("data:"):
                self.left.append(request.url)

        page.on("request", on_request)

    async def harmless(self, path: str, *words: str) -> None:
        """Open a page, wait until it shows these words, and touch all that is on it."""
        await self.window.open(path)
        await self.window.shows(*words)
        found: dict[str, Any] = await self.window.page.evaluate(_POKE)
        assert found == _HARMLESS, f"{path}: {found}"
        assert self.left == [], path
        assert urlsplit(self.window.page.url).path == path.partition("?")[0]
        await self.window.check()


@pytest.fixture
async def looked(people: Seats) -> Looked:
    """A window of an operator."""
    made = Looked(await people.seat())
    made.watch(made.window.page)
    return made


@pytest.fixture
async def hand(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose profile, model, tools and answers are a stranger's."""
    tool = definition(
        "search",
        description=EVERYTHING,
        parameters={"type": "object", "properties": {text: {"description": text} for text in TEXTS}},
    )
    rules = {"search": ApprovalRule(description=EVERYTHING[:4000], requester_may_decide=True)}
    fields: dict[str, Any] = {
        "system_prompt_template": EVERYTHING.replace("{", "("),
        "tags": list(TEXTS),
        "allowed_tools": ["search", "ask_human"],
        "interrupt_on": rules,
    }
    async with hand_of(tenant, tool, **fields) as made:
        await tenant.profile(NAME, "player", **fields)
        await add_agent(tenant.pool, tenant.project, MALLORY, NAME, display_name=EVERYTHING[:200])
        yield made


async def test_a_turn_with_its_call_and_its_answer(looked: Looked, hand: Hand) -> None:
    """A turn, its tree, its approval open and decided, and its call, from instruction to deliverable."""
    tenant = hand.tenant
    turn = await hand.start(
        calling(("search", everywhere()), text=EVERYTHING),
        {"text": EVERYTHING},
        correlation_id=TEXTS[1],
        metadata={"note": EVERYTHING},
    )
    person = Person(tenant)
    [asked] = await person.asked()
    await looked.harmless("/console", "search")
    await looked.harmless("/console/approvals", "search")
    await looked.harmless(f"/console/approvals/{asked.interrupt_id}", "search", "Approve")
    await person.decide(asked, message=EVERYTHING[:4000])
    call = call_of(turn)
    await hand.called(call)
    await looked.harmless("/console/calls", "search")
    await looked.harmless(f"/console/calls/{call}", "search")
    await hand.report(call, {"found": everywhere()})
    await hand.ended(turn)
    for path in (f"/console/turns/{turn}", f"/console/turns/{turn}/tree", f"/console/approvals/{asked.interrupt_id}"):
        await looked.harmless(path, "alice")


async def test_a_turn_that_fails_in_a_strangers_words(looked: Looked, hand: Hand) -> None:
    said: JsonObject = {"text": "x", "error": {"code": "refused", "message": EVERYTHING, "retryable": False}}
    turn = await hand.start(calling("search"), said)
    person = Person(hand.tenant)
    [asked] = await person.asked()
    await person.decide(asked, Decision.REJECT, message=EVERYTHING[:4000])
    await hand.ended(turn)
    await looked.harmless(f"/console/turns/{turn}", "failed")
    await looked.harmless(f"/console/approvals/{asked.interrupt_id}", "rejected")


async def test_a_question_and_its_choices(looked: Looked, hand: Hand) -> None:
    asks: JsonObject = {"question": EVERYTHING[:4000], "choices": list(TEXTS[:8])}
    await hand.start(calling(("ask_human", asks)), {"text": "so be it"})
    [asked] = await Person(hand.tenant).asked()
    await looked.harmless("/console/approvals")
    await looked.harmless(f"/console/approvals/{asked.interrupt_id}")


async def test_a_conversation(looked: Looked, hand: Hand) -> None:
    told = await hand.start({"text": EVERYTHING}, conversation_id="chat")
    await hand.ended(told)
    await looked.harmless("/console/conversations", "chat")
    await looked.harmless(f"/console/conversations/{ALICE}/chat")


async def test_text_that_streams(looked: Looked, hand: Hand) -> None:
    """Pieces are appended as they come: not even a whole element in one piece is one."""
    turn = await hand.start({"text": EVERYTHING, "chunks": 4, "delay_seconds": 0.4})
    await looked.window.open(f"/console/turns/{turn}")
    await looked.window.shows("data-evil")
    await looked.harmless(f"/console/turns/{turn}")
    await hand.ended(turn)


async def test_the_roster(looked: Looked, hand: Hand) -> None:
    name = quote(NAME, safe="")
    assert hand.agent == ALICE
    for path in ("/console/agents", f"/console/agents/{MALLORY}", f"/console/profiles/{name}", "/console/tools"):
        await looked.harmless(path)


async def test_a_model_that_nobody_has(looked: Looked, hand: Hand) -> None:
    """Its name stands in costs, in attempts and in errors."""
    turn: AgentTurnId = await hand.start({"text": "never"}, runtime_config={"model": f"scripted/{TEXTS[1]}"})
    await hand.ended(turn)
    await looked.harmless(f"/console/turns/{turn}", "failed")
    await looked.harmless("/console/costs")
    await looked.harmless("/console")


async def test_a_dead_letter_and_the_label_of_a_token(looked: Looked, hand: Hand) -> None:
    tenant, said = hand.tenant, '{"steps": [{"text": "Good morning."}]}'
    secret, _ = await tenant.pool.run(
        lambda conn: add_token(conn, tenant.project, GatewayRole.OPERATOR, label=NAME[:100])
    )
    async with client(looked.window.url, secret.text) as web:
        asked: JsonObject = {"agent_id": hand.agent, "instruction": said, "conversation_id": "desk"}
        assert (await web.post("/v1/turns", json=asked, headers={"prefer": "wait=20"})).status_code == 201
    await looked.harmless(f"/console/conversations/{ALICE}/desk", "Good morning.", "data-evil")
    async with dead_letter(tenant, ALICE, EVERYTHING, said):
        await tenant.rows(
            "INSERT INTO state.rejections (project_id, source, error_code, error, ids)"
            " VALUES ($1, 'report', $2, $2, jsonb_build_object($2::text, $2::text))",
            *(tenant.project, EVERYTHING),
        )
        await looked.harmless("/console/letters", "data-evil")


@pytest.mark.parametrize("text", [TEXTS[1], TEXTS[2], "{{ 191 * 7 }}", "javascript:alert(1)"])
async def test_what_stands_in_an_address(looked: Looked, text: str) -> None:
    """A link that somebody sends: unknown names, searches and codes are shown as text, or not at all."""
    found = quote(text, safe="")
    page = looked.window.page
    for path in (
        f"/console/turns/{found}",
        f"/console/agents/{found}",
        f"/console/profiles/{found}",
        f"/console/session?told={found}",
        f"/console/turns?q={found}",
        f"/console/enter?next={found}",
        f"/console/approvals?status={found}",
    ):
        await page.goto(f"{looked.window.url}{path}")
        assert (await page.evaluate(_POKE)) == _HARMLESS, path
    assert looked.left == []
