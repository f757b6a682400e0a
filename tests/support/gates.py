"""A witness of gates in a test's database: when each turn began a step, sent calls or made a child, by its clock.

Each moment is taken in the transaction that passed the gate, while it holds what a mark would have to wait for. So a
gate that is noted after its turn's mark was open when it should have been closed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from turnstile.ledger.pool import Session
from turnstile.schema.ids import AgentTurnId

SLACK = timedelta(seconds=1)
"""How long a transaction may take from the moment that is noted to its commit."""

_WITNESS = """
CREATE TABLE public.gates (
    what text NOT NULL, agent_turn_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE FUNCTION public.note_head() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.step_attempt > OLD.step_attempt OR NEW.model_failures > OLD.model_failures THEN
        INSERT INTO public.gates (what, agent_turn_id) VALUES ('begun', NEW.active_agent_turn_id);
    ELSIF OLD.status = 'running' AND NEW.status <> 'running' THEN
        INSERT INTO public.gates (what, agent_turn_id) VALUES ('over', OLD.active_agent_turn_id);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION public.note_call() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO public.gates (what, agent_turn_id) VALUES ('called', NEW.agent_turn_id);
    ELSIF (NEW.held_by, NEW.wait_status) IS DISTINCT FROM (OLD.held_by, OLD.wait_status) THEN
        INSERT INTO public.gates (what, agent_turn_id) VALUES ('answered', NEW.agent_turn_id);
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION public.note_child() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.gates (what, agent_turn_id) VALUES ('child', NEW.parent_turn_id);
    RETURN NULL;
END $$;
CREATE TRIGGER gates_head AFTER UPDATE ON state.agent_state_head FOR EACH ROW EXECUTE FUNCTION public.note_head();
CREATE TRIGGER gates_call AFTER INSERT OR UPDATE ON state.turn_waiting_tools FOR EACH ROW
EXECUTE FUNCTION public.note_call();
CREATE TRIGGER gates_child AFTER INSERT ON state.turn_nodes FOR EACH ROW WHEN (NEW.parent_turn_id IS NOT NULL)
EXECUTE FUNCTION public.note_child();
"""
_OPENS, _CLOSES = {"begun": "step", "called": "calls"}, {"over": "step", "answered": "calls"}
_LATE = """
SELECT count(*) AS late FROM public.gates g JOIN state.turn_nodes n ON n.agent_turn_id = g.agent_turn_id
WHERE g.what IN ('begun', 'called', 'child') AND n.root_turn_id = $1 AND g.at > n.stopping_at
"""
_AFTER = "SELECT count(*) AS late FROM public.gates g WHERE g.what IN ('begun', 'called', 'child') AND g.at > $1"
_NOTED = """
SELECT g.what, g.agent_turn_id, g.at, n.stopping_at FROM public.gates g
JOIN state.turn_nodes n ON n.agent_turn_id = g.agent_turn_id WHERE n.stopping_at IS NOT NULL AND n.root_turn_id = $1
ORDER BY g.at
"""


async def open_witness(conn: Session) -> None:
    """Note all gates of this database from now on."""
    await conn.execute(_WITNESS)


@dataclass(frozen=True)
class Gates:
    """What the witness saw of a tree that was stopped, and answered at `answered_at`."""

    after_their_mark: int
    after_the_answer: int
    on_their_way: tuple[int, int]
    """Turns that had a step or calls out all the time from mark to answer; and those that had at any moment of it."""


async def gates_of(conn: Session, root: AgentTurnId, answered_at: datetime) -> Gates:
    """What was noted of the tree of this root, whose turns send one call a step."""
    [marked] = await conn.fetch(_LATE, root)
    [answered] = await conn.fetch(_AFTER, answered_at)
    spans: dict[tuple[str, str], list[tuple[datetime, datetime]]] = {}
    marks: dict[str, datetime] = {}
    begun: dict[tuple[str, str], datetime] = {}
    for row in await conn.fetch(_NOTED, root):
        turn, at = str(row["agent_turn_id"]), row["at"]
        marks[turn] = row["stopping_at"]
        if (kind := _OPENS.get(row["what"])) is not None:
            begun.setdefault((turn, kind), at)
        elif (kind := _CLOSES.get(row["what"])) is not None and (turn, kind) in begun:
            spans.setdefault((turn, kind), []).append((begun.pop((turn, kind)), at))
    for key, at in begun.items():
        spans.setdefault(key, []).append((at, datetime.max.replace(tzinfo=answered_at.tzinfo)))
    least = {turn for (turn, _), of in spans.items() if any(a < marks[turn] and b > answered_at for a, b in of)}
    most = {turn for (turn, _), of in spans.items() if any(a < marks[turn] and b > marks[turn] - SLACK for a, b in of)}
    return Gates(marked["late"], answered["late"], (len(least), len(most)))
