"""The results of a run as a table and as a JSON object."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from lab.chaos.injector import Injector
from lab.chaos.verdict import Verdict

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Run:
    """Name, options and duration of a run."""

    name: str
    turns: int
    seed: int
    seconds: float
    notes: tuple[tuple[str, str], ...] = ()
    """Further lines of the table."""


def table_of(run: Run, verdict: Verdict, injector: Injector) -> Table:
    """The table of results."""
    table = Table(title=f"{run.name}, seed {run.seed}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    calls = verdict.calls
    rows = [
        ("turns accepted", f"{verdict.accepted} of {run.turns}"),
        ("outcomes", _counts(verdict.outcomes)),
        ("codes", _counts(verdict.codes)),
        ("task events stored", f"{verdict.events}, {verdict.repeated_after_deletion} again after a deletion"),
        ("duplicates", str(sum(verdict.duplicates.values()))),
        ("lost", str(len(verdict.lost))),
        ("doubled", str(len(verdict.doubled))),
        ("results applied twice", str(len(verdict.applied_twice))),
        ("unexpected ends", str(len(verdict.unexpected))),
        ("hanging", str(len(verdict.hanging))),
        ("children", str(verdict.children)),
        ("batches", _counts(verdict.batches)),
        ("budgets, tokens", f"{_counts(Counter(verdict.budgets))}; audited {verdict.looks} times meanwhile"),
        ("wrong in trees", str(len(verdict.trees))),
        ("calls", _counts(Counter({name: count for name, count in calls.items() if name != "calls"}))),
        (
            "tool executions",
            f"{verdict.executions} of {verdict.executed_calls} calls, {verdict.repeated_calls} run again",
        ),
        *((f"{action}s", _counts(strikes)) for action, strikes in _fault_counts(injector).items()),
        *([("bytes cut from NATS", ", ".join(map(str, injector.cut_bytes)))] if injector.cut_bytes else []),
        ("woken late", _counts(verdict.lates)),
        ("repairs", _counts(Counter(verdict.repairs))),
        ("ended by themselves", str(len(verdict.deaths))),
        ("slowest recovery", f"{verdict.slowest_recovery[0]:.1f} s, {verdict.slowest_recovery[1]}"),
        ("slowest turn", f"{verdict.slowest_turn[0]:.1f} s from its begin, {verdict.slowest_turn[1]}"),
        ("quiet after", "never" if verdict.quiet_after is None else f"{verdict.quiet_after:.1f} s"),
        *run.notes,
        ("audit", "clean" if verdict.audit_clean else "VIOLATED"),
        ("duration", f"{run.seconds:.0f} s"),
        ("verdict", "FAILED" if verdict.failed else "passed"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def faults_of(verdict: Verdict, injector: Injector) -> list[str]:
    """One line for each thing that is wrong."""
    kinds = {
        "hanging": verdict.hanging,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "applied twice": verdict.applied_twice,
        "unexpected": verdict.unexpected,
        "tree": verdict.trees,
        "ended by itself": verdict.deaths,
        "fault failed": injector.errors,
        "audit": [] if verdict.audit_clean else [verdict.audit],
    }
    return [
        line
        for kind, faults in kinds.items()
        for line in (
            *(f"{kind}: {fault}" for fault in faults[:_SHOWN]),
            *([f"{kind}: and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []),
        )
    ]


def write_json(path: Path, run: Run, verdict: Verdict, injector: Injector) -> None:
    """Write the results as a JSON file."""
    strikes = {action: dict(counts) for action, counts in _fault_counts(injector).items()}
    document = {"run": asdict(run), "verdict": {**vars(verdict), "failed": verdict.failed}, "strikes": strikes}
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def _fault_counts(injector: Injector) -> dict[str, Counter[str]]:
    faults: dict[str, Counter[str]] = {}
    for (action, target), count in sorted(injector.counts.items()):
        faults.setdefault(action, Counter())[_kind(target)] += count
    return faults


def _kind(target: str) -> str:
    process, colon, server = target.rpartition(":")
    return f"{process.partition('-')[0]}{colon}{server.partition('-')[0]}"


def _counts(strikes: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in strikes.most_common()) or "none"
