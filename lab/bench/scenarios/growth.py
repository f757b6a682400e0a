"""`growth`: statements of a turn, and the audit of a day, alternately on a ledger with a long past and on one without.

The turns that are asked for stay as they are, so in the course of each part more of them are live, on both ledgers
alike. The past ended before the day that is audited, whose turns both have.
"""

import time
import uuid
from collections.abc import Sequence

import asyncpg

from lab.bench.bars import Advance, Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most, percentile, ratio
from lab.bench.ledgers.ended_turns import fill
from lab.bench.ledgers.ledger import Ledger, open_ledger
from lab.bench.ledgers.past import FIRST_CONVERSATION, add_past
from lab.bench.plan import Plan
from turnstile.ledger.operations.audit import Audit
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, ConversationId, ProjectId
from turnstile.schema.turns import TurnRef

_STATEMENTS = ("enqueue", "claim", "begin")
_TALK = " in a conversation"
_TALKERS = 3
"""Of so many turns one is asked for in a conversation, after the others."""
_AUDITS = 5
_GOAL = at_most(1.2)


async def run_growth(environment: Environment, bars: Bars) -> Result:
    """Measure both ledgers, over one connection each; each agent gets one turn."""
    plan, project = environment.plan, ProjectId(f"bench-growth-{uuid.uuid4().hex[:8]}")
    plain, talkers = plan.warm + plan.growth_turns, plan.warm + -(-plan.growth_turns // _TALKERS)
    async with (
        open_ledger(environment, project, plain + talkers) as empty,
        open_ledger(environment, project, plain + talkers) as old,
    ):
        both, alone = (empty, old), empty.agents[plain:]
        began = time.monotonic()
        with bars.bar("growth: old rows", plan.old_rows + len(alone)) as advance:
            await add_past(empty.url, project, alone, len(alone), len(alone), advance)
            await add_past(old.url, project, old.agents, plan.old_rows, plan.old_conversations, advance)
        written = time.monotonic()
        with bars.bar("growth: turns", 2 * (plain + talkers)) as advance:
            await _turns(both, empty.agents[:plain], "", None, advance)
            await _turns(both, alone, _TALK, FIRST_CONVERSATION, advance)
        audited, rules = await _audits(both, plan, bars)
    named = [*_STATEMENTS, *(f"{statement}{_TALK}" for statement in _STATEMENTS)]
    figures = [figure for name in named for figure in _compared(name, both, plan.warm)]
    details: JsonObject = {"past_seconds": round(written - began, 1), "audit_ms": rules}
    return Result(scenario="growth", figures=(*figures, *audited), details=details)


async def _turns(
    ledgers: Sequence[Ledger],
    agents: Sequence[AgentId],
    kind: str,
    conversation: ConversationId | None,
    advance: Advance,
) -> None:
    """A turn of each agent: all are asked for and claimed, then all are begun."""
    rounds: list[list[tuple[Ledger, TurnRef]]] = []
    for number, agent in enumerate(agents):
        rounds.append([(ledger, await ledger.ask(agent, kind, conversation)) for ledger in _in_turns(ledgers, number)])
        advance(1)
    for turns in rounds:
        for ledger, turn in turns:
            await ledger.begin(turn, kind)
        advance(1)


async def _audits(ledgers: Sequence[Ledger], plan: Plan, bars: Bars) -> tuple[list[Figure], JsonObject]:
    """Audit the day of both; returns figures, and for each rule the ms of its last run on the empty and the old ledger.

    There are none where the user may not write the day, as who is no superuser.
    """
    audits: list[Audit] = []
    try:
        with bars.bar("growth: audits of a day", len(ledgers) + _AUDITS + 1) as advance:
            for ledger in ledgers:
                await fill(ledger.url, plan.day_turns, days=1)
                advance(1)
            for _ in range(_AUDITS + 1):
                audits += [await ledger.audit() for ledger in ledgers]
                advance(1)
    except asyncpg.InsufficientPrivilegeError:
        bars.print_line("growth: no audit, since the database's user is no superuser")
        return [], {}
    violations = sum(len(audit.violations) for audit in audits)
    figures = _compared("audit of a day", ledgers, 1)
    pairs = zip(audits[-2].rules, audits[-1].rules, strict=True)
    rules: JsonObject = {one.rule: [round(x.seconds * 1000) for x in (one, two)] for one, two in pairs}
    return [*figures, Figure(name="audit of a day: violations", value=violations, goal=at_most(0))], rules


def _in_turns(ledgers: Sequence[Ledger], number: int) -> Sequence[Ledger]:
    return ledgers if number % 2 == 0 else ledgers[::-1]


def _compared(name: str, ledgers: Sequence[Ledger], warm: int) -> list[Figure]:
    without, long = (percentile(ledger.took[name][warm:], 0.5) for ledger in ledgers)
    return [
        Figure(name=f"{name}, empty ledger, median", value=without, unit="ms"),
        Figure(name=f"{name}, old ledger, median", value=long, unit="ms"),
        Figure(name=f"{name}: old ÷ empty", value=ratio(long, without), goal=_GOAL),
    ]
