"""`turnstile top`: what it says, once, as lines and on a terminal."""

import asyncio
import json
import os
import pty
import re
import time
from functools import partial
from pathlib import Path

from tests.support.ledger.agents import ALICE, BOB, CAROL, PROJECT, add_agents, ask, lease, stop, value
from tests.support.processes.hatchery import shared_hatchery
from tests.turnstile.support import ENVIRONMENT, launch, turnstile
from turnstile.doctor.examine import examine
from turnstile.ledger.budgets.model_queues import swap_model_queue
from turnstile.ledger.operations.monitor import look_around, measure_inbox
from turnstile.ledger.operations.recovery import record_repairs
from turnstile.ledger.operations.sweep import touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import release_claims
from turnstile.ledger.turns.views import list_inbox
from turnstile.rules.model_queue import Join, ModelQueue, Refuse, changed
from turnstile.schema.states import DeferReason
from turnstile.settings import Settings


async def fill(pool: Pool) -> None:
    """Three agents: one busy with a queue, one leased, one idle; a turn that ended, a worker, a repair."""
    await add_agents(pool, ALICE, BOB, CAROL)
    await lease(pool, ALICE)
    stopped, _ = await ask(pool, ALICE), await ask(pool, ALICE)
    await stop(pool, ALICE, stopped)
    await ask(pool, BOB)
    await pool.run(lambda conn: touch_worker(conn, "me", ["worker_generic", "pump"]))
    await pool.run(lambda conn: record_repairs(conn, {"doorbell": 4}))
    now = time.time()
    queue = changed(ModelQueue(), [Refuse(None, now + 3600), Join("t", PROJECT, 1)], now, "me")
    for model, state in (("gpt-4o", queue), ("idle", ModelQueue(paused_until=now - 60))):
        stored = partial(swap_model_queue, account="openai:1234", model=f"openai/{model}", queue=state)
        await pool.run(lambda conn, swap=stored: swap(conn, version=1, expected=None))


def config(directory: Path, url: str) -> Path:
    """Settings that name the database only."""
    file = directory / "config.toml"
    file.write_text(f'[database]\nurl = "{url}"\npatience_seconds = 1.0\n')
    return file


async def test_everything_is_counted(pool: Pool) -> None:
    await fill(pool)
    found = await pool.run(look_around)
    assert found.agents == {"idle": 1, "dispatched": 2}
    assert (found.rows, found.tried_again) == ({"processing": 1, "queued": 1, "pending": 1}, {})
    assert 0 < found.oldest_due_seconds < 60
    assert found.outcomes == {"canceled": 1}
    assert found.mean_seconds is not None
    assert found.repairs == {"doorbell": 4}
    assert found.workers == {"worker_generic": 1, "pump": 1}
    assert found.open_threads == 0
    [limited] = found.limited_models
    assert (limited.account, limited.model, limited.waiting) == ("openai:1234", "openai/gpt-4o", 1)
    assert limited.paused_until is not None


async def test_once_as_json_and_for_people(pool: Pool, database_url: str, tmp_path: Path) -> None:
    await fill(pool)
    file = config(tmp_path, database_url)
    ran = await turnstile("top", "--once", "--json", "--config", file, cwd=tmp_path)
    assert ran.code == 0, ran.err
    told = ran.json()
    assert told["rows"] == {"processing": 1, "queued": 1, "pending": 1}
    assert told["outcomes"] == {"canceled": 1}
    assert [model["waiting"] for model in told["limited_models"]] == [1]
    shown = await turnstile("top", "--once", "--config", file, cwd=tmp_path)
    assert "queued 1   pending 1   processing 1   deferred 0" in shown.out
    assert "1 turns, 0.0/s" in shown.out
    assert "doorbell 4" in shown.out
    assert re.search(r"openai/gpt-4o \(openai:1234\): paused until .+,\s+1 waiting", shown.out)
    assert "q ends it" not in shown.out


async def test_rows_whose_claim_failed_are_counted_by_reason(pool: Pool, database_url: str, tmp_path: Path) -> None:
    await fill(pool)
    row = await value(pool, "SELECT inbox_id FROM state.agent_inbox WHERE status = 'processing'")
    away = DeferReason.ENGINE_UNREACHABLE
    await pool.run(lambda conn: release_claims(conn, [row], away, delay_seconds=0))
    assert (await pool.run(look_around)).tried_again == {away: 1}
    assert (await pool.run(measure_inbox)).tried_again == {away: 1}
    file = config(tmp_path, database_url)
    shown = await turnstile("top", "--once", "--config", file, cwd=tmp_path)
    assert "engine_unreachable 1" in shown.out
    listed = await pool.run(lambda conn: list_inbox(conn, PROJECT, None, None, row_limit=10))
    [line] = [each for each in listed if each.inbox_id == row]
    assert (line.status, line.defer_reason, line.retry_count) == ("deferred", away, 1)
    checks = await examine(Settings.model_validate({"database": {"url": database_url}}), None, ())
    [check] = [each for each in checks if each.name == "inbox"]
    assert (check.status, check.says) == ("warn", "rows are tried again: 1 engine_unreachable")


async def test_a_database_that_is_away_is_an_error_like_others(tmp_path: Path) -> None:
    file = config(tmp_path, "postgresql://nobody@127.0.0.1:9/none")
    ran = await turnstile("top", "--json", "--config", file, cwd=tmp_path)
    assert ran.code == 3
    assert ran.json()["error"]["code"] == "server_unavailable"


async def test_lines_for_programs_until_interrupted(database_url: str, tmp_path: Path) -> None:
    file = config(tmp_path, database_url)
    process = await launch("top", "--json", "--interval", "0.2", "--config", file, cwd=tmp_path)
    async with asyncio.timeout(30):
        lines = [json.loads(await process.stdout.readline()) for _ in range(2)]
        process.terminate()
        assert await process.wait() == 130
    assert lines[0]["seen_at"] < lines[1]["seen_at"]


async def test_q_ends_it_on_a_terminal(database_url: str, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    terminal = Path(os.ttyname(follower))
    process = await (await shared_hatchery.get()).spawn(
        ("top", "--interval", "0.2", "--config", config(tmp_path, database_url)),
        {**ENVIRONMENT, "TERM": "xterm-256color"},
        terminal,
        cwd=tmp_path,
        given=terminal,
    )
    os.close(follower)
    os.set_blocking(leader, False)
    seen = b""
    async with asyncio.timeout(30):
        while b"q ends it" not in seen:
            await asyncio.sleep(0.05)
            try:
                seen += os.read(leader, 65536)
            except BlockingIOError:
                continue
        os.write(leader, b"q")
        while process.returncode is None:
            await asyncio.sleep(0.05)
            try:
                os.read(leader, 65536)
            except (BlockingIOError, OSError):
                continue
    os.close(leader)
    assert process.returncode == 0
