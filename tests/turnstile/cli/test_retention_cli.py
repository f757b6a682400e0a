"""`turnstile prune` and `turnstile export` as processes."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.bench.ledgers.ended_turns import fill
from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.ledger.agents import value
from tests.turnstile.support import Ran, launch, turnstile
from turnstile.ledger.operations.audit import Bounds, Scope, audit
from turnstile.ledger.operations.export import TABLES
from turnstile.ledger.pool import Pool

TURNS = 600
COUNT = "SELECT count(*) FROM state.turn_outcomes"


@dataclass(frozen=True)
class Ledger:
    """A ledger of ended turns of 90 days, for the command line."""

    url: str
    pool: Pool
    cwd: Path

    async def run(self, *words: str) -> Ran:
        """A command on it."""
        return await turnstile(*words, cwd=self.cwd, TURNSTILE__DATABASE__URL=self.url)


@pytest.fixture(scope="module")
async def ledger(
    databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Ledger]:
    """Each test prunes a part of it."""
    name = await databases.create(migrated)
    url = databases.url(name)
    await fill(url, TURNS)
    pool = Pool(url, size=2, name="test")
    yield Ledger(url, pool, tmp_path_factory.mktemp("prune"))
    await pool.close()
    await databases.drop(name)


async def test_a_dry_run_counts_what_a_run_removes(ledger: Ledger) -> None:
    planned = (await ledger.run("prune", "--older-than", "80d", "--dry-run", "--json")).json()
    assert await value(ledger.pool, COUNT) == TURNS
    ran = await ledger.run("prune", "--older-than", "80d", "--json")
    done = ran.json()
    assert (ran.code, ran.err) == (0, "")
    names = ("turns", "threads", "boxes", "cards", "inbox_rows", "rejections")
    assert {name: planned[name] for name in names} == {name: done[name] for name in names}
    assert await value(ledger.pool, COUNT) == TURNS - done["turns"] < TURNS
    again = await ledger.run("prune", "--older-than", "80d")
    assert again.code == 0
    assert "turns" in again.out


async def test_a_run_that_is_killed_is_gone_on_with(ledger: Ledger) -> None:
    before = await value(ledger.pool, COUNT)
    slow = ("prune", "--older-than", "30d", "--batch", "20", "--pause", "0.05")
    process = await launch(*slow, cwd=ledger.cwd, TURNSTILE__DATABASE__URL=ledger.url)

    async def begun() -> bool:
        return await value(ledger.pool, COUNT) < before - 40

    await until(begun, 25, "some batches have gone")
    busy = await ledger.run("prune", "--older-than", "30d", "--json")
    process.kill()
    await process.communicate()
    assert (busy.code, busy.json()["error"]["code"]) == (1, "retention_busy")
    found = await audit(ledger.pool, Scope(), Bounds(), row_limit=9)
    assert found.violations == []

    async def free() -> bool:
        return (await ledger.run("prune", "--older-than", "30d", "--json")).code == 0

    await until(free, 25, "the killed run's lock is free")
    left = await value(ledger.pool, COUNT + " WHERE ended_at < now() - interval '30 days'")
    assert left <= 10  # the last turn of an agent stays
    assert (await audit(ledger.pool, Scope(), Bounds(), row_limit=9)).violations == []


async def test_what_is_no_age_or_too_young_is_refused(ledger: Ledger) -> None:
    for ran in await asyncio.gather(*(ledger.run("prune", "--older-than", text, "--json") for text in ("soon", "5m"))):
        assert (ran.code, ran.json()["error"]["code"]) == (2, "bad_request")


async def test_an_export_goes_to_standard_output_or_a_file(ledger: Ledger) -> None:
    file = ledger.cwd / "p1.jsonl"
    shown, written = await asyncio.gather(
        ledger.run("export", "p1"), ledger.run("export", "p1", "--out", str(file), "--agent", "a1")
    )
    assert (shown.code, written.code, written.out) == (0, 0, "")
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert lines[0]["project_id"] == "p1"
    assert {line["table"] for line in lines[1:-1]} <= set(TABLES)
    assert lines[-1]["rows"]["state.turn_outcomes"] == await value(ledger.pool, COUNT + " WHERE project_id = 'p1'")
    assert f"{len(lines) - 2} rows of project p1" in shown.err
    assert 2 < len(file.read_text().splitlines()) < len(lines)
    assert file.stat().st_mode & 0o777 == 0o600
    nowhere = await ledger.run("export", "p1", "--out", str(ledger.cwd / "none" / "x"))
    assert (nowhere.code, "cannot be written" in nowhere.err) == (2, True)


async def test_an_export_of_nothing_says_so_and_leaves_no_file(ledger: Ledger) -> None:
    file = ledger.cwd / "nosuch.jsonl"
    ran = await ledger.run("export", "nosuch", "--out", str(file))
    assert (ran.code, "there is nothing of project nosuch" in ran.err, file.exists()) == (1, True, False)
