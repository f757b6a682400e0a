"""`turnstile audit` as a process: a table and lines for people, one object for programs, and its exit codes."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import rows
from tests.support.ledger.healthy import make_healthy
from tests.turnstile.support import Ran, turnstile
from turnstile.cli.moments import moment
from turnstile.ledger.operations.audit import rules
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import BadRequest


@dataclass(frozen=True)
class Ledger:
    """A ledger for the command line, and the names of what is in it."""

    url: str
    pool: Pool
    names: dict[str, str]

    async def audit(self, *arguments: str, cwd: Path, **variables: str) -> Ran:
        """Run the command on it."""
        return await turnstile("audit", *arguments, cwd=cwd, TURNSTILE__DATABASE__URL=self.url, **variables)


@pytest.fixture(scope="module")
async def ledger(databases: Databases, migrated: str) -> AsyncIterator[Ledger]:
    """The healthy ledger, which tests here may break for themselves."""
    name = await databases.create(migrated)
    url = databases.url(name)
    pool = Pool(url, size=2, name="test")
    yield Ledger(url, pool, await make_healthy(pool))
    await pool.close()
    await databases.drop(name)


@pytest.fixture
async def broken(ledger: Ledger) -> AsyncIterator[Ledger]:
    """Two outcomes with another channel than their turns'."""
    change = "UPDATE state.turn_outcomes SET channel_id = $1 WHERE agent_turn_id = ANY ($2)"
    turns = [ledger.names["plain"], ledger.names["called"]]
    await rows(ledger.pool, change, "elsewhere", turns)
    yield ledger
    await rows(ledger.pool, change, "public", turns)


async def test_a_clean_ledger_exits_0(ledger: Ledger, tmp_path: Path) -> None:
    ran = await ledger.audit(cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert all(rule in ran.out for rule in rules())
    assert f"{len(rules())} of {len(rules())} rules hold, 0 violations" in ran.out


async def test_a_broken_ledger_exits_1_and_names_what_is_wrong(broken: Ledger, tmp_path: Path) -> None:
    ran = await broken.audit(cwd=tmp_path)
    assert ran.code == 1
    turn, row = broken.names["plain"], broken.names["plain_row"]
    [line] = [line for line in ran.out.splitlines() if f"agent_turn_id={turn}" in line]
    assert line.startswith("outcome_agrees_with_its_row  §4.2  ")
    assert {"project_id=p1", "agent_id=alice", f"agent_turn_id={turn}", f"inbox_id={row}"} <= set(line.split())
    assert line.endswith("  the outcome is success, the row consumed, and they differ in channel")
    assert f"{len(rules()) - 1} of {len(rules())} rules hold, 2 violations" in ran.out


async def test_json_is_one_object(broken: Ledger, tmp_path: Path) -> None:
    report = (await broken.audit("--json", "--limit", "1", "--since", "1h", cwd=tmp_path)).json()
    assert report.keys() == {"clean", "rules", "violations", "cut", "seconds"}
    assert (report["clean"], report["cut"]) == (False, ["outcome_agrees_with_its_row"])
    [violation] = report["violations"]
    assert violation.keys() == {"rule", "section", "ids", "detail"}
    assert violation["ids"]["project_id"] == "p1"
    assert {rule["rule"]: rule["violations"] for rule in report["rules"] if rule["violations"]} == {
        violation["rule"]: 1
    }
    assert report["rules"][0].keys() == {"rule", "section", "says", "violations", "cut", "seconds"}


async def test_another_project_is_clean(broken: Ledger, tmp_path: Path) -> None:
    ran = await broken.audit("--project", "other", "--json", cwd=tmp_path)
    assert (ran.code, ran.json()["clean"]) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (["--since", "soon"], 2, "bad_request"),
        (["--project", "a.b"], 2, "bad_request"),
        (["--limit", "0"], 2, "usage"),
        (["--engine", "--project", "other"], 3, "server_unavailable"),
    ],
)
async def test_errors_have_codes(
    ledger: Ledger, tmp_path: Path, arguments: list[str], exit_code: int, code: str
) -> None:
    nobody = {"TURNSTILE__NATS__SERVERS": "nats://127.0.0.1:1", "TURNSTILE__TEMPORAL__ADDRESS": "127.0.0.1:1"}
    patience = {"TURNSTILE__DATABASE__PATIENCE_SECONDS": "1.5"}
    ran = await ledger.audit(*arguments, "--json", cwd=tmp_path, **nobody, **patience)
    assert (ran.code, ran.json()["error"]["code"]) == (exit_code, code)


async def test_a_database_without_migrations_is_named(tmp_path: Path, bare_database_url: str) -> None:
    ran = await turnstile("audit", "--json", cwd=tmp_path, TURNSTILE__DATABASE__URL=bare_database_url)
    assert (ran.code, ran.json()["error"]["code"]) == (1, "not_migrated")


@pytest.mark.parametrize(
    ("text", "age"), [("90s", 90), ("5m", 300), ("24h", 86_400), ("30d", 2_592_000), ("2w", 1_209_600)]
)
def test_an_age_is_so_long_ago(text: str, age: int) -> None:
    assert abs(datetime.now(UTC) - timedelta(seconds=age) - moment(text, "--since")) < timedelta(seconds=5)


def test_a_time_has_its_zone_or_the_readers() -> None:
    assert moment("2026-01-02T03:04:05+02:00", "--since") == datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)
    assert moment("2026-01-02", "--since") == datetime(2026, 1, 2).astimezone()


@pytest.mark.parametrize("text", ["", "soon", "1y", "-1h", "24", "99999999999h", "999999999w", "2999-01-01", "²h"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        moment(text, "--since")
