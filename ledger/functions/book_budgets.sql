-- Books entries, deepest rows first. A row whose turn is over closes when nothing of it is reserved: what came from
-- above goes back there, with what was spent of it. What a closed row hears later, it passes on.
CREATE OR REPLACE FUNCTION state.book_budgets(todo state.budget_entry[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    next text;
    d state.budget_entry;
    b state.budgets;
    closes boolean;
BEGIN
    LOOP
        EXIT WHEN cardinality(todo) = 0;
        d := todo[1];
        next := d.budget_id;
        IF cardinality(todo) = 1 THEN
            todo := '{}';
        ELSE
            SELECT x.budget_id INTO next FROM state.budgets x
            WHERE x.budget_id IN (SELECT t.budget_id FROM unnest(todo) t) ORDER BY x.depth DESC, x.budget_id LIMIT 1;
            EXIT WHEN next IS NULL;
            SELECT next, sum(t.reserved_tokens), sum(t.spent_tokens), sum(t.unsettled_tokens), sum(t.beyond_tokens),
                   sum(t.reserved_cost), sum(t.spent_cost), sum(t.unsettled_cost), sum(t.beyond_cost),
                   sum(t.reserved_turns), sum(t.spent_turns)
            INTO d FROM unnest(todo) t WHERE t.budget_id = next;
            todo := ARRAY(SELECT t FROM unnest(todo) t WHERE t.budget_id <> next);
        END IF;
        UPDATE state.budgets x SET
            reserved_tokens = x.reserved_tokens + d.reserved_tokens, spent_tokens = x.spent_tokens + d.spent_tokens,
            unsettled_tokens = x.unsettled_tokens + d.unsettled_tokens,
            beyond_tokens = x.beyond_tokens + d.beyond_tokens,
            reserved_cost = x.reserved_cost + d.reserved_cost, spent_cost = x.spent_cost + d.spent_cost,
            unsettled_cost = x.unsettled_cost + d.unsettled_cost, beyond_cost = x.beyond_cost + d.beyond_cost,
            reserved_turns = x.reserved_turns + d.reserved_turns, spent_turns = x.spent_turns + d.spent_turns
        WHERE x.budget_id = next RETURNING x.* INTO b;
        CONTINUE WHEN b.ended_at IS NULL;
        closes := b.closed_at IS NULL AND b.reserved_tokens = 0 AND b.reserved_cost = 0 AND b.reserved_turns = 0;
        CONTINUE WHEN b.closed_at IS NULL AND NOT closes;
        IF closes THEN
            UPDATE state.budgets x SET closed_at = clock_timestamp() WHERE x.budget_id = next;
        END IF;
        todo := todo || ARRAY(
            SELECT (f.id, sum(f.rt), sum(f.st), sum(f.ut), sum(f.bt), sum(f.rc), sum(f.sc), sum(f.uc), sum(f.bc),
                sum(f.rn), sum(f.sn))::state.budget_entry
            FROM (
                SELECT t.id, CASE WHEN closes THEN -b.max_tokens ELSE 0 END AS rt,
                       CASE WHEN closes THEN b.spent_tokens ELSE d.spent_tokens END AS st,
                       CASE WHEN closes THEN b.unsettled_tokens ELSE d.unsettled_tokens END AS ut,
                       greatest(b.spent_tokens - b.max_tokens, 0)
                       - CASE WHEN closes THEN 0 ELSE greatest(b.spent_tokens - d.spent_tokens - b.max_tokens, 0)
                           END AS bt,
                       0 AS rc, 0 AS sc, 0 AS uc, 0 AS bc, 0 AS rn, 0 AS sn
                FROM unnest(b.from_tokens) t (id)
                UNION ALL
                SELECT c.id, 0, 0, 0, 0, CASE WHEN closes THEN -b.max_cost ELSE 0 END,
                       CASE WHEN closes THEN b.spent_cost ELSE d.spent_cost END,
                       CASE WHEN closes THEN b.unsettled_cost ELSE d.unsettled_cost END,
                       greatest(b.spent_cost - b.max_cost, 0)
                       - CASE WHEN closes THEN 0 ELSE greatest(b.spent_cost - d.spent_cost - b.max_cost, 0) END, 0, 0
                FROM unnest(b.from_cost) c (id)
                UNION ALL
                SELECT n.id, 0, 0, 0, 0, 0, 0, 0, 0, CASE WHEN closes THEN -b.max_turns ELSE 0 END,
                       CASE WHEN closes THEN b.spent_turns ELSE d.spent_turns END
                FROM unnest(b.from_turns) n (id)) f
            GROUP BY f.id);
    END LOOP;
END $$;
