-- The rows that stand in these lists, with those that closed ones passed their charges to in their place; locked with
-- `locks`, deepest first. A closed row whose grant of the dimension came from nobody is charged itself. Rows that are
-- gone leave the lists. A row that is seen closed is not locked: it never opens again.
CREATE OR REPLACE FUNCTION state.open_budgets(locks boolean, INOUT tokens text[], INOUT cost text[], INOUT turns text[],
    OUT held state.budgets[])
LANGUAGE plpgsql AS $$
DECLARE
    wanted text[];
    next text;
    b state.budgets;
BEGIN
    held := '{}';
    LOOP
        wanted := ARRAY(SELECT DISTINCT x.id FROM unnest(tokens || cost || turns) x (id)
                        WHERE NOT EXISTS (SELECT FROM unnest(held) f WHERE f.budget_id = x.id));
        EXIT WHEN cardinality(wanted) = 0;
        b := NULL;
        next := wanted[1];
        IF cardinality(wanted) > 1 THEN  -- depths never change
            SELECT x.budget_id INTO next FROM state.budgets x WHERE x.budget_id = ANY (wanted)
            ORDER BY x.depth DESC, x.budget_id LIMIT 1;
            next := coalesce(next, wanted[1]);
        END IF;
        IF locks THEN
            SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = next AND x.closed_at IS NULL FOR NO KEY UPDATE;
        END IF;
        IF b.budget_id IS NULL THEN
            SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = next;
            IF b.closed_at IS NOT NULL THEN
                IF next = ANY (tokens) AND b.from_tokens <> '{}' THEN tokens := array_remove(tokens, next) ||
                    b.from_tokens; END IF;
                IF next = ANY (cost) AND b.from_cost <> '{}' THEN cost := array_remove(cost, next) || b.from_cost;
                    END IF;
                IF next = ANY (turns) AND b.from_turns <> '{}' THEN turns := array_remove(turns, next) || b.from_turns;
                    END IF;
                CONTINUE WHEN next <> ALL (tokens || cost || turns);
                IF locks THEN
                    SELECT x.* INTO b FROM state.budgets x WHERE x.budget_id = next FOR NO KEY UPDATE;
                END IF;
            -- of a day or month of which no turn has been charged
            ELSIF b.budget_id IS NULL AND next LIKE '%/%' AND NOT locks THEN
                b.budget_id := next;
                b.depth := 0;
                SELECT p.max_tokens, p.max_cost, p.max_turns, 0, 0, 0, 0, 0, 0
                INTO b.max_tokens, b.max_cost, b.max_turns, b.spent_tokens, b.spent_cost, b.spent_turns,
                    b.reserved_tokens, b.reserved_cost, b.reserved_turns
                FROM state.project_budgets p
                WHERE p.project_id = split_part(next, '/', 1) AND p.period = split_part(next, '/', 2);
            ELSIF b.budget_id IS NULL THEN
                wanted := ARRAY(SELECT x.id FROM unnest(wanted) x (id)
                    WHERE NOT EXISTS (SELECT FROM state.budgets y WHERE y.budget_id = x.id));
                tokens := ARRAY(SELECT x.id FROM unnest(tokens) x (id) WHERE x.id <> ALL (wanted));
                cost := ARRAY(SELECT x.id FROM unnest(cost) x (id) WHERE x.id <> ALL (wanted));
                turns := ARRAY(SELECT x.id FROM unnest(turns) x (id) WHERE x.id <> ALL (wanted));
                CONTINUE;
            END IF;
        END IF;
        held := held || b;
    END LOOP;
END $$;
