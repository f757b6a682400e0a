"""Deletion from the outside: what a person said is nowhere in the database afterwards, and others keep theirs."""

import json
from typing import Any

from tests.support.conditions import until
from tests.support.delegation import CHIEF, fork, staff, steps, task
from tests.support.gateway import client, serving, token_of
from tests.support.ledger.invariants import assert_invariants
from tests.support.tenants import CHANNEL, Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from turnstile.ledger.pushes.receivers import set_receiver
from turnstile.ledger.pushes.webhooks import put_webhook, turn_webhook
from turnstile.ledger.roster import add_agent
from turnstile.schema.access import Caller, GatewayRole
from turnstile.schema.ids import AgentId, ReceiverId
from turnstile.schema.wire.limits import Maker
from turnstile.schema.wire.webhook_requests import WebhookEvent

MARK, ADA, BOB = "m4rk3r", "ada+m4rk3r@example.org", "bob"
TALK, SHARED = f"thread:19:{MARK}@thread/tacv2", "C0B-1784622590.251599"
ROOT = Caller("root", operates=True)


async def traces(tenant: Tenant, text: str) -> dict[str, int]:
    """The tables of the whole database in which a row has the text in any column, as a dump would show it."""
    tables = await tenant.rows(
        "SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'm')"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
    )
    found: dict[str, int] = {}
    for table in tables:
        statement = f"SELECT count(*) AS n FROM {table['name']} t WHERE strpos(t::text, $1) > 0"  # noqa: S608 -- of the catalogue
        [row] = await tenant.rows(statement, text)
        found[table["name"]] = row["n"]
    return {name: count for name, count in found.items() if count}


async def test_nothing_is_left_of_an_end_user_while_others_go_on(tenant: Tenant) -> None:
    """Their turns run, sleep, wait, ask people, have children, steers, receivers and webhooks; Bob shares a talk."""
    token = await token_of(tenant.stack, tenant.project, GatewayRole.OPERATOR)
    await staff(tenant)
    chats = await tenant.agent("chat", agent=AgentId("chatter"))
    async with hand_of(tenant) as hand, serving(tenant.stack) as url, client(url, token) as web:
        await tenant.turn(chats, "I am Bob", conversation_id=SHARED, end_user=BOB)
        await tenant.turn(chats, f"I am {MARK}", conversation_id=SHARED, end_user=ADA)
        await add_agent(tenant.pool, tenant.project, AgentId("his"), f"{hand.agent}-profile")
        said = json.dumps({"steps": [calling("search")]})
        kept = turn_of(await tenant.enqueue(AgentId("his"), said, end_user=BOB, conversation_id="his"))
        await hand.called(call_of(kept))
        answered = await hand.start(
            calling(("search", {"q": MARK})), end_user=ADA, conversation_id=TALK, metadata={"note": MARK}
        )
        await hand.called(call_of(answered))
        await hand.report(call_of(answered), f"found {MARK}")
        await hand.ended(answered)
        asleep = await hand.start(
            calling(("search", {"q": MARK})), end_user=ADA, conversation_id=TALK, correlation_id=MARK
        )
        await hand.called(call_of(asleep))
        steer = {"agent_turn_id": asleep, "text": f"hear {MARK}", "correlation_id": f"steer-{MARK}"}
        assert (await tenant.client.request("steer", steer, caller=ROOT))["status"] == "accepted"
        where, url_of_mark = (tenant.project, CHANNEL, asleep), f"https://127.0.0.1:1/{MARK}"
        receiver: dict[str, Any] = {"url": url_of_mark, "token": MARK, "maker": Maker("me")}
        await tenant.pool.run(lambda conn: set_receiver(conn, *where, ReceiverId("r"), **receiver))
        hook: dict[str, Any] = {"url": url_of_mark, "secret": MARK, "events": list(WebhookEvent), "maker": Maker("me")}
        await tenant.pool.run(
            lambda conn: put_webhook(conn, *where[:2], turn_webhook(asleep, Maker("me")), agent_turn_id=asleep, **hook)
        )
        queued = turn_of(await tenant.enqueue(hand.agent, f"late {MARK}", end_user=ADA, conversation_id=TALK))
        parent = await tenant.turn(CHIEF, steps(fork([task(instruction=steps({"text": MARK}))])), end_user=ADA)
        [child] = await tenant.rows(
            "SELECT payload ->> 'end_user' AS end_user FROM state.agent_inbox WHERE agent_turn_id IN"
            " (SELECT agent_turn_id FROM state.turn_nodes WHERE parent_turn_id = $1)",
            parent.view.agent_turn_id,
        )
        assert child["end_user"] == ADA
        listed = (await web.get("/v1/turns", params={"end_user": ADA})).json()["turns"]
        assert {turn["agent_turn_id"] for turn in listed} >= {asleep, answered, queued}
        assert {turn["end_user"] for turn in listed} == {ADA}

        gone = await web.request("DELETE", "/v1/end_users", params={"end_user": ADA})
        assert gone.status_code == 202, gone.text
        deletion = gone.json()["deletion_id"]
        refused = await tenant.ask({"agent_id": chats, "instruction": "x", "end_user": ADA})
        assert refused.error_code in (None, "being_deleted")  # it may be done by now

        async def done() -> bool:
            return (await web.get(f"/v1/deletions/{deletion}")).json()["status"] == "done"

        await until(done, 60, "the deletion is done")
        if refused.error_code is None:
            await hand.ended(turn_of(refused))
        assert await traces(tenant, MARK) == {}
        assert (await tenant.turn(chats, "who?", conversation_id=SHARED, end_user=BOB)).deliverable() == (
            "You said: who? (before that: I am Bob)"
        )
        await hand.report(call_of(kept), "found")
        assert (await hand.ended(kept)).view.status == "success"
        async with tenant.pool.connection() as conn:
            await assert_invariants(conn)
