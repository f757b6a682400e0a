"""Writes a ledger's past: turns of its agents that ended 1 to 91 days ago, all of them in conversations.

Every turn has its inbox row and outcome; the last turn of each conversation has its step, edge, boxes and cards too,
which a next turn of the conversation reads. All by set-based SQL, some 20,000 turns a second; a turn takes about 1.8 kB
of disk, the last one of a conversation 4.5 kB more. Only for a ledger that nobody uses: it passes triggers by.
"""

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from lab.bench.yardsticks.postgres import connected
from turnstile.ledger.queries import parse
from turnstile.schema.ids import AgentId, ConversationId, ProjectId

FIRST_CONVERSATION = ConversationId("c-0")
"""The first conversation of each agent; the next ones are `c-1`, `c-2`, …."""
_PART = 100_000
_AGO = timedelta(hours=25)
"""The past ends before the day that is audited."""


async def add_past(
    url: str,
    project: ProjectId,
    agents: Sequence[AgentId],
    rows: int,
    conversations: int,
    report: Callable[[int], None],
) -> None:
    """Write `rows` turns of these agents in `conversations`, at most one for each turn; the agents have none so far.

    Calls `report` with the number of turns after each part. At the end it vacuums and analyzes the database, and has
    the server write it out, if the user may ask for that.
    """
    statements = parse(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
    values: dict[str, Any] = {
        "project_id": project,
        "agents": list(agents),
        "rows": rows,
        "conversations": min(rows, conversations),
        "until": datetime.now(UTC) - _AGO,
    }
    async with connected(url) as conn:

        async def run(name: str, **part: int) -> None:
            statement, known = statements[name], values | part
            await statement.many(conn, **{key: known[key] for key in statement.parameters})

        await conn.execute(statements["pass_triggers"].sql)
        for first in range(0, rows, _PART):
            last = min(rows, first + _PART)
            await run("plan_turns", first=first, last=last)
            async with conn.transaction():
                for name in statements:
                    if name.startswith("fill_"):
                        await run(name)
            await run("add_output")
            await run("forget_plan")
            report(last - first)
        await run("raise_heads")
        await conn.execute(statements["keep_triggers"].sql)
        await conn.execute(statements["tidy"].sql)
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):  # for pg_checkpoint and superusers
            await conn.execute(statements["write_out"].sql)
