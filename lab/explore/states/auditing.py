"""The audit of a state in one round trip: its rules as one function of the database.

A rule sees the rows of some tables. Where these were the same in a state that was audited before, it finds the same,
and is not run again.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from lab.explore.states.folding import Rows
from lab.explore.world import World
from turnstile.ledger.operations.audit import AuditRule, Finding, Scope, arguments, rules, violation

_LIMIT = 20
_TYPES = {"project_id": "text", "since": "timestamptz", "since_id": "text", "row_limit": "int", "depth_limit": "int"}
_LEFT_OUT = {"context_boxes_never_change"}
"""It compares numbers of transactions, which a loaded state has not; `lab.explore.states.changes` has the rule."""
_TABLE = re.compile(r"\b(?:state|public|resource)\.(\w+)\b")
_VIEWS = {
    "queued_turns": {"agent_inbox", "conversations"},
    "turns_in_hand": {"agent_state_head"},
    "card_boxes": {"boxes", "box_cards"},
}


def audited() -> list[AuditRule]:
    """The rules that are checked in every state."""
    return [rule for rule in rules().values() if rule.name not in _LEFT_OUT]


def audit_function(world: World) -> str:
    """The statement that makes `explore.audit`, with this world's bounds."""
    values = arguments(Scope(), world.bounds, _LIMIT)
    names = list(values)
    kinds = ", ".join(_TYPES.get(name, "float8") for name in names)
    body = "\n".join(_checked(rule, names) for rule in audited())
    return (
        f"CREATE FUNCTION explore.audit({kinds}, wanted text[]) RETURNS TABLE (rule text, ids jsonb, detail text) "
        f"LANGUAGE plpgsql AS $audit$\n#variable_conflict use_column\nBEGIN\n{body}\nEND $audit$"
    )


def _checked(rule: AuditRule, names: list[str]) -> str:
    numbers = {f"${n}": f"${names.index(name) + 1}" for n, name in enumerate(rule.query.parameters, 1)}
    sql = re.sub(r"\$[0-9]+", lambda match: numbers[match[0]], rule.query.sql)
    query = f"RETURN QUERY SELECT '{rule.name}', x.ids, x.detail::text FROM ({sql}) x;"  # noqa: S608 -- our own files
    return f"IF '{rule.name}' = ANY (${len(names) + 1}) THEN {query} END IF;"


def _tables(rule: AuditRule) -> set[str]:
    named = set(_TABLE.findall(rule.query.sql))
    return named.union(*(_VIEWS[view] for view in named & _VIEWS.keys()))


class Auditor:
    """Audits states one after the other; a rule whose tables were so before is not run again."""

    def __init__(self, world: World) -> None:
        self._values = list(arguments(Scope(), world.bounds, _LIMIT).values())
        marks = ", ".join(f"${number}" for number in range(1, len(self._values) + 2))
        self._sql = f"SELECT * FROM explore.audit({marks})"  # noqa: S608 -- numbers
        self._reads = {rule.name: sorted(_tables(rule)) for rule in audited()}
        self._held: set[tuple[str, ...]] = set()

    def wanted(self, rows: Rows) -> list[str]:
        """The rules that are still to be run on this state."""
        tables: dict[str, list[str]] = {}
        for (table, _), text in rows.items():
            tables.setdefault(table, []).append(text)
        marks = {
            table: hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()
            for table, lines in tables.items()
        }
        names: list[str] = []
        for rule, reads in self._reads.items():
            key = (rule, *(marks.get(table, "") for table in reads))
            if key not in self._held:
                self._held.add(key)
                names.append(rule)
        return names

    async def audit(self, session: Any, names: Sequence[str]) -> list[str]:
        """What these rules find in the state that is loaded, one sentence for each violation."""
        sentences: list[str] = []
        for row in await session.fetch(self._sql, *self._values, list(names)):
            broken = violation(rules()[row["rule"]], Finding.model_validate(dict(row)))
            sentences.append(f"audit {broken.rule}: {broken.detail} {json.dumps(broken.ids, sort_keys=True)}")
        return sentences
