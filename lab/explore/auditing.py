"""The audit of a state in one round trip: its rules as one function of the database, on the tables that a move touched.

A rule of which no table has changed since a state where it held holds still.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from lab.explore.world import World
from turnstile.ledger.operations.audit import Finding, Rule, Scope, arguments, rules, violation

_LIMIT = 20
_TYPES = {"project_id": "text", "since": "timestamptz", "since_id": "text", "row_limit": "int", "depth_limit": "int"}
_LEFT_OUT = {"context_boxes_never_change"}
"""It compares numbers of transactions, which a loaded state does not have; `lab.explore.changes` has the rule."""
_TABLE = re.compile(r"\b(?:state|public|resource)\.(\w+)\b")
_VIEWS = {
    "queued_turns": {"agent_inbox"},
    "turns_in_hand": {"agent_state_head"},
    "card_boxes": {"boxes", "box_cards"},
}


def audited() -> list[Rule]:
    """The rules that are checked in every state."""
    return [rule for rule in rules().values() if rule.name not in _LEFT_OUT]


def audit_function(world: World) -> str:
    """The statement that makes `explore.audit`, with this world's bounds."""
    values = arguments(Scope(), world.bounds, _LIMIT)
    names = list(values)
    kinds = ", ".join(_TYPES.get(name, "float8") for name in names)
    body = "\n".join(_checked(rule, names) for rule in audited())
    return (
        f"CREATE FUNCTION explore.audit({kinds}, touched text[]) RETURNS TABLE (rule text, ids jsonb, detail text) "
        f"LANGUAGE plpgsql AS $audit$\n#variable_conflict use_column\nBEGIN\n{body}\nEND $audit$"
    )


def _checked(rule: Rule, names: list[str]) -> str:
    numbers = {f"${n}": f"${names.index(name) + 1}" for n, name in enumerate(rule.query.parameters, 1)}
    sql = re.sub(r"\$[0-9]+", lambda found: numbers[found[0]], rule.query.sql)
    tables = ", ".join(f"'{table}'" for table in sorted(_tables(rule)))
    query = f"RETURN QUERY SELECT '{rule.name}', x.ids, x.detail::text FROM ({sql}) x;"  # noqa: S608 -- our own files
    return f"IF ${len(names) + 1} && ARRAY[{tables}] THEN {query} END IF;"


def _tables(rule: Rule) -> set[str]:
    named = set(_TABLE.findall(rule.query.sql))
    return named.union(*(_VIEWS[view] for view in named & _VIEWS.keys()))


async def audit(session: Any, world: World, touched: Iterable[str]) -> list[str]:
    """What the rules on these tables find, one sentence for each violation."""
    values = list(arguments(Scope(), world.bounds, _LIMIT).values())
    marks = ", ".join(f"${number}" for number in range(1, len(values) + 2))
    rows = await session.fetch(f"SELECT * FROM explore.audit({marks})", *values, sorted(touched))
    found: list[str] = []
    for row in rows:
        broken = violation(rules()[row["rule"]], Finding.model_validate(dict(row)))
        found.append(f"audit {broken.rule}: {broken.detail} {json.dumps(broken.ids, sort_keys=True)}")
    return found
