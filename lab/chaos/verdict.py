"""The end of a run: waits until the ledger is quiet, lists what hangs, and judges the run.

It uses connections without proxies, and compares the ledger, the observer, and the files that tools and models wrote.
"""

import asyncio
import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from temporalio.client import Client
from temporalio.service import RPCError

from lab.chaos.clock_model import times_between
from lab.chaos.environment import TURNSTILE, Environment
from lab.chaos.injector import Injector, Late, read_notes
from lab.chaos.load import Load
from lab.chaos.program import ROOT
from turnstile.ledger.operations.audit import Bounds, Scope, arguments, rules
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, parse
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.workflows.options import turn_workflow_id

QUERIES, TREE_RULES, WITNESS = (
    parse(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    for name in ("verdict.sql", "trees.sql", "witness.sql")
)
EXPECTED = {"stop": {"success", "canceled"}, "budget": {"success", "partial"}}
LOOK_SECONDS = 1.0
"""Between two looks at the budgets while a run goes on."""
_SHOWN = 12
_SLOW_SECONDS = 30.0


@dataclass
class Verdict:
    """The results of a run; `failed` says whether any of them is wrong."""

    quiet_after: float | None = None
    """Seconds until no turn was live any more."""
    hanging: list[str] = field(default_factory=list[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    accepted: int = 0
    events: int = 0
    duplicates: dict[str, int] = field(default_factory=dict[str, int])
    repeated_after_deletion: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    applied_twice: list[str] = field(default_factory=list[str])
    unexpected: list[str] = field(default_factory=list[str])
    calls: dict[str, int] = field(default_factory=dict[str, int])
    executions: int = 0
    executed_calls: int = 0
    repeated_calls: int = 0
    batches: Counter[str] = field(default_factory=Counter[str])
    """Batches by what they came to."""
    children: int = 0
    trees: list[str] = field(default_factory=list[str])
    """What is wrong with trees."""
    budgets: dict[str, int] = field(default_factory=dict[str, int])
    """What budgets were given, in tokens, and what became of it."""
    firings: Counter[str] = field(default_factory=Counter[str])
    """Firings of schedules, by what came of them."""
    schedules: list[str] = field(default_factory=list[str])
    """What is wrong with schedules."""
    looks: int = 0
    """How often the budgets were audited while the run went on."""
    lates: Counter[str] = field(default_factory=Counter[str])
    repairs: dict[str, int] = field(default_factory=dict[str, int])
    slowest_recovery: tuple[float, str] = (0.0, "")
    slowest_turn: tuple[float, str] = (0.0, "")
    audit: str = ""
    audit_clean: bool = False
    deaths: list[str] = field(default_factory=list[str])

    @property
    def failed(self) -> bool:
        """Whether anything is wrong."""
        wrong = (self.hanging, self.lost, self.doubled, self.applied_twice, self.unexpected, self.trees)
        wrong += (self.schedules, self.deaths)
        return any(wrong) or not self.audit_clean or bool(self.lates["committed twice"])


async def open_witness(url: str) -> None:
    """Have the ledger count the decisions of batches (witness.sql), before anything runs."""
    pool = Pool(url, size=1, name="chaos-witness")
    try:
        for statement in WITNESS.values():
            await pool.run(statement.many)
    finally:
        await pool.close()


async def wait_quiet(environment: Environment, seconds: float) -> tuple[float | None, list[str]]:
    """Wait until no turn is live; returns the seconds it took, or after `seconds` None and what hangs."""
    began = time.monotonic()
    pool = Pool(environment.direct.database_url, size=1, name="chaos-verdict")
    left: list[Any] = []
    try:
        while time.monotonic() - began < seconds:
            try:
                left = await pool.run(QUERIES["unfinished"].many)
            except ServerUnavailable:
                continue
            if not left:
                return time.monotonic() - began, []
            await asyncio.sleep(0.3)
    finally:
        await pool.close()
    return None, await _explain(environment, left)


async def _explain(environment: Environment, left: list[Any]) -> list[str]:
    lines: list[str] = []
    try:
        client = await Client.connect(
            environment.direct.temporal_address, namespace=environment.direct.temporal_namespace
        )
    except (RuntimeError, OSError) as error:
        client = None
        lines.append(f"Temporal does not answer: {error}")
    for row in left[: _SHOWN * 2]:
        engine = "" if client is None else await _workflow(client, str(row["agent_turn_id"]))
        lines.append(
            f"{row['what']} {row['agent_id']} {row['agent_turn_id']}: {row['state']}; "
            f"silent for {row['silent_for']:.0f} s; {engine}"
        )
    if len(left) > len(lines):
        lines.append(f"and {len(left) - len(lines)} more")
    return lines


async def _workflow(client: Client, turn: str) -> str:
    try:
        description = await client.get_workflow_handle(turn_workflow_id(AgentTurnId(turn))).describe()
    except RPCError as error:
        return f"workflow: {error.status.name if error.status else error}"
    pending = [
        f"{activity.activity_type.name} {activity.activity_id} attempt {activity.attempt}"
        f" ({activity.last_failure.message[:120]})"
        for activity in description.raw_description.pending_activities
    ]
    status = description.status.name if description.status else "?"
    return f"workflow {status}, {', '.join(pending) or 'no activity pending'}"


async def judge(environment: Environment, load: Load, injector: Injector, verdict: Verdict) -> Verdict:
    """Fill the verdict from the ledger, the observer and the files."""
    await load.observer.caught_up()
    url = environment.direct.database_url
    pool = Pool(url, size=2, name="chaos-verdict")
    try:
        await pool.run(QUERIES["count_anew"].many)
        outcomes = await pool.run(QUERIES["outcomes"].many)
        committed = await pool.run(QUERIES["committed"].many)
        twice = await pool.run(QUERIES["turns_of_a_correlation"].many)
        results = await pool.run(QUERIES["results_twice"].many)
        calls = await pool.run(QUERIES["calls"].one)
        batches = await pool.run(QUERIES["batches"].many)
        firings = await pool.run(QUERIES["firings"].many)
        verdict.trees += await pool.run(judge_trees)
        verdict.budgets = {name: int(amount) for name, amount in (await pool.run(QUERIES["budgets"].one)).items()}
        try:
            repairs = await pool.run(QUERIES["repairs"].many)
        except asyncpg.UndefinedTableError:
            repairs = []
    finally:
        await pool.close()
    _judge_turns(load, verdict, outcomes)
    verdict.firings = Counter("enqueued" if row["code"] is None else str(row["code"]) for row in firings)
    verdict.schedules = wrong_firings(firings, load.schedules, {str(row["agent_turn_id"]) for row in outcomes})
    verdict.doubled += [f"correlation {row['correlation_id']} is {row['turns']} turns" for row in twice]
    verdict.applied_twice = [f"call {row['tool_call_id']} has {row['results']} results" for row in results]
    verdict.batches = Counter({str(row["status"]): int(row["batches"]) for row in batches})
    verdict.calls = {name: int(calls[name]) for name in ("calls", "applied", "expired", "dropped")}
    verdict.repairs = {str(row["rule"]): int(row["repaired"]) for row in repairs}
    _judge_times(load, verdict, injector, outcomes)
    _judge_executions(environment, verdict)
    for late in injector.lates:
        verdict.lates.update(_judge_late(environment, late, committed, load.schedules))
    verdict.deaths = [
        f"{death.name} ended by itself ({death.code}):\n{death.last_lines}" for death in environment.deaths
    ]
    await _audit(environment, verdict)
    return verdict


async def watch_budgets(environment: Environment, verdict: Verdict) -> None:
    """Audit the budgets again and again, until cancelled: what they count must be right in every state."""
    checks = [rule.query for rule in rules().values() if rule.section == "§12.8"]
    values = arguments(Scope(), Bounds(), _SHOWN)
    pool = Pool(environment.direct.database_url, size=1, name="chaos-budgets")
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                for check in checks:
                    parameters = {name: values[name] for name in check.parameters}
                    rows = await pool.run(partial(check.many, **parameters))
                    verdict.trees += [f"look {verdict.looks}: {row['detail']}" for row in rows]
            except ServerUnavailable:
                continue
            verdict.looks += 1
    finally:
        await pool.close()


async def judge_trees(conn: Connection) -> list[str]:
    """What is wrong with trees, one line for each finding, with the name of its rule."""
    results = [(name, await rule.many(conn)) for name, rule in TREE_RULES.items()]
    return [f"{name}: {row['detail']}" for name, rows in results for row in rows]


def _judge_turns(load: Load, verdict: Verdict, outcomes: list[Any]) -> None:
    observer, ended = load.observer, {str(row["agent_turn_id"]): row for row in outcomes}
    verdict.accepted = load.accepted
    verdict.events = sum(len(places) for places in observer.stored.values())
    verdict.duplicates = observer.duplicates()
    verdict.doubled = [f"turn {turn}: {more} more task events" for turn, more in verdict.duplicates.items()]
    verdict.repeated_after_deletion = observer.repeated_after_deletion()
    for row in outcomes:
        verdict.outcomes[str(row["status"])] += 1
        if row["error_code"]:
            verdict.codes[f"{row['status']}: {row['error_code']}"] += 1
    keys = {turn.key for turn in load.turns}
    for row in outcomes:
        if str(row["correlation_id"]) not in keys:
            verdict.children += 1
            if row["agent_turn_id"] not in observer.seen:
                verdict.lost.append(f"child {row['agent_turn_id']} ({row['status']}) has no task event")
            elif observer.statuses[row["agent_turn_id"]] != row["status"]:
                status = observer.statuses[row["agent_turn_id"]]
                verdict.unexpected.append(f"child {row['agent_turn_id']} is {row['status']}, its event says {status}")
    for turn in load.turns:
        verdict.doubled += [f"{turn.key} is {turn.turn} and {other}" for other in turn.others]
        if not turn.turn:
            continue  # never accepted: the load ended before
        if (row := ended.get(turn.turn)) is None:
            verdict.lost.append(f"{turn.kind} {turn.turn} has no outcome")
        elif turn.turn not in observer.seen:
            verdict.lost.append(f"{turn.kind} {turn.turn} ({row['status']}) has no task event")
        elif row["status"] not in EXPECTED.get(turn.kind.partition("_")[0], {"success"}):
            verdict.unexpected.append(f"{turn.kind} {turn.turn} ended {row['status']}, {row['error_code']}")
        elif observer.statuses[turn.turn] != row["status"]:
            verdict.unexpected.append(f"{turn.turn} is {row['status']}, its event says {observer.statuses[turn.turn]}")


def wrong_firings(firings: Sequence[Mapping[str, Any]], schedules: Sequence[str], ended: Collection[str]) -> list[str]:
    """What is wrong with the firings, compared with the times that each schedule names.

    Each is at one of these times and has a turn of its own, which ended. Of the times that have passed the latest is
    fired, so where one was passed over the next had not come yet. A bridge that is stopped between its look and its
    firing is `_SLOW_SECONDS` late at most, and so are the first firing and the last.
    """
    turns = Counter(str(row["agent_turn_id"]) for row in firings if row["agent_turn_id"] is not None)
    wrong = [f"turn {turn} is that of {count} firings" for turn, count in turns.items() if count > 1]
    wrong += [f"turn {turn} of a firing has no outcome" for turn in turns.keys() - set(ended)]
    last: dict[str, Mapping[str, Any]] = {}
    for row in firings:
        name, nominal = str(row["schedule_id"]), row["nominal_at"]
        before = last[name]["nominal_at"] if name in last else row["anchor_at"]
        passed = times_between(json.loads(row["timing"]), row["anchor_at"], before, row["fired_at"])
        if nominal not in passed:
            wrong.append(f"{name} fired at {nominal}, which it does not name")
            continue
        follower = next((at for at in passed if at > nominal), row["fired_at"])
        late = (row["fired_at"] - follower).total_seconds()
        if nominal != passed[0] and late > _SLOW_SECONDS:
            wrong.append(f"{name} made up for {nominal}, {late:.1f} s after the time that follows")
        last[name] = row
    for name in schedules:
        row, slow = last.get(name), timedelta(seconds=_SLOW_SECONDS)
        if row is None or times_between(
            json.loads(row["timing"]), row["anchor_at"], row["nominal_at"], row["paused_at"] - slow
        ):
            wrong.append(f"{name} did not fire until it was paused")
    return wrong


def _judge_times(load: Load, verdict: Verdict, injector: Injector, outcomes: list[Any]) -> None:
    ends = sorted(float(row["ended_at"]) for row in outcomes)
    for at, target in injector.kills:
        place = bisect_right(ends, at)
        if place < len(ends):
            verdict.slowest_recovery = max(verdict.slowest_recovery, (ends[place] - at, target))
    kinds = {turn.turn: turn.kind for turn in load.turns}
    for row in outcomes:
        took, turn = float(row["ended_at"]) - float(row["started_at"]), str(row["agent_turn_id"])
        verdict.slowest_turn = max(verdict.slowest_turn, (took, f"{kinds.get(turn, '?')} {turn}"))


def _judge_executions(environment: Environment, verdict: Verdict) -> None:
    lines = environment.executions.read_text().splitlines() if environment.executions.exists() else []
    by_call = Counter(str(json.loads(line)["call"]) for line in lines)
    verdict.executions = by_call.total()
    verdict.executed_calls = len(by_call)
    verdict.repeated_calls = sum(count > 1 for count in by_call.values())


def _judge_late(environment: Environment, late: Late, committed: list[Any], schedules: Collection[str]) -> Counter[str]:
    """Count the steps of a stopped worker that another worker continued, by who committed them.

    Each must be committed once. `first` counts steps that the late worker committed before the other had an answer.
    """
    attempts_late: Counter[str] = Counter()
    rows: dict[tuple[str, int], list[Any]] = {}
    for row in committed:
        rows.setdefault((str(row["key"]), int(row["step"])), []).append(row)
    attempts = {
        (str(note["key"]), int(str(note["step"]))): int(str(note["attempt"]))
        for note in read_notes(environment)
        if note["pid"] == late.pid and note["what"] == "asked" and float(str(note["at"])) < late.slept_at
    }
    for step in late.steps:
        if step[0] in schedules:  # all of its turns have one key
            continue
        match rows.get(step, []):
            case [row]:
                is_first = row["attempt"] is not None and int(row["attempt"]) == attempts.get(step)
                attempts_late["first" if is_first else "fenced"] += 1
            case []:  # the turn was ended without it
                attempts_late["fenced"] += 1
            case _:
                attempts_late["committed twice"] += 1
    return attempts_late


async def _audit(environment: Environment, verdict: Verdict) -> None:
    process = await asyncio.create_subprocess_exec(
        *TURNSTILE,
        "audit",
        "--engine",
        "--config",
        str(environment.config("direct", environment.direct)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    verdict.audit, verdict.audit_clean = output.decode(), process.returncode == 0
