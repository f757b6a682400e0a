"""Bridges: claims, leases, and the statements of the net that write before they look (protocol §6, §8)."""

from dataclasses import replace

from lab.explore.actors.cast import PROJECT, Cast
from lab.explore.net import TARGET, claim
from lab.explore.world import Move, View
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import claim_inbox, dispatch_next
from turnstile.schema.ids import (
    AgentId,
)


def bridge(cast: Cast, view: View) -> list[Move]:
    moves: list[Move] = []
    claimed = dict.fromkeys(script.agent for script in cast.scripts) if cast.claims is None else cast.claims
    for agent in claimed:
        live = [row for row in view.all("agent_inbox", agent_id=agent) if row["archived_at"] is None]
        if any(row["status"] in {"pending", "deferred"} for row in live):
            moves.append(Move(f"claim {agent}", lambda pool, a=agent: _claim(pool, a), repeats=False, skips=True))
            moves[-1] = replace(moves[-1], part="live", alone=True)
            if cast.loses:
                die = Move(
                    f"claim-and-die {agent}", lambda pool, a=agent: _claim_only(pool, a), repeats=False, skips=True
                )
                moves.append(replace(die, part="live", alone=True))
        if any(row["status"] == "queued" for row in live):
            moves.append(Move(f"dispatch {agent}", lambda pool, a=agent: _dispatch(pool, a)))
    return [*moves, *(sweeps(view) if cast.sweeps else [])]


async def _claim(pool: Pool, agent: AgentId) -> str:
    await claim(pool, [(PROJECT, agent)])
    return "claimed"


async def _claim_only(pool: Pool, agent: AgentId) -> str:
    rows = await pool.run(lambda conn: claim_inbox(conn, [(PROJECT, agent)], [TARGET], row_limit=64))
    return " ".join(sorted(r.verdict for r in rows))


async def _dispatch(pool: Pool, agent: AgentId) -> str:
    return f"leased {len(await pool.run(lambda conn: dispatch_next(conn, [(PROJECT, agent)])))}"


_SWEEPS = {
    "claims": sweep.release_stale_claims,
    "dispatched_retry": sweep.retry_dispatched,
    "resume": sweep.retry_resumes,
}
"""The statements of the net that write without a look before; a bridge may die after each, before it claims."""


def sweeps(view: View) -> list[Move]:
    moves: list[Move] = []
    if any(row["status"] == "processing" for row in view.table("agent_inbox")):
        moves += [
            Move(f"sweep {name}", lambda pool, n=name: _sweep(pool, n), skips=True, part="live", alone=True)
            for name in _SWEEPS
        ]
    if any(head["status"] == "suspended" for head in view.table("agent_state_head")):
        moves.append(Move("sweep command", _repeat_commands, skips=True, part="live", alone=True))
    return moves


async def _sweep(pool: Pool, name: str) -> str:
    rows = await pool.run(lambda conn: _SWEEPS[name](conn, [TARGET], older_seconds=1, row_limit=500))
    return f"found {len(rows)}"


async def _repeat_commands(pool: Pool) -> str:
    rows = await pool.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=1, row_limit=500))
    return f"found {len(rows)}"
