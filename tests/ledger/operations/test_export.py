"""An export holds every row of its project, as it was at one moment, and none of another's."""

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from tests.support.ledger.agents import ALICE, CAROL, PROJECT, ask, rows, value
from tests.support.ledger.healthy import make_healthy
from tests.support.ledger.invariants import assert_invariants
from tests.support.pump.threads import RESPONSE, talk
from turnstile.ledger.operations.export import LEFT_OUT, TABLES, export_project
from turnstile.ledger.operations.removal import count_rows, remove_rows
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import AgentId, ProjectId

OTHER = ProjectId("other")
OTHERS = {
    *("state.gateway_tokens", "state.push_receivers", "state.webhooks", "state.webhook_events"),
    *("state.deletions", "state.deletion_items"),
}
"""Tables with rows of projects that are no data of theirs: who may ask, and whom to tell."""
HANGING = {"state.thread_segments": "thread_id", "state.thread_replies": "thread_id", "public.box_cards": "box_id"}
"""Tables whose rows say by another row which project they are of."""


async def filled(pool: Pool) -> None:
    """A project with a row in nearly every table, and the same in another one."""
    await make_healthy(pool)
    await (await talk(pool)).do(RESPONSE)
    await pool.run(lambda conn: reject(conn, PROJECT, "verb", "x", "no", {"agent_id": "alice"}))
    await rows(pool, "INSERT INTO boxes (box_id, tenant_id) VALUES (gen_random_uuid(), 'other')")
    await rows(pool, "INSERT INTO resource.tools (project_id, tool_name) VALUES ('p1', 'search'), ('other', 'search')")
    await rows(pool, "INSERT INTO state.agent_state_pointers (project_id, agent_id) VALUES ('other', 'alice')")
    await rows(
        pool, "INSERT INTO state.past_costs (project_id, channel_id, day, model) VALUES ('p1', 'public', now(), 'm')"
    )
    await rows(
        pool,
        "INSERT INTO resource.schedules (project_id, schedule_id, channel_id, owner, settings, timing, anchor_at)"
        " SELECT p, 's', 'public', 'ada', '{}', '{}', now() FROM unnest(ARRAY['p1', 'other']) p",
    )
    await rows(
        pool,
        "INSERT INTO state.schedule_firings (firing_id, project_id, schedule_id, nominal_at, code)"
        " SELECT 'f' || project_id, project_id, schedule_id, now(), 'missed' FROM resource.schedules",
    )
    await rows(
        pool,
        "INSERT INTO resource.artifacts (project_id, artifact_id, storage_uri)"
        " VALUES ('p1', 'f', 's3://b/f'), ('other', 'f', 's3://b/f')",
    )
    await rows(
        pool,
        "INSERT INTO cards (card_id, tenant_id, content, metadata)"
        ' SELECT card, project, \'{}\', \'{"artifacts": ["f"], "channel_id": "public"}\''
        " FROM (VALUES ('loose', 'p1'), ('theirs', 'other')) v (card, project)",
    )
    await ask(pool, conversation_id="c1")


async def exported(pool: Pool, project: ProjectId = PROJECT, *agents: AgentId) -> list[Any]:
    """The lines as objects."""
    async with aclosing(export_project(pool, project, agents)) as lines:
        return [json.loads(line.text) async for line in lines]


def by_table(lines: list[Any]) -> dict[str, list[Any]]:
    """The rows of each table."""
    return {table: [line["row"] for line in lines[1:-1] if line["table"] == table] for table in TABLES}


async def in_tables(pool: Pool, tables: Iterable[str] = TABLES) -> dict[str, list[Any]]:
    """All rows of these tables as JSON."""
    found: dict[str, list[Any]] = {}
    for table in tables:
        read = await rows(pool, f"SELECT to_jsonb(x)::text AS row FROM {table} x")  # noqa: S608 -- constants
        found[table] = [json.loads(each["row"]) for each in read]
    return found


def ordered(found: list[Any]) -> list[str]:
    """Comparable whatever their order."""
    return sorted(json.dumps(each, sort_keys=True) for each in found)


async def test_every_row_of_the_project_and_no_other_comes_back(pool: Pool) -> None:
    await filled(pool)
    lines = await exported(pool)
    header, read, trailer = lines[0], by_table(lines), lines[-1]
    assert (header["format"], header["version"], header["project_id"]) == ("turnstile-export", 1, PROJECT)
    assert trailer == {"end": True, "rows": {table: len(found) for table, found in read.items()}}
    for table, found in (await in_tables(pool)).items():
        mine = [row for row in found if row.get("project_id", row.get("tenant_id", PROJECT)) == PROJECT]
        assert ordered(read[table]) == ordered(mine), table
        if not table.startswith("state.pmo"):
            assert read[table], table


async def test_every_table_is_exported_or_left_out_for_a_reason(pool: Pool) -> None:
    listed = await rows(
        pool,
        "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables"
        " WHERE table_type = 'BASE TABLE' AND table_schema IN ('public', 'resource', 'state')",
    )
    assert {row["name"] for row in listed} == {*TABLES, *LEFT_OUT}
    named = await rows(
        pool,
        "SELECT table_schema || '.' || table_name AS name FROM information_schema.columns"
        " WHERE column_name IN ('project_id', 'tenant_id')"
        " AND (table_schema, table_name) IN (SELECT table_schema, table_name FROM information_schema.tables"
        " WHERE table_type = 'BASE TABLE')",
    )
    assert {row["name"] for row in named} == {*TABLES, *OTHERS} - {*HANGING}


async def test_an_export_shows_one_moment(pool: Pool) -> None:
    await filled(pool)
    async with aclosing(export_project(pool, PROJECT)) as lines:
        first = json.loads((await anext(lines)).text)
        before = await value(pool, "SELECT count(*) FROM state.agent_inbox")
        await asyncio.gather(*(ask(pool, ALICE) for _ in range(5)))
        rest = [json.loads(line.text) async for line in lines]
    assert rest[-1]["rows"]["state.agent_inbox"] == before
    assert re.fullmatch("[0-9a-f]{32}", first["schema_hash"])


async def test_of_an_agent_its_own_rows_and_what_they_name(pool: Pool) -> None:
    await filled(pool)
    read = by_table(await exported(pool, PROJECT, CAROL))
    assert {row["agent_id"] for row in read["state.agent_inbox"]} == {CAROL}
    boxes = {row["box_id"] for row in read["public.boxes"]}
    for row in read["state.agent_inbox"]:
        if row["message_type"] == "turn":
            assert {row["payload"][f"{name}_box_id"] for name in ("profile", "context", "output")} <= boxes
    cards = {row["card_id"] for row in read["public.cards"]}
    assert cards
    assert {row["card_id"] for row in read["public.box_cards"]} <= cards
    assert {row["deliverable_card_id"] for row in read["state.turn_outcomes"]} <= cards
    everything = by_table(await exported(pool))
    assert 0 < len(cards) < len(everything["public.cards"])


async def test_a_removed_project_is_in_no_table_and_others_are_untouched(pool: Pool) -> None:
    await filled(pool)
    before = await in_tables(pool, (*TABLES, *OTHERS))
    mine = {
        table: len([row for row in found if row.get("project_id", row.get("tenant_id")) == PROJECT])
        for table, found in before.items()
    }
    counted = await count_rows(pool, PROJECT)
    assert counted == {table: count for table, count in mine.items() if count}
    removed = await remove_rows(pool, PROJECT)
    assert removed.keys() <= counted.keys()
    assert await count_rows(pool, PROJECT) == {}
    named = await rows(
        pool,
        "SELECT format('%I.%I', table_schema, table_name) AS name, column_name FROM information_schema.columns"
        " JOIN information_schema.tables USING (table_schema, table_name)"
        " WHERE table_type = 'BASE TABLE' AND table_schema IN ('public', 'resource', 'state')"
        " AND column_name IN ('project_id', 'tenant_id')",
    )
    for row in named:
        left = f"SELECT count(*) FROM {row['name']} WHERE {row['column_name']} = 'p1'"  # noqa: S608 -- of the catalog
        assert await value(pool, left) == 0, row
    for table, found in (await in_tables(pool, (*TABLES, *OTHERS))).items():
        if table in HANGING:
            assert found == [], table
        else:
            theirs = [row for row in before[table] if row.get("project_id", row.get("tenant_id")) != PROJECT]
            assert ordered(found) == ordered(theirs), table
    assert await remove_rows(pool, PROJECT) == {}
    async with pool.connection() as conn:
        await assert_invariants(conn)
