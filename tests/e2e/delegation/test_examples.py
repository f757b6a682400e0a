"""The agents of examples/together and of `turnstile demo-tree` on one stack; tests/docs types the same."""

import json
import os
import tomllib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.conditions import until
from tests.support.delegation import answers
from tests.support.paths import ROOT
from tests.support.processes.stack import QUICK, Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Ended, Tenant
from tests.turnstile.support import processes_of, turnstile
from turnstile.cli.demo.tree import MODELS, tree_profiles
from turnstile.cli.turns.turn_tree import picture
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.trees.tree_views import tree
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.wire.descriptions import TreeTurn
from turnstile.settings.yaml_files import read_profile

EXAMPLES = ROOT / "examples" / "together"


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """With the settings of the examples."""
    settings = tomllib.loads((EXAMPLES / "config.toml").read_text())
    [scripts] = settings["model"]["scripts"]
    config = {**QUICK, "protocol": settings["protocol"]}
    async with stacks.open(config, [EXAMPLES / scripts, MODELS]) as opened:
        yield opened


async def asked(tenant: Tenant, name: str, instruction: str = "how turns sleep") -> AgentTurnId:
    """A turn of one of the example's agents, with all profiles there."""
    [target] = tenant.stack.settings.worker.worker_targets
    for file in sorted(EXAMPLES.glob("*.yaml")):
        profile = read_profile(file).model_copy(update={"worker_target": target})
        await put_profile(tenant.pool, tenant.project, profile)
    await add_agent(tenant.pool, tenant.project, AgentId(name), name)
    reply = await tenant.enqueue(AgentId(name), instruction)
    assert reply.agent_turn_id is not None
    return reply.agent_turn_id


async def walked(tenant: Tenant, turn: AgentTurnId) -> list[TreeTurn]:
    return await tenant.pool.run(lambda conn: tree(conn, tenant.project, turn))


def results(ended: Ended) -> list[tuple[str, str, str | None]]:
    [joined] = answers(ended)
    told: Any = joined.result
    return [(each["label"], each["status"], each["summary"]) for each in told["results"]]


async def test_a_researcher_joins_three_searchers(tenant: Tenant) -> None:
    ended = await tenant.ended(await asked(tenant, "researcher"))
    found = "found something on"
    assert results(ended) == [
        (where, "success", f"{found} {where}: how turns sleep") for where in ("papers", "users", "code")
    ]


async def test_the_first_of_two_is_enough(tenant: Tenant) -> None:
    turn = await asked(tenant, "racer")
    ended = await tenant.ended(turn)
    assert results(ended) == [
        ("slow", "canceled", None),
        ("quick", "success", "found something on how turns sleep"),
    ]
    await tenant.all_ended([turn] * 3, 20)
    console = Console(width=40, file=StringIO())
    with console.capture() as captured:
        console.print(picture(await walked(tenant, turn), datetime.now(UTC), most=1))
    lines = captured.get().splitlines()
    assert (len(lines), lines[-1], lines[0][-1]) == (3, "└── and 1 more: 1 success", "…")


async def test_an_expert_reads_what_its_caller_was_told(tenant: Tenant) -> None:
    ended = await tenant.ended(await asked(tenant, "author"))
    told: Any = answers(ended)[-1].result
    heard = json.loads(told["value"].partition("told: ")[2])
    assert heard["result"]["value"] == "found something on how turns sleep"


async def test_a_recursion_ends_at_its_limit(tenant: Tenant) -> None:
    turn = await asked(tenant, "digger", "a hole")
    ended = await tenant.ended(turn)
    assert ended.deliverable() == "I asked for a hole, and that is as far as it went."
    nodes = await walked(tenant, turn)
    assert [(node.depth, node.status) for node in nodes] == [(depth, "success") for depth in range(5)]
    last = await tenant.ended(nodes[-1].agent_turn_id)
    refused = answers(last)[0].error
    assert refused is not None
    assert refused.code == "recursion_depth_exceeded"


async def test_a_tree_is_stopped_in_mid_stream(tenant: Tenant) -> None:
    turn = await asked(tenant, "chief", "a house")

    async def streaming() -> bool:
        nodes = await walked(tenant, turn)
        return [node.status for node in nodes if node.depth == 2] == ["running"] * 4

    await until(streaming, 25, "four plodders are at work")
    reply = await tenant.client.request("stop", {"agent_turn_id": turn, "reason": "enough"})
    assert (reply["status"], reply["marked"]) == ("accepted", 7)
    await tenant.all_ended([turn] * 7, 20)
    assert [each.status for each in await walked(tenant, turn)] == ["canceled"] * 7


async def test_the_demos_tree_goes_on_with_what_there_is(tenant: Tenant) -> None:
    [target] = tenant.stack.settings.worker.worker_targets
    for profile in tree_profiles():
        await put_profile(tenant.pool, tenant.project, profile.model_copy(update={"worker_target": target}))
    await add_agent(tenant.pool, tenant.project, AgentId("researcher"), "researcher")
    ended = await tenant.turn(AgentId("researcher"))
    assert [(label, status) for label, status, _ in results(ended)] == [
        ("papers", "success"),
        ("users", "failed"),
        ("code", "success"),
    ]
    assert "From old books: Sagas were written down in 1987. users: nothing." in str(ended.deliverable())
    await tenant.all_ended([ended.view.agent_turn_id] * 6, 20)


@pytest.mark.long
async def test_the_demo_shows_the_tree_and_leaves_nothing(tmp_path: Path) -> None:
    ran = await turnstile(
        "demo-tree", cwd=tmp_path, TMPDIR=str(tmp_path), TURNSTILE__DATABASE__URL="postgresql://elsewhere/x"
    )
    assert ran.code == 0, ran.err
    for part in ("! researcher success", "with all 6 turns", "(users) failed model_error", "/workflows/turn-"):
        assert part in ran.out
    assert os.listdir(tmp_path) == []  # noqa: PTH208 -- pathlib's twin is barred from async functions
    assert await processes_of(tmp_path) == []
