"""Schedules on the whole: put by the command, fired by the bridge, each time at most once (protocol §20)."""

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.delegation import answer, says, steps
from tests.support.gateway import asking, composed, token_of
from tests.support.tenants import Tenant
from tests.support.tools import calling
from tests.turnstile.support import turnstile
from turnstile import Client
from turnstile.schema.access import GatewayRole, read_secret
from turnstile.schema.ids import AgentTurnId
from turnstile.sdk.nats_turns import NatsBackend

pytestmark = pytest.mark.shared_stack

DAILY = """
schedule_id: daily
agent_id: alice
instruction: report
cron: 0 9 * * *
timezone: Europe/Berlin
"""
FIRINGS = (
    "SELECT f.nominal_at, f.agent_turn_id, f.code, i.correlation_id, i.context_headers ->> 'CG-Sender' AS sender"
    " FROM state.schedule_firings f LEFT JOIN state.agent_inbox i ON i.agent_turn_id = f.agent_turn_id"
    " AND i.message_type = 'turn' WHERE f.project_id = $1 AND f.schedule_id = $2 ORDER BY f.nominal_at"
)


async def firings_of(tenant: Tenant, schedule: str, count: int = 1) -> list[dict[str, Any]]:
    """The firings of a schedule, as soon as there are so many."""

    async def there() -> list[dict[str, Any]] | None:
        rows = await tenant.rows(FIRINGS, tenant.project, schedule)
        return rows if len(rows) >= count else None

    return await until(there, 25, f"{count} firings of {schedule}")


async def test_a_schedule_of_the_command_makes_a_turn_at_each_of_its_times(tenant: Tenant, tmp_path: Path) -> None:
    agent = await tenant.agent("plain")

    async def schedule(*arguments: str) -> Any:
        options = ("--config", str(tenant.stack.config), "--project", tenant.project, "--json")
        ran = await turnstile("schedule", *arguments, *options, cwd=tmp_path, TURNSTILE_PRINCIPAL="me")
        assert ran.code == 0, ran.err
        return ran.json()

    file = tmp_path / "daily.yaml"
    file.write_text(DAILY)
    [daily, put] = await schedule("put", "tick", "go", "--agent", agent, "--every", "1s", "--file", str(file))
    assert (put["schedule_id"], put["owner"], daily["schedule_id"]) == ("tick", "me", "daily")
    firings = await firings_of(tenant, "tick", 3)
    gaps = [later["nominal_at"] - sooner["nominal_at"] for sooner, later in pairwise(firings)]
    assert all(gap % timedelta(seconds=1) == timedelta() and gap for gap in gaps)
    for firing in firings:
        name = firing["nominal_at"].isoformat().replace("+00:00", "Z")
        assert (firing["correlation_id"], firing["sender"]) == (f"schedule:tick@{name}", "me")
    assert (await tenant.ended(AgentTurnId(firings[0]["agent_turn_id"]))).view.status == "success"
    assert [line["schedule_id"] for line in await schedule("list")] == ["daily", "tick"]


async def test_a_schedule_over_http_is_its_token_s_and_triggers_once_for_a_key(tenant: Tenant) -> None:
    agent, settings = await tenant.agent("plain"), {"instruction": "go", "cron": "0 9 * * *", "timezone": "Asia/Tokyo"}
    client = GatewayRole.CLIENT
    mine, other = [await token_of(tenant.stack, tenant.project, client) for _ in range(2)]
    owner = read_secret(mine)
    assert owner is not None
    async with composed(tenant.stack) as gateway, asking(gateway, mine) as web, asking(gateway, other) as stranger:
        made = await web.put("/v1/schedules/daily", json={**settings, "agent_id": agent})
        assert made.status_code == 200, made.text
        assert (made.json()["owner"], len(made.json()["upcoming"])) == (f"token.{owner.token_id}", 5)
        for method, path in (("DELETE", ""), ("POST", "/pause"), ("POST", "/trigger")):
            answer = await stranger.request(method, f"/v1/schedules/daily{path}")
            assert (answer.status_code, answer.json()["code"]) == (403, "not_yours")
        key = {"idempotency-key": "now"}
        first, again = [await web.post("/v1/schedules/daily/trigger", headers=key) for _ in range(2)]
        assert (first.status_code, again.json()) == (202, first.json() | {"duplicate": True})
        await tenant.ended(first.json()["agent_turn_id"])
        boss = Client.over(NatsBackend(tenant.stack.conn, tenant.client))  # an operator, over NATS
        assert (await boss.pause_schedule("daily")).paused_because == "paused"
        assert (await web.post("/v1/schedules/daily/resume")).json()["paused_at"] is None
        assert [view.schedule_id for view in await boss.schedules()] == ["daily"]
        await tenant.ended(await boss.trigger_schedule("daily"))
        weekly = await boss.put_schedule("weekly", "go", agent_id=agent, cron="0 9 * * 1")
        assert await boss.remove_schedule("weekly") == weekly
        [line] = (await stranger.get("/v1/schedules")).json()["schedules"]
        assert line["last"]["triggered_by"] == tenant.client.caller.name
        assert (await web.delete("/v1/schedules/daily")).status_code == 200
        assert (await web.get("/v1/schedules/daily")).status_code == 404
        wrong = await web.put("/v1/schedules/daily", json={**settings, "agent_id": agent, "cron": "0 9 30 2 *"})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_request")


async def test_an_agent_wakes_itself_in_its_conversation_for_its_requester(tenant: Tenant) -> None:
    """By the tool that its profile names alone: no delegation policy, no row."""
    agent = await tenant.agent("player", allowed_tools=["wake_me"])
    asked = {"instruction": says("woken"), "in_seconds": 1}
    first = await tenant.turn(agent, steps(calling(("wake_me", asked)), {"text": "later"}), conversation_id="talk")
    result: Any = answer(first).result
    assert (result["status"], first.view.status) == ("accepted", "success")
    [firing] = await firings_of(tenant, result["schedule_id"])
    woken = await tenant.ended(AgentTurnId(firing["agent_turn_id"]))
    assert (woken.view.status, woken.view.conversation_id, woken.view.output_box_id) == (
        "success",
        "talk",
        first.view.output_box_id,
    )
    [root] = await tenant.rows(
        "SELECT context_headers ->> 'CG-Sender' AS sender FROM state.agent_inbox"
        " WHERE agent_turn_id = $1 AND message_type = 'turn'",
        first.view.agent_turn_id,
    )
    assert firing["sender"] == root["sender"]
    assert "woken" in str([card.content for card in woken.cards])
