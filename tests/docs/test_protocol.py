"""docs/protocol.md is true: its tables against the schema, the statements, the vocabularies and the rules of the code.

What has a † is written and sent by nothing here. Every other column is written by a statement or has a
default; every other word of a vocabulary, and every subject, is in the table *Words* of docs/conformance.md, beside a
test that names it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, cast, get_args

import pytest

from tests.docs.conformance import exists, held, section, source_of, table
from tests.support.paths import ROOT
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import all_queries
from turnstile.schema import cards, states
from turnstile.schema.interface.catalog import ENTRIES, VERBS, Verb
from turnstile.schema.interface.entries import Entry
from turnstile.schema.pump import threads
from turnstile.schema.wire.events import InboxProgress
from turnstile.settings.model import BridgeSettings

PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
PAGE_OF_WORDS = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
MARK = "†"
SUBJECT = re.compile(rf"`((?:cmd|req|evt|str)\.[^`]+)`(?!{MARK})")


@dataclass(frozen=True)
class Column:
    """A column that the page names; a marked one is written by nobody here."""

    table: str
    name: str
    marked: bool


def columns() -> Iterator[Column]:
    """Of the tables of §4; views say theirs in a sentence."""
    for cells in table(section(PAGE, "## 4. "), "`"):
        found = re.fullmatch(r"`((?:public|resource|state)\.[a-z_]+)`(?: \(ours\))?", cells[0])
        if found is None or cells[1].startswith("a view"):
            continue
        for part in re.sub(r" \([^)]*\)|ours: |NOT NULL", "", cells[1]).replace(";", ",").split(","):
            name = part.strip()
            yield Column(found[1], name.removesuffix(MARK), name.endswith(MARK))


COLUMNS = list(columns())


@pytest.fixture
async def defaults(pool: Pool) -> dict[tuple[str, str], bool]:
    """The columns of a migrated ledger, and whether each has a default."""
    async with pool.connection() as conn:
        rows = await conn.fetch(
            "SELECT table_schema || '.' || table_name AS name, column_name,"
            " column_default IS NOT NULL OR is_identity = 'YES' OR is_generated = 'ALWAYS' AS filled"
            " FROM information_schema.columns WHERE table_schema IN ('public', 'resource', 'state')"
        )
    return {(row["name"], row["column_name"]): row["filled"] for row in rows}


async def test_each_column_is_there_and_written_unless_it_is_marked(defaults: dict[tuple[str, str], bool]) -> None:
    assert len(COLUMNS) > 150
    assert [column for column in COLUMNS if (column.table, column.name) not in defaults] == []
    for column in COLUMNS:
        writes = column.name in written(column.table)
        if column.marked:
            assert not writes, f"{column.table}.{column.name} is written: take its {MARK} away in docs/protocol.md"
        else:
            filled = defaults[column.table, column.name]
            assert writes or filled, f"{column.table}.{column.name} is written by nobody: mark it with {MARK}"


@cache
def written(name: str) -> frozenset[str]:
    """The columns of a table that a statement, or a function of trees, people and budgets, inserts or updates."""
    found: set[str] = set()
    files = (ROOT / "ledger" / "functions").glob("*.sql")
    functions = [part for file in files for part in file.read_text(encoding="utf-8").split(";")]
    for sql in (*(query.sql for query in all_queries().values()), *functions):
        for insert in re.finditer(rf"INSERT INTO {re.escape(name)}(?: AS \w+)?\s*\(([^)]*)\)", sql):
            found |= {p.strip() for p in insert[1].split(",")}
            if (conflict := re.search(r"DO UPDATE SET(.*)", sql[insert.end() :], re.DOTALL)) is not None:
                found |= assigned(conflict[1])
        for update in re.finditer(rf"UPDATE {re.escape(name)}(?: (?:AS )?\w+)? SET(.*)", sql, re.DOTALL):
            found |= assigned(update[1])
    return frozenset(found)


def assigned(text: str) -> set[str]:
    """The columns that a SET clause, with which the text begins, gives a value to."""
    depth, clause = 0, ""
    for piece in re.findall(r"\b(?:FROM|WHERE|RETURNING)\b|'[^']*'|[()]|[^()'FWR]+|.", text, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if depth < 0 or (depth == 0 and piece in {"FROM", "WHERE", "RETURNING"}):
            break
        clause += piece if depth == 0 else ""
    return set(re.findall(r"(?:^|,)\s*(\w+)\s*=", clause))


def test_what_a_set_clause_gives_values_to() -> None:
    clause = " a = CASE x WHEN 'b = ,' THEN 1 END, c = (SELECT d = 1 FROM e), f = now()\n FROM g WHERE h = 1"
    assert assigned(clause) == {"a", "c", "f"}


def test_a_marked_table_is_written_by_nobody() -> None:
    """None is marked now; the first would be found here."""
    named = re.findall(rf"`((?:state|resource)\.\w+)`({MARK})?", section(PAGE, "## 4. "))
    assert {"state.pmo_batches", "state.turn_outcomes"} <= {each for each, _ in named}
    assert [each for each, mark in named if mark and written(each)] == []


# Words


def listed(start: str) -> list[tuple[str, bool]]:
    """The words in back-ticks of the first cells of a table of §4 that begins so, and whether each is marked."""
    rows = table(section(PAGE, "## 4. ").split(f"\n{start}")[1].split("\n\n")[0], "`")
    return [(found[1], bool(found[2])) for cells in rows for found in re.finditer(rf"`([^`]+)`({MARK}?)", cells[0])]


def of(kind: type[StrEnum], *marked: str) -> set[str]:
    """The words of a vocabulary that something here writes or sends."""
    known = {each.value for each in kind}
    assert known.issuperset(marked)
    return known.difference(marked)


VOCABULARIES: dict[str, set[str]] = {
    "head status": of(states.HeadStatus),
    "activity": of(states.Activity),
    "step phase": of(states.StepPhase),
    "step status": of(states.StepStatus, "running", "tool_dispatched"),
    "turn status": of(states.TurnStatus),
    "inbox status": of(states.InboxStatus),
    "inbox progress": set(cast("tuple[str, ...]", get_args(InboxProgress.model_fields["status"].annotation))),
    "message type": of(states.MessageType),
    "wait status": of(states.WaitStatus),
    "steer status": of(states.SteerStatus),
    "chunk type": of(states.ChunkType),
    "reply status": of(states.ReplyStatus),
    "action status": of(states.ActionStatus),
    "edge": {"enqueue", "report", "join", "tool_call", "request", "response"},
    "card type": of(cards.CardType),
    "content": {arg.__name__ for arg in get_args(get_args(cards.CardContent)[0])},
    "thread message": of(threads.MessageStatus) | of(threads.MessageKind),
    "reply": of(threads.ReplyKind) | of(threads.EndReason),
    "subject": set(SUBJECT.findall("\n".join(re.findall(r"^\| .*", section(PAGE, "### 5.1 "), re.MULTILINE)))),
}


def words() -> dict[tuple[str, str], str]:
    """The test beside each word in the table of docs/conformance.md, by vocabulary and word."""
    rows = table(section(PAGE_OF_WORDS, "## Words"), "")
    return {(cells[0], word): cells[2] for cells in rows for word in re.findall(r"`([^`]+)`", cells[1])}


def test_every_word_is_shown_by_a_test_and_every_mark_is_on_the_page() -> None:
    assert set(words()) == {(kind, word) for kind, each in VOCABULARIES.items() for word in each}
    for word in ("running", "tool_dispatched"):
        assert re.search(rf"\b{word}{MARK}", PAGE)


@pytest.mark.parametrize(("kind", "word"), sorted(words()))
def test_a_word_is_on_the_page_and_named_by_its_test(kind: str, word: str) -> None:
    assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", PAGE)
    [test] = held(words()[kind, word])
    name = max(re.findall(r"[a-z_]+", re.sub(r"\{[^}]*\}", " ", word)), key=len) if kind == "subject" else word
    source = source_of(test)
    assert name in source or f".{name.upper()}" in source, f"{test} does not name {name}"


def test_the_tables_of_words_are_the_vocabularies() -> None:
    assert set(listed("| message_type |")) == {(each, False) for each in states.MessageType}
    assert listed("| status |") == [(each, False) for each in states.InboxStatus]
    assert dict(listed("| type |")) == dict.fromkeys(cards.CardType, False)
    assert {word for word, _ in listed("| `__type__` |")} - {"__type__"} >= VOCABULARIES["content"]


def roster_replies() -> dict[str, set[str]]:
    """The fields of the replies of the operators' verbs, which §6 has in a table."""
    found: dict[str, set[str]] = {}
    before = set[str]()
    for cells in table(section(PAGE, "### agent, profile, tool"), "`"):
        verbs, before = re.findall(r"`([a-z.]+)`", cells[0]), before if cells[-1] == "the same" else said(cells[-1])
        lists = before & {"agents", "profiles", "tools"} if len(verbs) > 1 else set[str]()
        found |= {verb: before - {each for each in lists if not each.startswith(verb.split(".")[0])} for verb in verbs}
    return found


def said(cell: str) -> set[str]:
    return {word for words in re.findall(r"`([a-z_, ]+)`", cell) for word in words.split(", ")}


ROSTER_REPLIES = roster_replies()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_reply_of_a_verb_is_as_the_page_says(verb: Verb[Any, Any]) -> None:
    """Every reply may have `error`, words for people, too."""
    fields = verb.reply.model_fields.keys() - {"error"}
    if (row := ROSTER_REPLIES.get(verb.name)) is not None:
        assert row == fields - {"status", "error_code"}
        return
    name = re.escape(verb.name)
    part = re.split(rf"\n### {name}\n|\n\*\*{name}\*\* ", section(PAGE, "## 6. "), maxsplit=1)[1]
    told = re.split(r"\n###? |\n\*\*\w+\*\* ", part)[0]
    replies = re.findall(r"^- Reply: (.+(?:\n  .+)*)", told, re.MULTILINE)
    named = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", " ".join(replies) or told))))
    assert fields - (set() if replies else {"status", "error_code"}) <= named
    assert not replies or named == fields


@pytest.mark.parametrize("entry", [e for e in ENTRIES if not e.subject.startswith(("req.sys", "cmd.sys.bridge"))])
def test_the_payload_of_a_subject_is_as_the_page_says(entry: Entry) -> None:
    rows = {
        SUBJECT.findall(cells[0])[0]: cells[2]
        for cells in table(section(PAGE, "### 5.1 "), "`")
        if MARK not in cells[0]
    }
    if entry.subject not in rows:  # the ack of a verb
        assert re.fullmatch(r"evt\.sys\.bridge\.\w+_ack", entry.subject)
        return
    named = {word for words in re.findall(r"`([a-z_]+)`", rows[entry.subject]) for word in words.split(", ")}
    payload = entry.payload or entry.reply
    described = {} if payload is None else payload.model_fields
    fields = {info.alias or name for name, info in described.items()}
    assert fields <= named, f"add to docs/protocol.md §5.1: {fields - named}"


def test_each_rule_of_the_safety_net_is_on_the_page_and_has_a_test() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "bridge").rglob("*.py"))
    rules = set(re.findall(r'\b(?:SafetyRule|_rows)\(\s*"(\w+)"', code))
    on_page = table(section(PAGE, "## 8. "), "")
    assert {cells[0].replace(", ", "_") for cells in on_page} == rules
    settings = {f"{name}_seconds" for name in re.findall(r"`(\w+)_seconds`", " ".join(cells[1] for cells in on_page))}
    assert settings <= BridgeSettings.model_fields.keys()
    shown = {cells[0]: held(cells[1]) for cells in table(section(PAGE_OF_WORDS, "## Rules"), "")}
    assert shown.keys() == rules
    assert all(shown.values())
    assert [test for tests in shown.values() for test in tests if not exists(test)] == []
