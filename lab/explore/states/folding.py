"""The canonical form of a state: its rows, with everything left out that no statement can distinguish.

What is left out, each with its reason, is the table `COLUMNS`. Two databases with one form behave alike, so one of
them stands for both; two with different forms may still behave alike, which costs time and hides nothing. A form is
itself a state of the database and is loaded as it is.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

Key = tuple[str, str]
"""Table and primary key of a row."""
Rows = dict[Key, str]
"""Rows by key, as JSON."""

PAST: Final = "2020-01-01T00:00:{:02d}+00:00"
"""Moments that are over: so long ago that whatever waits for time to pass has waited enough."""
AHEAD: Final = "2099-01-01T00:00:00+00:00"

_SET = "set"
"""Whether there is a moment is kept, and not which: statements compare it with the age that a rule waits for, and every
rule may find that it has waited long enough."""
_DUE = "due"
"""As `_SET`, and infinity stays: a queued row waits for its lease, every other wait is over by the next statement."""
_DEADLINE = "deadline"
"""Ahead or past: a deadline passes by a move of the world."""
_LEFT = "left"
"""Seconds that are left of something, hours at least: whether there are any."""
_RANK = "rank"
"""The order among the rows of one class: the queue of an agent, or the reports of a turn. Nothing compares others."""
_ORDER = "order"
"""As `_RANK`, of numbers that a sequence gives: below all that it will give."""
_EPOCH = "epoch"
"""The rank among the epochs that the agent's rows name: statements compare epochs for equality and order only."""
_ZERO = "zero"
"""A counter that only grows, which no statement compares while nobody else runs (`queue_seq`, `made_by`), or by which
people's lists alone are ordered (`conversation_seq`)."""
_ONCE = "once"
"""A counter that only grows, of which only the activities read more than whether it is 0."""
_LIVE = "live"
"""Read of rows that are final (or, of a defer_reason, of deferred rows and of reports whose card is not there, whose
tries alone are bounded), else a trace of what was."""

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "agent_state_head": {
        "updated_at": _SET,
        "started_at": _SET,
        "resume_deadline": _DEADLINE,
        "turn_epoch": _EPOCH,
        "queue_seq": _ZERO,
        "step_attempt": _ONCE,
        "model_failures": _ONCE,
    },
    "agent_state_pointers": {"updated_at": _SET},
    "channel_pointers": {"updated_at": _SET},
    "agent_inbox": {
        "created_at": _RANK,
        "conversation_seq": _ZERO,
        "next_retry_at": _DUE,
        "processed_at": _LIVE,
        "archived_at": _SET,
        "turn_epoch": _EPOCH,
        "last_error": _LIVE,
        "defer_reason": _LIVE,
        "retry_count": _LIVE,
    },
    "turn_waiting_tools": {
        "created_at": _SET,
        "updated_at": _SET,
        "received_at": _SET,
        "applied_at": _SET,
        "deadline": _DEADLINE,
        "left_seconds": _LEFT,
        "turn_epoch": _EPOCH,
    },
    "agent_steps": {"started_at": _SET, "ended_at": _SET},
    "execution_edges": {"created_at": _SET},
    "cards": {"created_at": _SET},
    "boxes": {"created_at": _SET, "updated_at": _SET, "made_by": _ZERO},
    "turn_outcomes": {"started_at": _SET, "ended_at": _SET, "announced_at": _SET, "turn_epoch": _EPOCH},
    "turn_nodes": {"stopping_at": _SET},
    "pmo_batches": {
        "created_at": _SET,
        "updated_at": _SET,
        "decided_at": _SET,
        "deadline_at": _DEADLINE,
        "parent_turn_epoch": _ZERO,
    },
    "pmo_batch_tasks": {
        "created_at": _SET,
        "updated_at": _SET,
        "next_retry_at": _SET,
        "current_turn_epoch": _EPOCH,
    },
    "conversations": {"created_at": _SET, "updated_at": _SET},
    "interrupts": {"created_at": _SET, "decided_at": _SET, "expires_at": _DEADLINE, "wait_seconds": _LEFT},
    "steers": {"seq": _ORDER, "created_at": _SET, "settled_at": _SET},
    "budgets": {
        **dict.fromkeys(("created_at", "updated_at", "warned_at", "lowered_at", "ended_at", "closed_at"), _SET),
        "until": _DEADLINE,
    },
    "budget_reservations": {"created_at": _SET, "settled_at": _SET},
    "budget_raises": {"created_at": _SET},
    "project_budgets": {"updated_at": _SET},
    "listeners": {"declared_at": _SET},
    "threads": {"created_at": _SET, "updated_at": _SET, "ended_at": _SET, "version": _ZERO},
    "thread_segments": {"created_at": _SET, "ended_at": _SET},
    "thread_messages": {
        "created_at": _SET,
        "begun_at": _SET,
        "ended_at": _SET,
        "deadline": _DEADLINE,
    },
    "thread_replies": {"created_at": _SET, "announced_at": _SET},
}
_LONGEST: Final = 1000
"""More than a world has of what a sequence numbers."""
_TIMES: Final = frozenset({"queue_delay_ms", "e2e_ms"})
"""How long it took, in an outcome's `stats`."""
_SLOT: Final = re.compile(r'"@(epoch|rank)"')


@dataclass(frozen=True, slots=True)
class _Row:
    """A row whose epoch and rank are still open."""

    template: str
    agent: str
    epoch: int
    group: str
    moment: str


@dataclass(frozen=True, slots=True)
class State:
    """A canonical form, sorted by key."""

    rows: tuple[tuple[Key, str], ...]

    @property
    def digest(self) -> bytes:
        """Equal for equal forms: the sum of the digests of their rows, each of which is made once."""
        return (sum(map(_digested, self.rows)) % _DIGESTS).to_bytes(16, "big")


_DIGESTS: Final = 1 << 128


@cache
def _digested(row: tuple[Key, str]) -> int:
    (table, key), text = row
    return int.from_bytes(hashlib.blake2b(f"{table} {key} {text}".encode(), digest_size=16).digest(), "big")


def fold(
    rows: Mapping[Key, str], swaps: Sequence[Mapping[str, str]] = (), names: Mapping[str, str] | None = None
) -> State:
    """The canonical form of these rows. `swaps` are the renamings that map the world onto itself.

    `names` are renamed before. Rows of a form and rows that statements wrote may be mixed.
    """
    if names:
        rows = {(key[0], _renamed_text(key[1], names)): _renamed_text(text, names) for key, text in rows.items()}
    read = {key: _row(key[0], text) for key, text in rows.items()}
    epochs: dict[str, list[int]] = {}
    moments: dict[str, list[str]] = {}
    for row in read.values():
        if row.epoch:
            epochs.setdefault(row.agent, []).append(row.epoch)
        if row.group:
            moments.setdefault(row.group, []).append(row.moment)
    order = {agent: {epoch: n for n, epoch in enumerate(sorted(set(values)), 1)} for agent, values in epochs.items()}
    place = {group: {moment: n for n, moment in enumerate(sorted(set(values)))} for group, values in moments.items()}
    whole = sorted((key, _filled(row, order, place)) for key, row in read.items())
    least = min([tuple(whole), *(_renamed(whole, swap) for swap in swaps)])
    return State(tuple(_ROWS.setdefault(row, row) for row in least))


_ROWS: Final[dict[tuple[Key, str], tuple[Key, str]]] = {}
"""Every row of every form, once: a state then takes some hundred bytes."""


def _filled(row: _Row, order: Mapping[str, Mapping[int, int]], place: Mapping[str, Mapping[str, int]]) -> str:
    if '"@' not in row.template:
        return row.template
    text = row.template.replace('"@epoch"', str(order[row.agent][row.epoch]) if row.epoch else "0")
    if not row.group:
        return text
    rank = place[row.group][row.moment]
    return text.replace('"@order"', str(rank - _LONGEST)).replace("@rank", PAST.format(rank))


def _renamed(rows: Sequence[tuple[Key, str]], swap: Mapping[str, str]) -> tuple[tuple[Key, str], ...]:
    return tuple(sorted(((key[0], _renamed_text(key[1], swap)), _renamed_text(text, swap)) for key, text in rows))


def _renamed_text(text: str, swap: Mapping[str, str]) -> str:
    return _pattern(tuple(swap)).sub(lambda match: swap[match[0]], text)


@cache
def _pattern(names: tuple[str, ...]) -> "re.Pattern[str]":
    return re.compile("|".join(map(re.escape, names)))


@lru_cache(maxsize=200_000)
def _row(table: str, text: str) -> _Row:
    data: dict[str, Any] = json.loads(text)
    epoch, group, moment = 0, "", ""
    for column, how in COLUMNS.get(table, {}).items():
        value = data[column]
        match how:
            case "set":
                data[column] = None if value is None else PAST.format(0)
            case "due":
                data[column] = value if value == "infinity" else PAST.format(0)
            case "deadline":
                data[column] = None if value is None else AHEAD if _ahead(value) else PAST.format(0)
            case "left":
                data[column] = None if value is None else 7200.0
            case "rank":
                group, moment = _group(data), value
                data[column] = "@rank" if group else PAST.format(0)
            case "order":
                group, moment = f"steers {data['agent_turn_id']}", f"{value + _LONGEST:020d}"
                data[column] = "@order"
            case "epoch":
                epoch = value or 0
                data[column] = "@epoch"
            case "zero":
                data[column] = 0 if isinstance(value, int) else "1"
            case "once":
                data[column] = min(value, 1)
            case _:
                data[column] = _lived(data, column)
    if table == "agent_inbox" and (trace := data["context_headers"].get("traceparent")):
        data["context_headers"]["traceparent"] = (
            f"{trace[:36]}{'0' * 16}-01"  # a span is drawn, and only traces show it
        )
    if table == "turn_outcomes":
        data["stats"] = {name: value for name, value in data["stats"].items() if name not in _TIMES}
    if table == "cards":
        data["metadata"]["created_at"] = PAST.format(0)
    template = json.dumps(data, sort_keys=True)
    return _Row(template, f"{data.get('project_id')}/{data.get('agent_id')}", epoch, group, moment)


def _ahead(moment: str) -> bool:
    """Whether a deadline had not passed when it was written: a world's waits are of hours, and its runs are not."""
    return moment >= _started()


@lru_cache(maxsize=1)
def _started() -> str:
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 -- once a process

    return (datetime.now(UTC) + timedelta(seconds=1)).isoformat()


def _group(row: Mapping[str, Any]) -> str:
    match row["message_type"]:
        case "turn" | "ui_action":
            return f"queue {row['project_id']}/{row['agent_id']}"
        case "tool_result" | "timeout":
            return f"reports {row['agent_turn_id']}"
        case _:
            return ""


def _lived(row: Mapping[str, Any], column: str) -> Any:
    match column:
        case "processed_at":
            return PAST.format(0) if row["status"] == "processing" else None
        case "last_error":
            return row[column] if row["archived_at"] is not None else None
        case "retry_count":  # read after defer_reason
            return row[column] if row["defer_reason"] == "card_not_visible" else 0
        case _:
            live = row["archived_at"] is None and row[column] == "card_not_visible"
            return row[column] if live or row["status"] == "deferred" else None
