"""`turnstile project remove` on real servers: nothing of a project is left anywhere, and the one beside it lives on."""

import asyncio

import pytest

from tests.support.ledger.agents import ALICE, BOB, rows
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import Stack
from tests.support.tenants import new_tenant
from tests.support.tools import calling, hand_of
from tests.turnstile.support import Ran, turnstile
from turnstile.bridge.verbs.project_removal import count_workflows
from turnstile.ledger.operations.export import TABLES
from turnstile.ledger.operations.removal import count_rows
from turnstile.schema.ids import ProjectId
from turnstile.transport.streams import purge_project


async def remove(stack: Stack, project: ProjectId, *words: str) -> Ran:
    """The command with the stack's settings."""
    return await turnstile("project", "remove", project, *words, "--config", stack.config, cwd=stack.directory)


async def digest(stack: Stack, project: ProjectId) -> dict[str, str]:
    """What each table has of a project."""
    found: dict[str, str] = {}
    for table in TABLES:
        [row] = await rows(
            stack.pool,
            f"SELECT md5(string_agg(j::text, ',' ORDER BY j::text)) AS digest FROM {table} x, to_jsonb(x) j"  # noqa: S608 -- constants
            " WHERE coalesce(j ->> 'project_id', j ->> 'tenant_id') = $1",
            project,
        )
        found[table] = row["digest"]
    return found


@pytest.mark.long
async def test_nothing_is_left_of_a_removed_project_and_all_of_another(here: Stack) -> None:
    gone, kept = new_tenant(here), new_tenant(here)
    await kept.turn(await kept.agent("plain"))
    await gone.turn(await gone.agent("plain", BOB))
    async with hand_of(gone) as hand:
        await hand.suspended(calling("search"))

        refused, unconfirmed = await asyncio.gather(
            remove(here, gone.project, "--yes", "--json"), remove(here, gone.project, "--json")
        )
        assert (refused.code, refused.json()["error"]["code"]) == (1, "project_busy")
        assert (unconfirmed.code, unconfirmed.json()["error"]["code"]) == (2, "bad_request")
        await gone.turn(BOB)  # neither has changed anything

        before = await digest(here, kept.project)
        planned = (await remove(here, gone.project, "--dry-run", "--json")).json()["removed"]
        assert planned["live turns"] == 1
        assert planned["workflows"] >= 2
        assert planned["cg_evt_v1r4"] > 0

        ran = await remove(here, gone.project, "--yes", "--stop-turns", "--json")
    assert ran.code == 0, ran.out
    removed = ran.json()["removed"]
    assert removed["turns stopped"] == 1
    assert removed["state.turn_outcomes"] == 3

    assert await count_rows(here.pool, gone.project) == {}
    assert await count_workflows(here.temporal, gone.project) == 0
    assert sum((await purge_project(here.conn, gone.project, dry_run=True)).values()) == 0

    assert await digest(here, kept.project) == before
    assert await count_workflows(here.temporal, kept.project) == 1
    assert sum((await purge_project(here.conn, kept.project, dry_run=True)).values()) > 0
    assert (await kept.turn(ALICE)).view.status == "success"

    again = await remove(here, gone.project, "--yes", "--json")
    assert (again.code, set(again.json()["removed"].values())) == (0, {0})
    async with here.pool.connection() as conn:
        await assert_invariants(conn)
