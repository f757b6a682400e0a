"""What a database's catalog says of the ledger's schema, and the schema of the last release to migrate from.

`python -m tests.support.ledger.catalog` writes the schema of this tree to `baseline.json.gz`: once, when a release is
made. From then on, a database with that schema is migrated and must equal an empty one that was made of the files.
"""

import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from turnstile.ledger.migrate import SchemaFile, migrations, schema_files
from turnstile.ledger.queries import Connection

BASELINE: Final = Path(__file__).with_name("baseline.json.gz")
CATALOG: Final = """
WITH ours AS (SELECT n.oid FROM pg_namespace n WHERE n.nspname IN ('public', 'resource', 'state')),
places AS (SELECT c.* FROM pg_class c JOIN ours ON ours.oid = c.relnamespace)
SELECT 'schema ' || n.nspname AS name, n.nspacl::text AS definition FROM pg_namespace n JOIN ours ON ours.oid = n.oid
UNION ALL
SELECT format('relation %s', c.oid::regclass), concat_ws(' ', c.relkind, c.relpersistence, c.reloptions, c.relacl,
    c.relrowsecurity, CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid) WHEN 'i' THEN pg_get_indexdef(c.oid) END)
FROM places c
UNION ALL
SELECT format('column %s.%s', c.oid::regclass, a.attname), concat_ws(' ', format_type(a.atttypid, a.atttypmod),
    a.attnotnull, a.attidentity, a.attgenerated, a.attcollation::regcollation, a.attacl,
    pg_get_expr(d.adbin, d.adrelid))
FROM pg_attribute a JOIN places c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind <> 'i'
UNION ALL
SELECT format('sequence %s', s.seqrelid::regclass), concat_ws(' ', s.seqtypid::regtype, s.seqstart, s.seqincrement,
    s.seqmax, s.seqmin, s.seqcache, s.seqcycle)
FROM pg_sequence s
UNION ALL
SELECT format('constraint %s %s', k.conrelid::regclass, k.conname), concat_ws(' ', pg_get_constraintdef(k.oid),
    k.convalidated, k.condeferrable, k.condeferred)
FROM pg_constraint k JOIN ours ON ours.oid = k.connamespace
UNION ALL
SELECT format('trigger %s %s', t.tgrelid::regclass, t.tgname), concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
FROM pg_trigger t WHERE NOT t.tgisinternal
UNION ALL
SELECT format('function %s', p.oid::regprocedure), concat_ws(' ', p.proacl, pg_get_functiondef(p.oid))
FROM pg_proc p JOIN ours ON ours.oid = p.pronamespace
UNION ALL
SELECT format('comment %s', pg_describe_object(d.classoid, d.objoid, d.objsubid)), d.description
FROM pg_description d WHERE d.objoid >= 16384
"""
# A function's layout and comments are no difference; what its texts in quotes say is one.
_PIECE: Final = re.compile(r"('(?:[^']|'')*')|--[^\n]*|\s+")


async def read_catalog(conn: Connection) -> dict[str, str]:
    """Everything that the schema consists of, by kind and name; the order of columns is none of it."""
    rows = await conn.fetch(CATALOG)
    return {row["name"]: _PIECE.sub(lambda piece: piece[1] or " ", row["definition"] or "") for row in rows}


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names of what only one has, or both have differently."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def baseline() -> tuple[list[SchemaFile], list[SchemaFile]]:
    """The files and the migrations of the last release; this tree's, as long as nothing was released."""
    if not BASELINE.exists():
        return schema_files(), migrations()
    files = [SchemaFile(*pair) for pair in json.loads(gzip.decompress(BASELINE.read_bytes()))]
    applied = [file for file in files if file.folder == "migrations"]
    return [file for file in files if file not in applied], applied


def main() -> None:
    """Write the baseline."""
    pairs = [(file.name, file.sql) for file in (*schema_files(), *migrations())]
    BASELINE.write_bytes(gzip.compress(json.dumps(pairs).encode(), mtime=0))


if __name__ == "__main__":
    main()
